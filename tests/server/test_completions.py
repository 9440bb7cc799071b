"""Text completions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from phyla.request import Token, TokenLogprobs
from phyla.tokenizer import AbsentTokenizer
from phyla.tokenizer.fast import FastTokenizer
from phyla_server.logprobs import LogprobsShape, TextPosition

from tests.core.tokenizer import small_tokenizers
from tests.server.conftest import says


def test_a_completion_has_openais_shape(serve):
    answer = serve(" and then some.").openai.completions.create(model="m", prompt="First this", max_tokens=50)

    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == " and then some."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 0


def test_streamed_completions_add_up(serve):
    running = serve("naïve 🙂 text")

    chunks = list(running.openai.completions.create(model="m", prompt="a", stream=True))

    assert "".join(chunk.choices[0].text for chunk in chunks) == "naïve 🙂 text"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].object == "text_completion"


@pytest.mark.parametrize("prompt", ["", [], None, 5, [""], ["a", 5], [[]], [["a"]], {"a": 1}, [True], [1.5]])
def test_a_prompt_that_is_none_is_refused(serve, prompt):
    response = serve().complete(prompt=prompt)

    assert response.status_code == 400
    assert "prompt" in response.json()["error"]["message"]


def test_token_ids_are_a_prompt(serve, tokenizer):
    running = serve()
    ids = tokenizer.encode("Hello there")

    assert running.complete(prompt=ids).status_code == 200
    assert list(running.front.received[0].rendered.ids) == ids


@pytest.mark.parametrize("ids", [[10**9], [-1], [512]])
def test_foreign_token_ids_are_refused(serve, ids):
    assert serve().complete(prompt=ids).status_code == 400


def test_several_prompts_with_several_samples_are_numbered_in_order(serve, tokenizer):
    def script(request, sample):
        return tokenizer.encode(f"{request.rendered.text}{sample}")

    running = serve(script)

    whole = running.complete(prompt=["a", "b"], n=2).json()["choices"]
    streamed = [""] * 4
    for chunk in running.openai.completions.create(model="m", prompt=["a", "b"], n=2, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text

    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]
    assert [choice["text"] for choice in whole] == streamed == ["a0", "a1", "b0", "b1"]


def test_echo_puts_the_prompt_in_front(serve, tokenizer):
    running = serve("!")

    assert running.complete(prompt="Hello", echo=True).json()["choices"][0]["text"] == "Hello!"
    assert running.complete(prompt=tokenizer.encode("Hello"), echo=True).json()["choices"][0]["text"] == "Hello!"
    streamed = running.openai.completions.create(model="m", prompt="Hello", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello!"


@pytest.mark.parametrize("body", [{"suffix": "end"}, {"echo": True, "logprobs": 1}, {"best_of": 3}])
def test_what_cannot_be_done_is_refused(serve, body):
    response = serve().complete(**body)

    assert response.status_code == 400
    assert next(iter(body)) in response.json()["error"]["message"]


def test_the_peers_logprobs_are_those_of_chat(serve):
    running = serve(compat="mlx-lm")

    entry = running.complete(top_logprobs=2, max_tokens=2).json()["choices"][0]["logprobs"]["content"][0]

    assert set(entry) == {"id", "token", "logprob", "top_logprobs"}
    assert running.complete(top_logprobs=12, max_tokens=2).status_code == 400


def test_logprobs_have_the_older_shape_whole_and_streamed(serve):
    running = serve("Hello there, friend.")

    whole = running.openai.completions.create(model="m", prompt="a", logprobs=2).choices[0].logprobs
    chunks = [
        chunk.choices[0].logprobs
        for chunk in running.openai.completions.create(model="m", prompt="a", logprobs=2, stream=True)
        if chunk.choices[0].logprobs
    ]

    assert "".join(whole.tokens) == "Hello there, friend."
    assert whole.token_logprobs[0] == -0.25
    assert len(whole.top_logprobs[0]) == 2
    assert whole.text_offset[0] == 0
    assert whole.text_offset == sorted(whole.text_offset)
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
    assert [offset for chunk in chunks for offset in chunk.text_offset] == whole.text_offset


BYTES = FastTokenizer(small_tokenizers.byte_level().to_str(), {"eos_token": "<|im_end|>"})
PIECES = "🙂 ok"


def test_pieces_of_characters_are_told_apart_by_their_bytes(serve):
    running = serve(says(BYTES, PIECES), speaks=BYTES)
    raw = [BYTES.token_bytes(token_id) for token_id in BYTES.encode(PIECES)]

    told = running.openai.completions.create(model="m", prompt="a", logprobs=5).choices[0].logprobs

    assert told.tokens[:4] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x99", "bytes:\\x82"]
    assert "".join(told.tokens[4:]) == " ok"
    # Neighbours in the vocabulary are pieces too: none is lost, none takes another's place.
    assert [len(top) for top in told.top_logprobs] == [5] * len(raw)
    assert [top[token] for top, token in zip(told.top_logprobs, told.tokens, strict=True)] == told.token_logprobs
    assert told.text_offset == [
        len(b"".join(raw[:index]).decode("utf-8", errors="ignore")) for index in range(len(raw))
    ]


def test_tokens_are_told_by_id_to_those_who_ask(serve):
    running = serve(says(BYTES, PIECES), speaks=BYTES)
    ids = [f"token_id:{token_id}" for token_id in BYTES.encode(PIECES)]
    asked = {"return_tokens_as_token_ids": True}

    text = running.complete(logprobs=2, **asked).json()["choices"][0]
    chat = running.chat(logprobs=True, top_logprobs=1, **asked).json()["choices"][0]

    assert text["logprobs"]["tokens"] == ids
    assert next(iter(text["logprobs"]["top_logprobs"][0])) == ids[0]
    assert [entry["token"] for entry in chat["logprobs"]["content"]] == ids
    assert chat["logprobs"]["content"][0]["top_logprobs"][0]["token"] == ids[0]


def test_of_tokens_that_are_spelt_alike_the_likeliest_is_told_and_the_chosen_one_always():
    spelt = {1: b"a", 2: b"a", 3: b"b", 4: b"c"}
    shape = LogprobsShape(SimpleNamespace(token_bytes=spelt.get), num_top=3)
    token = Token("r", 4, "c", logprobs=TokenLogprobs(-9.0, ((1, -0.1), (2, -2.0), (3, -3.0))))

    told = shape.text([token], TextPosition())

    assert told["top_logprobs"] == [{"a": -0.1, "b": -3.0, "c": -9.0}]


def test_reasoning_and_tools_are_not_read_out_of_plain_text(serve):
    assert serve("<think>x</think>y").complete().json()["choices"][0]["text"] == "<think>x</think>y"


@pytest.mark.parametrize("stop", ["there", ["zzz", "there", "friend"]])
def test_text_from_a_stop_string_on_is_never_sent(serve, stop):
    running = serve("Hello there, friend.")

    whole = running.complete(stop=stop).json()["choices"][0]
    streamed = list(running.openai.completions.create(model="m", prompt="a", stop=stop, stream=True))

    assert whole["text"] == "".join(chunk.choices[0].text for chunk in streamed) == "Hello "
    assert whole["finish_reason"] == streamed[-1].choices[0].finish_reason == "stop"


def test_the_beginning_of_a_stop_string_is_delivered_once_if_the_end_never_comes(serve):
    running = serve("I say EN")

    streamed = running.openai.completions.create(model="m", prompt="a", stop="END", stream=True)

    assert "".join(chunk.choices[0].text for chunk in streamed) == "I say EN"


def test_without_a_tokenizer_the_answer_is_token_ids(serve):
    running = serve(lambda request, sample: [7, 300, 9], speaks=AbsentTokenizer("tiny", 512, "it has none."))

    whole = running.complete(prompt=[5, 6], logprobs=1).json()["choices"][0]
    chunks = [chunk.choices[0] for chunk in running.openai.completions.create(model="m", prompt=[5, 6], stream=True)]

    assert (whole["text"], whole["token_ids"]) == ("", [7, 300, 9])
    assert whole["logprobs"]["tokens"] == ["token_id:7", "token_id:300", "token_id:9"]
    assert [token for chunk in chunks for token in chunk.model_extra["token_ids"]] == [7, 300, 9]


@pytest.mark.parametrize("body", [{"prompt": "text"}, {"prompt": [5], "echo": True}])
def test_without_a_tokenizer_text_is_refused(serve, body):
    response = serve(speaks=AbsentTokenizer("tiny", 512, "it has none."), script=lambda *_: [7]).complete(**body)

    assert response.status_code == 400
    assert "tiny can't read or write text: it has none." in response.json()["error"]["message"]
