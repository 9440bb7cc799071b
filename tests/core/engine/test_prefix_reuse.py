"""Prompts go on from what earlier ones computed, on every layer kind, and answer as if they had not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from phyla.engine.engine import Engine
from phyla.request import Rendered, Request, SamplingParams
from phyla.testing.engines import EventLog, Heard, a_request, running, toy_spec
from phyla.testing.reuse import Seen
from phyla.testing.reuse import reusing as reusing_spec

KINDS = ("FF", "FS", "FR", "FL", "SRFL")
PROMPT = tuple(3 + index * 7 % 200 for index in range(60))
CHUNK = 16
kinds = pytest.mark.parametrize("layers", KINDS)


@contextmanager
def reusing(layers: str, *, budget: int = 1 << 30, **settings: Any) -> Iterator[tuple[Engine, EventLog, Seen]]:
    """A toy engine with a prefix index, and what its forwards saw."""
    with reusing_spec(toy_spec(layers, {"prefill_chunk": CHUNK, **settings}), budget_bytes=budget) as running_one:
        yield running_one


def answered(
    engine: Engine, log: EventLog, request_id: str, ids: Sequence[int], max_tokens: int = 8, **fields: Any
) -> Heard:
    engine.submit(a_request(request_id, ids, max_tokens, **fields))
    return log.wait(request_id)


def answered_cold(layers: str, ids: Sequence[int], **fields: Any) -> Heard:
    with running(toy_spec(layers, {"prefill_chunk": CHUNK})) as (engine, log):
        return answered(engine, log, "cold", ids, **fields)


@kinds
def test_the_next_turn_computes_only_what_is_new(layers: str) -> None:
    with reusing(layers) as (engine, log, seen):
        first = answered(engine, log, "first", PROMPT)
        second_prompt = (*PROMPT, *first.ids, 9, 8, 7, 6)
        seen.steps.clear()
        second = answered(engine, log, "second", second_prompt, sampling=SamplingParams(ignore_eos=True))
    num_cached = second.finished.usage.num_cached_tokens
    assert num_cached >= len(PROMPT) + len(first.ids) - 1
    assert seen.num_tokens == len(second_prompt) - num_cached + 8 - 1
    assert second.ids == answered_cold(layers, second_prompt, sampling=SamplingParams(ignore_eos=True)).ids


@kinds
def test_an_exact_repeat_answers_the_same_and_reads_one_token(layers: str) -> None:
    unending = SamplingParams(ignore_eos=True)
    with reusing(layers) as (engine, log, seen):
        first = answered(engine, log, "first", PROMPT, sampling=unending)
        seen.steps.clear()
        again = answered(engine, log, "again", PROMPT, sampling=unending)
    assert again.ids == first.ids
    assert again.finished.usage.num_cached_tokens == len(PROMPT) - 1
    assert seen.steps == [1] * 8


@kinds
def test_a_stable_boundary_inside_a_chunk_is_gone_back_to(layers: str) -> None:
    stable = 41
    edited = (*PROMPT[:stable], 5, 5, 5, 5)
    with reusing(layers) as (engine, log, _):
        rendered = Rendered(PROMPT, stable_boundary=stable)
        engine.submit(Request("first", rendered, SamplingParams(), 8))
        log.wait("first")
        other = answered(engine, log, "other", edited)
    assert other.finished.usage.num_cached_tokens == stable
    assert other.ids == answered_cold(layers, edited).ids


@kinds
def test_a_beginning_that_two_prompts_share_serves_the_third(layers: str) -> None:
    shared = PROMPT[:30]
    prompts = [(*shared, start, start + 1, start + 2, start + 3) for start in (210, 220, 230)]
    with reusing(layers) as (engine, log, _):
        cached = [
            answered(engine, log, f"request {index}", prompt).finished.usage.num_cached_tokens
            for index, prompt in enumerate(prompts)
        ]
    assert cached[2] == 30


@kinds
def test_a_row_that_ended_in_company_is_found_when_it_comes_back_alone(layers: str) -> None:
    others = [tuple(start + index for index in range(20)) for start in (100, 130)]
    with reusing(layers) as (engine, log, _):
        for index, prompt in enumerate([PROMPT, *others]):
            engine.submit(a_request(f"request {index}", prompt, 12))
        heard = [log.wait(f"request {index}") for index in range(3)]
        back = answered(engine, log, "back", (*PROMPT, *heard[0].ids, 9))
    assert back.finished.usage.num_cached_tokens >= len(PROMPT) + 11


def test_another_owners_prompt_is_not_reused() -> None:
    with reusing("FF") as (engine, log, _):
        answered(engine, log, "first", PROMPT, owner="one")
        other = answered(engine, log, "other", PROMPT, owner="two")
    assert other.finished.usage.num_cached_tokens == 0


def test_a_request_may_skip_reuse() -> None:
    with reusing("FF") as (engine, log, _):
        answered(engine, log, "first", PROMPT)
        other = answered(engine, log, "other", PROMPT, skip_prefix_reuse=True)
    assert other.finished.usage.num_cached_tokens == 0


def test_clearing_forgets_and_says_what() -> None:
    with reusing("FF") as (engine, log, _):
        answered(engine, log, "first", PROMPT)
        dropped = engine.clear_prefix_cache()
        again = answered(engine, log, "again", PROMPT)
    assert dropped["entries"] == 1
    assert dropped["bytes"] > 0
    assert again.finished.usage.num_cached_tokens == 0


def test_sessions_are_closed_by_their_owner() -> None:
    with reusing("FF") as (engine, log, _):
        answered(engine, log, "first", PROMPT, session_id="chat", owner="one")
        closed = [
            engine.close_session("chat"),
            engine.close_session("chat", "one"),
            engine.close_session("chat", "one"),
        ]
    assert closed == [False, True, False]


def test_stats_count_hits_misses_and_bytes() -> None:
    with reusing("FS") as (engine, log, _):
        answered(engine, log, "first", PROMPT)
        answered(engine, log, "again", PROMPT)
        stats = engine.stats()["prompt_cache"]
    assert (stats["hits"], stats["misses"], stats["hit_tokens"]) == (1, 1, len(PROMPT) - 1)
    assert stats["bytes"] > 0
    assert stats["boundaries"] > 0


def test_without_a_budget_nothing_is_kept() -> None:
    with reusing("FF", budget=0) as (engine, log, _):
        answered(engine, log, "first", PROMPT)
        again = answered(engine, log, "again", PROMPT)
        stats = engine.stats()["prompt_cache"]
    assert again.finished.usage.num_cached_tokens == 0
    assert stats["entries"] == 0


def test_a_cancelled_donor_leaves_only_whole_chunks() -> None:
    long_prompt = tuple(3 + index * 11 % 200 for index in range(400))
    with reusing("FR") as (engine, log, _):
        engine.submit(a_request("donor", long_prompt, 400))
        log.wait_for_tokens("donor", 2)
        engine.cancel("donor")
        log.wait("donor")
        again = answered(engine, log, "again", long_prompt)
    assert again.ids == answered_cold("FR", long_prompt).ids


@kinds
def test_samples_of_one_prompt_share_what_was_cached(layers: str) -> None:
    with reusing(layers) as (engine, log, _):
        answered(engine, log, "first", PROMPT)
        engine.submit(a_request("several", PROMPT, 6, num_samples=2))
        heard = [log.wait("several", sample) for sample in (0, 1)]
    assert heard[0].ids == heard[1].ids == answered_cold(layers, PROMPT, max_tokens=6).ids
