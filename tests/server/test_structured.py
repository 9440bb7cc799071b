"""Structured output over HTTP, by a real engine over a tiny model of random weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal

import httpx
import openai
import pytest
from phyla.draft.trial import Trials
from phyla.errors import ConstraintUntried
from phyla.library import load_with
from phyla.plugins import discover
from phyla.settings import flags_from_options, load_settings
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla_server.embedded import EmbeddedServer
from phyla_server.served import served_by
from pydantic import BaseModel

SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["color", "size"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Hello"}]


class Client:
    """Ways to talk to one server."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=300)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="any-key", max_retries=0, timeout=300)

    def chat(self, **body: Any) -> httpx.Response:
        body = {"messages": MESSAGES, "temperature": 1.0, "max_tokens": 200, **body}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 200, **body})

    def close(self) -> None:
        self.http.close()
        self.openai.close()


Serve = Callable[..., Client]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Servers by their flags; each is started once. Without a word on it they enforce with llguidance, which starts at
    once."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("structured") / "tiny-model", tiny_config("llama"))
    running: dict[str, Client] = {}
    with ExitStack() as stack:

        def start(env: Mapping[str, str] | None = None, **options: Any) -> Client:
            options = {"proposer": "llguidance", **options}
            key = json.dumps([env, options], sort_keys=True)
            if key not in running:
                manager = discover()
                flags = {**flags_from_options(options), "--port": 0}
                chosen = load_settings(manager.settings_sections(), flags=flags, env=env or {})
                model = stack.enter_context(load_with(str(folder), manager, chosen))
                server = stack.enter_context(EmbeddedServer(served_by(model, manager, chosen), chosen))
                client = running[key] = Client(server.url)
                stack.callback(client.close)
            return running[key]

        yield start


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve()


def content(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_a_schema_is_kept(serve, engine):
    response = serve(proposer=engine).chat(response_format=FORMAT, seed=1)
    value = json.loads(content(response))
    assert value["color"] in ("red", "green", "blue")
    assert 0 <= value["size"] <= 99
    assert response.json()["choices"][0]["finish_reason"] == "stop"


def test_an_answer_cut_by_its_cap_says_so(client):
    response = client.chat(response_format=FORMAT, max_tokens=3)
    assert response.json()["choices"][0]["finish_reason"] == "length"


def test_streamed_pieces_are_the_same_answer(client):
    whole = content(client.chat(response_format=FORMAT, seed=5))
    frames = client.chat(response_format=FORMAT, seed=5, stream=True).text.split("\n\n")
    chunks = [json.loads(frame[6:]) for frame in frames if frame.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole


@pytest.mark.parametrize("seed", range(5))
def test_json_object_gives_an_object(client, seed):
    response = client.chat(response_format={"type": "json_object"}, seed=seed, max_tokens=1000)
    assert isinstance(json.loads(content(response)), dict)


@pytest.mark.parametrize("field", ["guided_json", "structured_outputs"])
def test_a_schema_may_come_bare(client, field):
    assert set(json.loads(content(client.chat(**{field: SCHEMA})))) == {"color", "size"}


def test_regex_choice_and_grammar_are_kept(client):
    assert re.fullmatch(r"\d{3}-[ab]+x", content(client.chat(guided_regex=r"\d{3}-[ab]{1,5}x")))
    assert content(client.chat(guided_choice=["yes", "no"])) in ("yes", "no")
    assert re.fullmatch("a[0-9]b", content(client.chat(guided_grammar='root ::= "a" [0-9] "b"')))
    assert content(client.chat(structured_outputs={"choice": ["one", "two"]})) in ("one", "two")


def test_text_completions_take_the_same_fields(client):
    text = client.complete(guided_regex="[xyz]{4}").json()["choices"][0]["text"]
    assert re.fullmatch("[xyz]{4}", text)


def test_several_samples_are_bound_each(client):
    choices = client.chat(response_format=FORMAT, n=3).json()["choices"]
    assert [set(json.loads(one["message"]["content"])) for one in choices] == [{"color", "size"}] * 3


def test_the_first_field_in_order_wins(client):
    assert content(client.chat(guided_choice=["no"], guided_grammar='root ::= "yes"')) == "yes"


def test_the_official_client_parses_its_models(client):
    class Thing(BaseModel):
        color: Literal["red", "green"]
        flag: bool

    answer = client.openai.chat.completions.parse(
        model="m", messages=MESSAGES, response_format=Thing, temperature=1.0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Thing)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"enum": []}, "'enum'"),
        (False, "false"),
        ({"$ref": "https://example.org/s"}, "'$ref'"),
        ({"type": "string", "pattern": "(?=a)"}, "'pattern' at #: "),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "'allOf' at #: "),
    ],
)
def test_what_cant_be_enforced_is_a_400_that_names_it(client, schema, named):
    response = client.chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert named in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}},
        {"guided_grammar": "root ::= ("},
        {"guided_regex": "("},
        {"guided_choice": []},
        {"guided_choice": ["a", 1]},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"guided_json": "{"},
    ],
)
def test_what_is_malformed_is_a_400(client, body):
    assert client.chat(**body).status_code == 400
    assert client.complete(**body).status_code == 400


