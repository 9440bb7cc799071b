"""Closed by default: Host, Origin, keys, bodies."""

from __future__ import annotations

import gzip
import itertools
import json
import socket

import pytest
from phyla_server import chat_request, connection
from phyla_server.keys import KeyRing

USER, ADMIN = "user-key-1", "admin-key-1"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example", "", "[::1", "a b"])
def test_a_foreign_host_is_refused(serve, host):
    response = serve().http.get("/v1/models", headers={"host": host})

    assert response.status_code in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:80", "192.168.1.7", "box.lan"])
def test_loopback_addresses_and_configured_names_are_served(serve, host):
    response = serve(allowed_host=("box.lan",)).http.get("/v1/models", headers={"host": host})

    assert response.status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "file://", "http://"])
def test_a_foreign_origin_is_refused_and_gets_no_permission(serve, origin):
    running = serve()

    response = running.http.post("/v1/chat/completions", json={"messages": []}, headers={"origin": origin})

    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    assert running.front.received == []


def test_the_servers_own_origin_and_configured_ones_pass(serve):
    running = serve(allowed_origin=("https://app.example",))

    own = running.http.get("/v1", headers={"origin": running.server.url})
    configured = running.http.options("/v1/chat/completions", headers={"origin": "https://app.example"})

    assert own.status_code == 200
    assert configured.status_code == 204
    assert configured.headers["access-control-allow-origin"] == "https://app.example"


def preflight(running, requested):
    headers = {"origin": "https://app.example", "access-control-request-headers": requested}
    return running.http.options("/v1/chat/completions", headers=headers).headers["access-control-allow-headers"]


def test_an_allowed_page_may_send_what_its_client_library_adds(serve):
    running = serve(allowed_origin=("https://app.example",))

    assert preflight(running, "authorization,x-stainless-lang").endswith(", authorization,x-stainless-lang")
    assert "<" not in preflight(running, "<script>")


def test_any_key_is_accepted_while_none_is_configured(serve):
    assert serve().http.get("/v1/models", headers=bearer("whatever")).status_code == 200


def test_every_route_asks_for_a_key_but_health(serve):
    running = serve(keys=KeyRing([USER]))
    paths = ["/v1", "/v1/models", "/v1/models/x", "/stats", "/schema/openapi.json", "/nowhere", "/v1/chat/completions"]

    statuses = {path: running.http.get(path).status_code for path in paths}

    assert set(statuses.values()) == {401}
    assert running.http.get("/health").status_code == 200


def test_a_wrong_key_is_refused_and_a_right_one_passes_in_either_header(serve):
    running = serve(keys=KeyRing([USER]))

    assert running.http.get("/v1/models", headers=bearer("user-key-2")).status_code == 401
    assert running.http.get("/v1/models", headers=bearer(USER)).status_code == 200
    assert running.http.get("/v1/models", headers={"x-api-key": USER}).status_code == 200


def test_each_key_is_a_cache_namespace(serve):
    running = serve(keys=KeyRing([USER, "user-key-2"]))

    for key in (USER, "user-key-2", USER):
        running.http.post("/v1/completions", json={"prompt": "a"}, headers=bearer(key))

    first, second, third = [request.owner for request in running.front.received]
    assert first == third != second
    assert USER not in first


def test_admin_routes_need_an_admin_key_once_keys_are_configured(serve):
    running = serve(keys=KeyRing([USER], [ADMIN]))

    assert running.http.post("/admin/cache/clear", headers=bearer(USER)).status_code == 403
    assert running.http.post("/admin/cache/flush", headers=bearer(USER)).status_code == 403
    assert running.http.post("/admin/cache/clear", headers=bearer(ADMIN)).json() == {"entries": 0, "bytes": 0}
    assert running.http.post("/admin/cache/flush", headers=bearer(ADMIN)).json()["durable"] is True


def test_without_keys_nobody_is_an_admin_beyond_loopback(serve):
    response = serve(host="0.0.0.0", insecure=True).http.post("/admin/cache/flush")

    assert response.status_code == 403
    assert response.json()["error"]["code"] == "admin_only"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "application/json", "content-encoding": "br"}, 415),
    ],
)
def test_a_body_that_is_not_declared_json_is_refused(serve, headers, status):
    response = serve().http.post("/v1/chat/completions", content=b'{"messages":[]}', headers=headers)

    assert response.status_code == status
    assert "message" in response.json()["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b'{"messages": "\xc3"}',
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda raw: repr(raw[:16]),
)
def test_a_malformed_body_is_one_clear_400(serve, raw):
    response = serve().http.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "invalid JSON body"


def test_deep_but_parsable_nesting_is_refused(serve):
    raw = b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}"

    response = serve().http.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})

    assert response.status_code == 400
    assert "nests" in response.json()["error"]["message"]


def test_a_lone_surrogate_is_refused_and_one_inside_inner_json_is_replaced(serve):
    running = serve()
    call = {"function": {"name": "f", "arguments": json.dumps({"a": "\ud800"})}}

    plain = running.http.post(
        "/v1/completions", content=b'{"prompt": "\\ud83d"}', headers={"content-type": "application/json"}
    )
    nested = running.chat(messages=[{"role": "assistant", "tool_calls": [call]}])

    assert plain.status_code == 400
    assert nested.status_code == 200


def test_a_body_past_the_limit_is_refused_before_it_is_read(serve):
    running = serve(max_body_bytes=2048)

    declared = running.complete(prompt="a" * 4000)
    chunked = running.http.post(
        "/v1/completions",
        content=(b"x" * 1000 for _ in range(50)),
        headers={"content-type": "application/json"},
    )

    assert declared.status_code == 413
    assert chunked.status_code == 413


