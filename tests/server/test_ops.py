"""Discovery, health, stats and administration."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from phyla.model.family import Claim
from phyla.registry import LocalModel
from phyla_server.keys import KeyRing
from phyla_server.local_library import LocalLibrary
from phyla_server.openapi import ENDPOINTS

IGNORES_TOOLS = {"parser": "hermes", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
DOCS = Path(__file__).parents[2] / "docs" / "server.md"


def test_health_is_exactly_the_known_bytes(serve):
    response = serve().http.get("/health")

    assert response.content == b'{"status": "ok"}'
    assert response.headers["content-type"].startswith("application/json")


def test_the_listed_model_is_found_and_an_unknown_one_is_not(serve):
    running = serve()

    listed = running.openai.models.list().data
    found = running.openai.models.retrieve(listed[0].id)
    missing = running.http.get("/v1/models/org/other")

    assert [one.id for one in listed] == ["phyla/scripted"]
    assert found.id == "phyla/scripted"
    assert found.object == "model"
    assert found.owned_by == "phyla"
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def local(path, model_id, **details):
    return LocalModel(model_id, path, "hub", 1, config={"model_type": model_id}, **details)


def claims(config):
    return {"org/exact": Claim.EXACT, "org/any": Claim.FALLBACK}.get(config.get("model_type"), Claim.NONE)


FAMILIES = [SimpleNamespace(claim=claims)]


def test_other_models_on_the_machine_are_listed_after_the_served_one(serve, tmp_path):
    found = [
        local(tmp_path, "org/exact"),
        local(tmp_path, "org/any"),
        local(tmp_path, "phyla/scripted"),
        local(tmp_path, "org/no-family"),
        local(tmp_path, "org/draft", is_drafter=True),
        local(tmp_path, "org/exact", is_current=False),
        LocalModel("in-a-file", tmp_path, "gguf", 1),
    ]
    running = serve(others=LocalLibrary(lambda: found, FAMILIES))

    listed = running.http.get("/v1/models").json()["data"]
    other = running.http.get("/v1/models/org/any").json()

    assert [(one["id"], one.get("tier")) for one in listed] == [
        ("phyla/scripted", None),
        ("org/exact", "targeted"),
        ("org/any", "generic"),
        ("in-a-file", None),
    ]
    assert other == listed[2]
    assert str(tmp_path) not in running.http.get("/v1/models").text
    assert running.complete(model="org/any").json()["model"] == "phyla/scripted"


def test_local_models_are_looked_for_anew_after_a_while_and_a_disk_that_fails_lists_none(tmp_path):
    def scan():
        seconds.append(0.0)
        if len(seconds) > 2:
            raise OSError(5, "input/output error")
        return [local(tmp_path, "org/any")]

    seconds = []
    clock = [0.0]
    library = LocalLibrary(scan, FAMILIES, now=lambda: clock[0])
    first, again = library.entries(), library.entries()
    num_scans = len(seconds)
    clock[0] = 31.0
    library.entries()
    clock[0] = 62.0

    assert [one["id"] for one in first] == ["org/any"]
    assert again == first
    assert (num_scans, len(seconds)) == (1, 2)
    assert library.entries() == ()


def test_the_served_model_says_what_it_can(serve):
    entry = serve(temperature=0.3).http.get("/v1/models").json()["data"][0]

    assert entry["context_window"] == 4096
    assert entry["reasoning"] is True
    assert entry["batch_mode"] == "batch"
    assert entry["structured_output"] is False
    assert entry["capabilities"]["chat_completions"] is True
    assert entry["gen_defaults"] == {"temperature": 0.3, "top_p": None, "top_k": None}


@pytest.mark.parametrize(("method", "has_mtp"), [("none", False), ("ngram", False), ("mtp", True)])
def test_a_model_that_drafts_with_its_own_head_says_so(serve, method, has_mtp):
    entry = serve(method=method).http.get("/v1/models").json()["data"][0]

    assert (entry["mtp"], entry["dsa"]) == (has_mtp, False)


@pytest.mark.parametrize(("options", "has_tools"), [({"parser": "hermes"}, True), (IGNORES_TOOLS, False)])
def test_tools_are_a_capability_if_the_template_renders_them_and_calls_are_read(serve, options, has_tools):
    entry = serve(**options).http.get("/v1/models").json()["data"][0]

    assert entry["tools"] is entry["capabilities"]["tools"] is has_tools


def test_a_model_without_a_template_lists_no_chat(serve):
    assert serve(template=None).http.get("/v1/models").json()["data"][0]["capabilities"]["chat_completions"] is False


def test_the_index_names_the_server_and_its_endpoints(serve):
    index = serve().http.get("/v1").json()

    assert index["name"] == "phyla"
    assert index["model"] == "phyla/scripted"
    assert "POST /v1/chat/completions" in index["endpoints"]


def test_stats_tell_the_server_apart(serve):
    stats = serve().http.get("/stats").json()

    assert stats["server"]["owner"] == "embedded"
    assert stats["server"]["model"] == "phyla/scripted"
    assert stats["batch"]["mode"] == "batch"


def test_a_flush_says_what_is_durable(serve):
    body = serve().http.post("/admin/cache/flush").json()

    assert body["durable"] is True
    assert body["entries"] == 0


@pytest.mark.parametrize("body", [{}, {"session_id": ""}, {"session_id": 5}])
def test_closing_no_session_is_refused(serve, body):
    assert serve().http.post("/admin/cache/session/close", json=body).status_code == 400


def test_options_is_answered_everywhere(serve):
    response = serve().http.options("/v1/chat/completions")

    assert response.status_code == 204
    assert response.content == b""


def test_the_peers_path_is_the_same_route(serve):
    response = serve().http.post("/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})

    assert response.json()["object"] == "chat.completion"


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/downloads", "/admin/drain", "/", "/v1/chat"])
def test_what_is_not_open_is_not_found(serve, path):
    assert serve().http.post(path, json={}).status_code == 404


def test_five_hundred_idle_connections_change_no_answer(serve):
    running = serve()
    host, port = running.server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(500)]
    for one in idle:
        one.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    for one in idle:
        one.recv(4096)

    answers = [running.chat(stream=True).text for _ in range(3)]

    for one in idle:
        one.close()
    assert all(answer.endswith("data: [DONE]\n\n") for answer in answers)


def test_the_openapi_page_has_every_route_with_its_body(serve):
    document = serve().http.get("/schema/openapi.json").json()

    operations = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    listed = {endpoint.replace("{id}", "{model_id}") for endpoint in ENDPOINTS} - {"GET /schema/openapi.json"}
    assert listed <= operations
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "messages" in str(chat["requestBody"])
    assert "text/event-stream" in chat["responses"]["200"]["content"]


def test_the_page_and_the_index_and_the_documentation_name_the_same_routes(serve):
    document = serve().http.get("/schema/openapi.json").json()
    operations = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    page = DOCS.read_text(encoding="utf-8")

    undocumented = {operation for operation in operations if f"`{operation.replace('model_id', 'id')}`" not in page}

    assert undocumented == set()


def test_every_route_in_the_table_is_closed_without_a_key(serve):
    running = serve(keys=KeyRing(["user-key-1"]))
    document = running.http.get("/schema/openapi.json", headers={"x-api-key": "user-key-1"}).json()
    routes = [(method, path) for path, item in document["paths"].items() for method in item]

    statuses = {(method, path): running.http.request(method, path).status_code for method, path in routes}

    opened = {route for route, status in statuses.items() if status != 401}
    assert opened == {("get", "/health")}
    assert len(statuses) >= 10