def test_type_text_is_no_constraint(client):
    assert client.chat(response_format={"type": "text"}, max_tokens=3).status_code == 200


def test_without_an_engine_a_constraint_is_refused(serve):
    response = serve(proposer="none").chat(response_format=FORMAT)
    assert response.status_code == 400
    assert "--proposer" in response.json()["error"]["message"]


@pytest.fixture
def untried(monkeypatch):
    def comes_to_no_end(self, prepare, spec):
        raise ConstraintUntried("Compiling it came to no end within 40 seconds.")

    monkeypatch.setattr(Trials, "run", comes_to_no_end)


def test_what_a_busy_machine_could_not_try_is_worth_another_attempt(client, untried):
    answers = [client.chat(guided_regex="[0-9]{3}x", max_tokens=4) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].headers["retry-after"] == "5"
    assert answers[0].json()["error"] == {
        "message": "guided_regex wasn't tried out: Compiling it came to no end within 40 seconds.",
        "type": "server_error",
        "param": "guided_regex",
        "code": "untried_constraint",
    }


def test_fallback_goes_on_without_what_could_not_be_tried(serve, untried):
    response = serve(structured_fallback="warn").chat(guided_regex="[0-9]{3}x", max_tokens=2)
    assert response.status_code == 200
    assert "came to no end" in response.headers["warning"]


def test_fallback_asks_in_words_and_warns(serve):
    client = serve(structured_fallback="warn")
    schema = {"type": "array", "uniqueItems": True}
    plain = client.chat(max_tokens=2)

    response = client.chat(guided_json=schema, max_tokens=2)

    assert response.status_code == 200
    assert "uniqueItems" in response.headers["warning"]
    assert response.headers["warning"].endswith("falling back to prompt injection")
    assert response.json()["usage"]["prompt_tokens"] > plain.json()["usage"]["prompt_tokens"]
    assert "warning" not in plain.headers


def test_a_reason_with_control_characters_is_a_header_all_the_same(serve):
    response = serve(structured_fallback="warn").chat(guided_grammar="\u0000", max_tokens=2)
    assert response.status_code == 200
    assert response.headers["warning"].startswith("grammar not enforced: ")


def test_what_can_be_enforced_is_enforced_under_fallback(serve):
    response = serve(structured_fallback="warn").chat(guided_choice=["yes", "no"])
    assert content(response) in ("yes", "no")
    assert "warning" not in response.headers


def test_the_kill_switch_implies_the_fallback(serve):
    client = serve(env={"PHYLA_GRAMMAR": "0"})
    response = client.chat(response_format=FORMAT, max_tokens=2)
    text = client.complete(guided_choice=["yes"], max_tokens=2, stream=True)
    assert response.headers["warning"].startswith("grammar not enforced: ")
    assert text.headers["warning"].endswith("no prompt injection on /v1/completions")


