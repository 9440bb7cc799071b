"""Streams: what is sent when, and what happens when somebody goes away."""

from __future__ import annotations

import json
import logging
import threading
import time

import httpx
import pytest
from phyla.errors import ConstraintError, GenerationFailed
from phyla.output import OutputParserFactory

PATIENCE_SECONDS = 20


def frames_of(response):
    lines = [line for line in response.text.split("\n\n") if line]
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def gated(tokenizer, text, gate, before=1):
    """Says `before` tokens, then nothing until the gate opens, then the rest."""
    ids = tokenizer.encode(text)

    def script(request, sample):
        yield from ids[:before]
        while not gate.is_set():
            yield None
        yield from ids[before:]

    return script


def streaming(running, path="/v1/chat/completions", **body):
    return running.http.stream(
        "POST", path, json={"messages": [{"role": "user", "content": "x"}], "prompt": "x", "stream": True, **body}
    )


def test_the_role_comes_before_the_first_token_is_made(serve, tokenizer):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello", gate, before=0))

    with streaming(running) as response:
        lines = response.iter_lines()
        first = next(lines)
        gate.set()
        list(lines)

    assert response.status_code == 200
    assert json.loads(first[6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_the_role_comes_before_a_sleeping_engine_is_woken(serve, monkeypatch):
    running, has_role, waited = serve(), threading.Event(), []
    wake = running.front.wake

    def wake_late():
        # On the event loop: nothing else is sent meanwhile.
        waited.append(has_role.wait(PATIENCE_SECONDS))
        wake()

    monkeypatch.setattr(running.front, "wake", wake_late)
    with streaming(running) as response:
        lines = response.iter_lines()
        next(lines)
        has_role.set()
        rest = [line for line in lines if line]

    assert waited == [True]
    assert rest[-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_says_how_long_its_request_took_to_prepare(serve, stream):
    response = serve().chat(stream=stream)

    name, milliseconds = response.headers["server-timing"].split(";dur=")
    assert name == "prepare"
    assert 0 < float(milliseconds) < response.elapsed.total_seconds() * 1e3


def test_a_token_is_sent_before_the_next_is_made(serve, tokenizer):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello there", gate))

    with streaming(running) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        content = json.loads(next(lines)[6:])["choices"][0]["delta"]["content"]
        gate.set()
        response.close()

    assert "Hello there".startswith(content)
    assert content


@pytest.mark.parametrize("before", [0, 1])
def test_silence_in_prefill_and_decode_is_filled_with_comments(serve, tokenizer, before):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello there", gate, before), keepalive_seconds=0.05)

    with streaming(running) as response:
        lines = iter(response.iter_lines())
        comment = next(line for line in lines if line.startswith(":"))
        gate.set()
        rest = [line for line in lines if line]

    assert comment == ": keepalive"
    assert rest[-1] == "data: [DONE]"


def test_silence_is_filled_while_tokens_come_but_their_text_is_held_back(serve, tokenizer):
    enough = threading.Event()
    # A call whose name comes last: nothing of it can be sent before the name is known.
    beginning = tokenizer.encode('<tool_call>{"arguments": {"a": "')
    filler = tokenizer.encode("x")[0]
    tools = [{"type": "function", "function": {"name": "f"}}]

    def script(request, sample):
        yield from beginning
        while not enough.is_set():
            yield filler

    running = serve(script, keepalive_seconds=0.05, parser="hermes", front={"step_seconds": 0.001})

    with streaming(running, tools=tools) as response:
        lines = iter(response.iter_lines())
        comment = next(line for line in lines if line.startswith(":"))
        enough.set()
        rest = [line for line in lines if line]

    assert comment == ": keepalive"
    assert rest[-1] == "data: [DONE]"


def test_a_failure_after_opening_is_one_error_frame_and_done(serve, tokenizer):
    def script(request, sample):
        yield from tokenizer.encode("Hello")
        raise GenerationFailed("it broke")

    frames = frames_of(serve(script).chat(stream=True))

    assert frames[-1] == "[DONE]"
    assert json.loads(frames[-2]) == {"error": {"message": "it broke", "type": "server_error"}}
    assert sum('"error"' in frame for frame in frames) == 1


@pytest.mark.parametrize(("error", "status"), [(GenerationFailed("it broke"), 500), (ConstraintError("no"), 400)])
def test_a_failure_of_a_whole_answer_is_a_status(serve, error, status):
    def script(request, sample):
        yield None
        raise error

    response = serve(script).chat()

    assert response.status_code == status
    assert response.json()["error"]["message"] == str(error)


class BrokenParser:
    def feed(self, text, special=False):
        raise ZeroDivisionError("secret")

    def finish(self, is_cut=False):
        return []


def refuse(context):
    raise ZeroDivisionError("secret")


def broken(create):
    return {"parser": "broken", "parsers": [OutputParserFactory(name="broken", create=create)]}


def test_a_parser_that_raises_ends_its_stream_in_the_protocols_form(serve):
    running = serve(**broken(lambda context: BrokenParser()))

    frames = frames_of(running.chat(stream=True))

    assert frames[-1] == "[DONE]"
    assert json.loads(frames[-2])["error"]["type"] == "server_error"
    assert "secret" not in frames[-2]
    assert running.front.wait_until_idle()


@pytest.mark.parametrize(
    ("create", "raised_in"), [(refuse, "in refuse"), (lambda context: BrokenParser(), "in feed")], ids=["made", "fed"]
)
def test_a_parser_that_raises_is_a_status_of_a_whole_answer_and_a_stack_in_the_log(serve, caplog, create, raised_in):
    running = serve(**broken(create))

    response = running.chat()
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]

    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert running.front.wait_until_idle()
    assert len(logged) == 1
    assert response.headers["x-request-id"] in logged[0]
    assert logged[0].endswith(raised_in)
    assert "secret" not in logged[0]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_submitted_if_no_parser_can_be_made(serve, stream):
    running = serve(**broken(refuse))

    assert running.chat(stream=stream).status_code == 500
    assert running.front.received == []


def test_one_request_that_fails_leaves_the_others_alone(serve, tokenizer):
    def script(request, sample):
        if request.rendered.text == "bad":
            raise GenerationFailed("it broke")
        return tokenizer.encode("fine")

    running = serve(script)

    assert running.complete(prompt="bad").status_code == 500
    assert running.complete(prompt="good").json()["choices"][0]["text"] == "fine"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_seat(serve, tokenizer, stream):
    def forever(request, sample):
        while True:
            yield tokenizer.encode("x")[0]

    running = serve(forever, front={"num_seats": 1})

    for _ in range(3):
        with httpx.Client(base_url=running.server.url, timeout=0.3) as client:
            leave_early(client, stream)
        assert running.front.wait_until_idle(PATIENCE_SECONDS)


def test_a_queued_client_that_leaves_gives_its_place_away(serve, tokenizer):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello", gate), front={"num_seats": 1, "max_waiting": 1})

    with streaming(running) as first:
        lines = first.iter_lines()
        next(lines)
        with httpx.Client(base_url=running.server.url, timeout=0.3) as client:
            leave_early(client, stream=False)
        gate.set()
        list(lines)

    assert running.front.wait_until_idle(PATIENCE_SECONDS)
    assert running.chat().status_code == 200


def test_a_full_queue_is_429_before_a_stream_opens(serve, tokenizer):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello", gate), front={"num_seats": 1, "max_waiting": 1})

    with streaming(running) as first, streaming(running) as second:
        lines, more = first.iter_lines(), second.iter_lines()
        next(lines), next(more)
        third = running.chat(stream=True)
        gate.set()
        list(lines), list(more)

    assert third.status_code == 429
    assert third.json()["error"]["type"] == "resource_admission"
    assert third.json()["error"]["code"] == "queue_full"


def test_a_batch_of_prompts_is_taken_whole_or_not_at_all(serve, tokenizer):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello", gate, before=0), front={"num_seats": 1, "max_waiting": 2})

    refused = running.complete(prompt=["a", "b", "c", "d", "e", "f"])
    gate.set()

    assert refused.status_code == 429
    assert running.front.wait_until_idle(PATIENCE_SECONDS)


def test_samples_are_streamed_side_by_side(serve, tokenizer):
    def script(request, sample):
        return tokenizer.encode(f"sample {sample}")

    running = serve(script)
    question = [{"role": "user", "content": "x"}]

    whole = running.openai.chat.completions.create(model="m", messages=question, n=3)
    texts = ["", "", ""]
    for chunk in running.openai.chat.completions.create(model="m", messages=question, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

    assert [choice.message.content for choice in whole.choices] == ["sample 0", "sample 1", "sample 2"] == texts
    assert whole.usage.completion_tokens > whole.usage.prompt_tokens / 10


@pytest.mark.parametrize("text", ["family 👨‍👩‍👧‍👦 é e\u0301 你好", "a\n\nb\r\nc\u2028d", '"quotes" \\ \x00 \x7f'])
def test_text_arrives_as_it_was_said(serve, text):
    running = serve(text)

    whole = running.chat().json()["choices"][0]["message"]["content"]
    chunks = [json.loads(frame) for frame in frames_of(running.chat(stream=True))[:-1]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]

    assert whole == "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_usage_comes_apart_if_asked_for(serve):
    running = serve()

    apart = [json.loads(f) for f in frames_of(running.chat(stream=True, stream_options={"include_usage": True}))[:-1]]
    riding = [json.loads(f) for f in frames_of(running.chat(stream=True, stream_options={"include_usage": False}))[:-1]]

    assert apart[-1]["choices"] == []
    assert apart[-1]["usage"]["total_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in apart[:-1])
    assert riding[-1]["choices"][0]["finish_reason"] == "stop"
    assert riding[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_logprobs_have_openais_shape_whole_and_streamed(serve):
    running = serve("Hello there, friend.")
    question = [{"role": "user", "content": "x"}]
    asked = {"model": "m", "messages": question, "logprobs": True, "top_logprobs": 2}

    whole = running.openai.chat.completions.create(**asked).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in running.openai.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]

    assert "".join(entry.token for entry in whole) == "Hello there, friend."
    assert bytes(whole[0].bytes).decode() == whole[0].token
    assert [len(entry.top_logprobs) for entry in whole] == [2] * len(whole)
    assert whole[0].top_logprobs[0].logprob == whole[0].logprob == -0.25
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in whole]


def test_the_peers_logprobs_are_there_for_those_who_ask(serve):
    running = serve(compat="mlx-lm")

    entry = running.chat(top_logprobs=2).json()["choices"][0]["logprobs"]["content"][0]

    assert set(entry) == {"id", "token", "logprob", "top_logprobs"}
    assert running.chat(top_logprobs=12).status_code == 400


def test_without_asking_there_are_no_logprobs(serve):
    assert serve().chat(top_logprobs=-1).json()["choices"][0]["logprobs"] is None


def test_a_dead_engine_ends_streams_with_its_reason_and_the_server_with_a_status(serve, tokenizer, lasting_grace):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello", gate))

    with streaming(running) as response:
        lines = response.iter_lines()
        next(lines)
        running.front.die("the worker crashed")
        rest = [line for line in lines if line]
    health, chat = running.http.get("/health"), running.chat()
    running.server.stop()

    assert "the worker crashed" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert health.status_code == 503
    assert health.text == '{"status": "unavailable"}'
    assert chat.status_code == 503
    assert "the worker crashed" in chat.json()["error"]["message"]
    assert running.server.exit_code == 1


def test_stopping_lets_running_streams_end(serve, tokenizer):
    gate = threading.Event()
    running = serve(gated(tokenizer, "Hello there", gate))

    with streaming(running) as response:
        lines = response.iter_lines()
        next(lines)
        stopper = threading.Thread(target=running.server.stop)
        stopper.start()
        gate.set()
        rest = [line for line in lines if line]
    stopper.join()

    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"stop"' in rest[-2]
    assert running.server.exit_code == 0


def leave_early(client, stream):
    """Ask, listen for a moment, and hang up."""
    body = {"messages": [{"role": "user", "content": "x"}], "stream": stream}
    deadline = time.monotonic() + 0.3
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            for _ in response.iter_lines():
                if time.monotonic() > deadline:
                    return
    except httpx.TimeoutException:
        return
