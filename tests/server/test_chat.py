"""Chat completions, through the official client where it has a say in the shape."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from phyla.testing.scripted.tokenizer import CharacterTokenizer


def test_an_answer_has_openais_shape(serve):
    answer = serve("Hello there, friend.").openai.chat.completions.create(
        model="whatever", messages=[{"role": "user", "content": "Hi"}]
    )

    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "phyla/scripted"
    assert answer.choices[0].message.content == "Hello there, friend."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_text_equals_the_whole_answer(serve):
    running = serve("naïve café 你好 🙂🚀, and more.")

    chunks = list(
        running.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True, stream_options={"include_usage": True}
        )
    )

    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "naïve café 你好 🙂🚀, and more."
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 3
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_finish_chunk_carries_usage_unless_it_comes_apart(serve):
    response = serve().chat(stream=True)

    frames = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["connection"] == "keep-alive"
    assert frames[-1] == "[DONE]"
    last = json.loads(frames[-2])
    assert last["choices"][0]["delta"] == {}
    assert last["usage"]["lane"] == "serial"


def test_reasoning_is_split_off_in_both_modes(serve):
    running = serve("<think>Let me see.</think>It is Paris.")

    whole = running.chat().json()["choices"][0]["message"]
    frames = [
        json.loads(line[6:]) for line in running.chat(stream=True).text.split("\n\n") if line.startswith("data: {")
    ]

    assert whole["content"] == "It is Paris."
    assert whole["reasoning"] == "Let me see."
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Let me see."
    assert "".join(delta.get("content", "") for delta in deltas) == "It is Paris."


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_quoted_answers_are_recognised_off_the_event_loop(serve, route):
    running, threads = serve(), []

    def recognise(request):
        threads.append(threading.current_thread().name)
        return replace(request, max_tokens=1)

    running.front.recognised = recognise
    response = getattr(running, route)()

    assert threads[0].startswith("phyla-prepare")
    assert response.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(("text", "num"), [("<think>abc</think>Yes", 10), ("Yes", 0), ("<think>abc", 10)])
def test_usage_counts_what_was_reasoning(serve, text, num):
    running = serve(text, speaks=CharacterTokenizer())
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    usage = running.openai.chat.completions.create(**question).usage
    *_, last = running.openai.chat.completions.create(**question, stream=True, stream_options={"include_usage": True})

    assert usage.completion_tokens_details.reasoning_tokens == num
    assert usage.completion_tokens == len(text)
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert last.usage == usage