def test_models_say_whether_structured_output_is_enforced(serve, client):
    assert client.http.get("/v1/models").json()["data"][0]["structured_output"] is True
    assert serve(proposer="none").http.get("/v1/models").json()["data"][0]["structured_output"] is False


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] = PARAMETERS, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


@pytest.mark.parametrize("dialect", ["hermes", "qwen", "glm", "minicpm"])
def test_a_required_call_is_made(serve, dialect):
    choice = serve(output_parser=dialect).chat(
        tools=[tool("weather"), tool("news")], tool_choice="required", max_tokens=2000, parallel_tool_calls=False
    )
    answer = choice.json()["choices"][0]
    [call] = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls"
    assert call["function"]["name"] in ("weather", "news")
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")


def test_a_named_call_is_made_once(serve):
    response = serve(output_parser="hermes").chat(
        tools=[tool("weather"), tool("news")],
        tool_choice={"type": "function", "function": {"name": "news"}},
        max_tokens=2000,
    )
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "news"


def test_a_call_cut_by_the_cap_says_so(serve):
    response = serve(output_parser="hermes").chat(tools=[tool("weather")], tool_choice="required", max_tokens=12)
    assert response.json()["choices"][0]["finish_reason"] == "length"


def test_streamed_calls_are_the_same(serve):
    client = serve(output_parser="qwen")
    body = {"tools": [tool("weather")], "tool_choice": "required", "seed": 3, "max_tokens": 2000}
    [whole] = client.chat(**body, parallel_tool_calls=False).json()["choices"][0]["message"]["tool_calls"]
    frames = client.chat(**body, parallel_tool_calls=False, stream=True).text.split("\n\n")
    deltas = [json.loads(frame[6:])["choices"][0]["delta"] for frame in frames if frame.startswith("data: {")]
    pieces = [call["function"].get("arguments", "") for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(pieces) == whole["function"]["arguments"]


def test_a_strict_tool_leaves_the_text_around_calls_free(serve):
    response = serve(output_parser="hermes").chat(tools=[tool("weather", strict=True)], max_tokens=10)
    assert response.status_code == 200
    assert response.json()["choices"][0]["finish_reason"] == "length"


def test_strict_parameters_that_cant_be_kept_are_a_400(serve):
    listed = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    response = serve(output_parser="hermes").chat(tools=[tool("weather", listed, strict=True)])
    assert response.status_code == 400
    assert "'uniqueItems'" in response.json()["error"]["message"]


def test_a_tool_that_isnt_strict_is_called_as_well_as_can_be(serve):
    listed = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    response = serve(output_parser="hermes").chat(tools=[tool("weather", listed)], tool_choice="required", max_tokens=9)
    assert response.status_code == 200


def test_a_model_whose_calls_nobody_can_write_refuses_to_promise_one(serve):
    response = serve(output_parser="plain").chat(tools=[tool("weather")], tool_choice="required")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


def test_a_response_format_leaves_room_for_calls(serve):
    response = serve(output_parser="hermes").chat(
        tools=[tool("weather")], response_format=FORMAT, max_tokens=2000, parallel_tool_calls=False
    )
    message = response.json()["choices"][0]["message"]
    said = message["content"] or message["tool_calls"][0]["function"]["arguments"]
    assert set(json.loads(said)) in ({"color", "size"}, {"city", "days"})


def test_the_official_clients_tool_helper_parses_arguments(serve):
    class Weather(BaseModel):
        city: Literal["Rome", "Oslo"]
        is_hot: bool

    answer = serve(output_parser="hermes").openai.chat.completions.parse(
        model="m",
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1.0,
        max_tokens=2000,
    )
    [call] = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


def test_fallback_asks_for_a_call_in_words(serve):
    client = serve(output_parser="hermes", structured_fallback="warn", proposer="none")
    response = client.chat(tools=[tool("weather")], tool_choice="required", max_tokens=3)
    assert response.status_code == 200
    assert response.headers["warning"].startswith("grammar not enforced: ")
