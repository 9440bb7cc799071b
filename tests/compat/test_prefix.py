"""Requests that go on from computed prefixes, with everything else a request may ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from phyla.engine.engine import EngineSpec
from phyla.request import SamplingParams
from phyla.testing.engines import a_request, toy_spec
from phyla.testing.reuse import reusing
from phyla.testing.row_equality import alone

from tests.compat.matrix import cell

NUM_TOKENS = 10
PROMPT = tuple(3 + index * 7 % 200 for index in range(60))
GREEDY = SamplingParams(ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=11, ignore_eos=True)


def spec(layers: str, **settings: Any) -> EngineSpec:
    return toy_spec(layers, {"prefill_chunk": 16, **settings})


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param("FF", marks=cell("prefix", "full layers")),
        pytest.param("SS", marks=cell("prefix", "sliding layers")),
        pytest.param("RR", marks=cell("prefix", "recurrent layers")),
        pytest.param("LL", marks=cell("prefix", "latent layers")),
    ],
)
def test_the_next_turn_reads_only_what_is_new(layers: str) -> None:
    with reusing(spec(layers)) as (engine, log, seen):
        engine.submit(a_request("first", PROMPT, NUM_TOKENS, GREEDY))
        prompt = (*PROMPT, *log.wait("first").ids, 9, 8, 7)
        seen.steps.clear()
        turn = a_request("turn", prompt, NUM_TOKENS, GREEDY)
        engine.submit(turn)
        heard = log.wait("turn")
    # The last token of an answer is never computed, so it counts as new.
    assert heard.finished.usage.num_cached_tokens == len(prompt) - 4
    assert seen.num_tokens == 4 + NUM_TOKENS - 1
    assert heard.ids == alone(spec(layers), [turn])["turn"].ids


@cell("prefix", "batch")
def test_rows_of_one_batch_reuse_each_their_own() -> None:
    prompts = [PROMPT, tuple(token_id + 1 for token_id in PROMPT)]
    turns = [a_request(f"turn-{index}", (*one, 9, 8, 7), NUM_TOKENS, GREEDY) for index, one in enumerate(prompts)]
    with reusing(spec("FSRL", batch=4)) as (engine, log, _):
        for index, prompt in enumerate(prompts):
            engine.submit(a_request(f"first-{index}", prompt, NUM_TOKENS, GREEDY))
        for index in range(2):
            log.wait(f"first-{index}")
        for turn in turns:
            engine.submit(turn)
        heard = {turn.request_id: log.wait(turn.request_id) for turn in turns}
    expected = alone(spec("FSRL", batch=1), turns)
    assert [one.finished.usage.num_cached_tokens for one in heard.values()] == [len(PROMPT) - 1] * 2
    assert {name: one.ids for name, one in heard.items()} == {name: one.ids for name, one in expected.items()}


@cell("prefix", "seed")
def test_a_seed_draws_the_same_from_a_cached_prompt() -> None:
    with reusing(spec("FSRL")) as (engine, log, _):
        engine.submit(a_request("cold", PROMPT, NUM_TOKENS, SAMPLED))
        cold = log.wait("cold")
        engine.submit(a_request("warm", PROMPT, NUM_TOKENS, SAMPLED))
        warm = log.wait("warm")
    assert warm.finished.usage.num_cached_tokens == len(PROMPT) - 1
    assert warm.ids == cold.ids


@cell("prefix", "logprobs")
def test_logprobs_from_a_cached_prompt_are_the_same() -> None:
    wanted = replace(GREEDY, num_logprobs=3)
    with reusing(spec("FSRL")) as (engine, log, _):
        engine.submit(a_request("cold", PROMPT, NUM_TOKENS, wanted))
        cold = log.wait("cold")
        engine.submit(a_request("warm", PROMPT, NUM_TOKENS, wanted))
        warm = log.wait("warm")
    assert warm.finished.usage.num_cached_tokens == len(PROMPT) - 1
    assert [token.logprobs for token in warm.tokens] == [token.logprobs for token in cold.tokens]


@cell("prefix", "cancel")
def test_a_cancelled_donor_is_reused_up_to_where_it_got() -> None:
    with reusing(spec("FSRL")) as (engine, log, _):
        engine.submit(a_request("donor", PROMPT, 400, GREEDY))
        log.wait_for_tokens("donor", 2)
        engine.cancel("donor")
        log.wait("donor")
        again = a_request("again", PROMPT, NUM_TOKENS, GREEDY)
        engine.submit(again)
        heard = log.wait("again")
    assert heard.finished.usage.num_cached_tokens == len(PROMPT) - 1
    assert heard.ids == alone(spec("FSRL"), [again])["again"].ids