def test_a_compressed_bomb_is_refused(serve):
    bomb = gzip.compress(b"0" * 50_000_000)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    response = serve(max_body_bytes=100_000).http.post("/v1/completions", content=bomb, headers=headers)

    assert response.status_code == 413


def test_a_compressed_body_is_served_and_a_damaged_one_refused(serve):
    running = serve()
    packed = gzip.compress(json.dumps({"prompt": "Hi"}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    whole = running.http.post("/v1/completions", content=packed, headers=headers)
    damaged = running.http.post("/v1/completions", content=packed[:-12], headers=headers)

    assert whole.status_code == 200
    assert damaged.status_code == 400


@pytest.mark.parametrize("length", ["-5", "5x", "99999999999999999999", "3, 4"])
def test_a_lying_content_length_is_refused(serve, length):
    running = serve()

    answer = raw_request(
        running,
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n{{}}",
    )

    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


def test_a_body_shorter_than_declared_costs_only_its_connection(serve):
    running = serve()

    with connect(running) as one:
        one.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 500\r\n\r\n{}"
        )
        one.shutdown(socket.SHUT_WR)
        one.recv(4096)

    assert running.complete().status_code == 200
    assert len(running.front.received) == 1


@pytest.mark.parametrize("model", ["../../etc/passwd", "/etc/passwd", "a/../b", "C:\\x", "org/name\x00", "https://x/y"])
def test_a_path_like_model_is_neither_opened_nor_fetched(serve, model):
    response = serve().complete(model=model)

    assert response.status_code == 200
    assert response.json()["model"] == "phyla/scripted"


@pytest.mark.parametrize("path", ["/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fx", "/v1/models//etc/passwd"])
def test_a_path_like_model_id_is_unknown(serve, path):
    answer = raw_request(serve(), f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 404")
    assert b"root:" not in answer


def test_errors_carry_no_stack_and_no_path(serve, monkeypatch):
    def breaks(fields):
        raise RuntimeError("/secret/path exploded")

    monkeypatch.setattr(chat_request, "read_max_tokens", breaks)
    response = serve().chat()

    assert response.status_code == 500
    said = response.json()["error"]
    assert said == {
        "message": f"the server failed; its log has the cause under {response.headers['x-request-id']}",
        "type": "server_error",
    }


def test_unknown_paths_and_methods_have_the_error_shape(serve):
    running = serve()

    assert running.http.get("/nowhere").json() == {"error": {"message": "not found"}}
    assert running.http.get("/nowhere").status_code == 404
    wrong = running.http.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert "GET" not in wrong.headers["allow"]
    assert "message" in wrong.json()["error"]


@pytest.mark.parametrize("path", ["/health", "/v1", "/v1/models", "/v1/models/phyla/scripted", "/nowhere"])
def test_head_is_get_without_the_body(serve, path):
    running = serve()

    asked, got = running.http.head(path), running.http.get(path)

    assert asked.status_code == got.status_code
    assert asked.headers["content-length"] == str(len(got.content))
    assert asked.content == b""
    # The connection goes on: the next answer isn't the body that was left out.
    assert running.http.get("/health").json() == {"status": "ok"}


def test_head_is_no_way_to_what_has_no_get(serve):
    assert serve().http.head("/v1/chat/completions").status_code == 405


POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize("begun", [b"", b"GET /hea", POST, POST + b"content-length: 9"])
def test_a_head_that_never_becomes_whole_costs_its_connection(serve, begun):
    running = serve(head_seconds=0.2)

    with connect(running) as one:
        assert trickled(one, begun) == b""


def test_bytes_that_trickle_in_buy_no_time(serve):
    running = serve(head_seconds=0.2)

    with connect(running) as one:
        one.settimeout(0.02)
        assert trickled(one, POST, *itertools.repeat(b"x-filler: a\r\n", 10_000)) == b""


def trickled(one, *pieces):
    """What comes back at last, while pieces are sent; nothing if the connection is closed on us."""
    for piece in pieces:
        try:
            one.sendall(piece)
            return one.recv(4096)
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("the connection stayed open")


def test_a_body_that_stalls_is_told_so_and_costs_its_connection(serve, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 600.0)
    running = serve(body_seconds=0.2)

    with connect(running) as one:
        one.sendall(POST + b"content-type: application/json\r\ncontent-length: 500\r\n\r\n{")
        answer = b"".join(iter(lambda: one.recv(4096), b""))

    assert answer.startswith(b"HTTP/1.1 408")
    assert running.front.received == []


def test_a_body_that_nobody_reads_costs_its_connection_too(serve, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.0)
    running = serve(body_seconds=0.2)

    with connect(running) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{")
        answer = b"".join(iter(lambda: one.recv(4096), b""))

    assert answer.endswith(b'{"status": "ok"}')


def test_every_answer_names_its_request(serve):
    running = serve()

    given = running.http.get("/v1", headers={"x-request-id": "mine-1"})
    odd = running.http.get("/nowhere", headers={"x-request-id": "no spaces\there"})

    assert given.headers["x-request-id"] == "mine-1"
    assert odd.headers["x-request-id"].startswith("req_")


def connect(running):
    host, port = running.server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def raw_request(running, text):
    with connect(running) as one:
        one.sendall(text.encode("latin-1"))
        return one.recv(65536)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a b " * 500_000}),
        ("/v1/completions", {"prompt": ["a", "a b " * 500_000]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 500_000}]}),
    ],
)
def test_a_prompt_that_can_never_fit_is_refused_before_it_is_encoded(serve, path, body):
    response = serve().http.post(path, json=body)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.json()["error"]["message"].startswith("The prompt has at least ")
