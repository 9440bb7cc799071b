"""Prompts, budgets and namespaces that a cache of prefixes gets wrong first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from phyla.engine.engine import Engine
from phyla.kv.prefix import PrefixNamespace
from phyla.request import MediaSpan, Rendered, Request, SamplingParams
from phyla.testing.engines import EventLog, Heard, a_request, toy_spec
from phyla.testing.reuse import prompt_cache, reusing
from phyla.testing.row_equality import alone

GREEDY = SamplingParams(ignore_eos=True)
PROMPT = tuple(3 + index * 7 % 200 for index in range(60))
NUM_TOKENS = 6
LAYERS = "SRFL"
SETTINGS: Mapping[str, int] = {"prefill_chunk": 16}


def asked(engine: Engine, log: EventLog, request: Request) -> Heard:
    engine.submit(request)
    return log.wait(request.request_id)


def cold(request: Request) -> list[int]:
    return alone(toy_spec(LAYERS, SETTINGS), [request])[request.request_id].ids


def cached(heard: Heard) -> int:
    return heard.finished.usage.num_cached_tokens


def test_a_budget_smaller_than_one_entry_serves_and_keeps_nothing() -> None:
    with reusing(toy_spec(LAYERS, SETTINGS), budget_bytes=100) as (engine, log, _):
        asked(engine, log, a_request("first", PROMPT, NUM_TOKENS, GREEDY))
        again = asked(engine, log, a_request("again", PROMPT, NUM_TOKENS, GREEDY))
        stats = prompt_cache(engine)
    assert cached(again) == 0
    assert (stats["entries"], stats["bytes"], stats["oversized"]) == (0, 0, 2)


def test_prompts_that_differ_at_the_first_token_share_nothing() -> None:
    other = a_request("other", (9, *PROMPT[1:]), NUM_TOKENS, GREEDY)
    with reusing(toy_spec(LAYERS, SETTINGS)) as (engine, log, _):
        asked(engine, log, a_request("first", PROMPT, NUM_TOKENS, GREEDY))
        heard = asked(engine, log, other)
    assert cached(heard) == 0
    assert heard.ids == cold(other)


def test_a_prompt_of_one_token_is_always_computed() -> None:
    with reusing(toy_spec(LAYERS, SETTINGS)) as (engine, log, _):
        first = asked(engine, log, a_request("first", PROMPT[:1], NUM_TOKENS, GREEDY))
        again = asked(engine, log, a_request("again", PROMPT[:1], NUM_TOKENS, GREEDY))
    assert (cached(again), again.ids) == (0, first.ids)


def test_a_template_that_changes_between_turns_costs_what_comes_after_the_change() -> None:
    retained = 41
    changed = a_request("changed", (*PROMPT[:50], 5, 5, *PROMPT[50:]), NUM_TOKENS, GREEDY)
    with reusing(toy_spec(LAYERS, SETTINGS)) as (engine, log, _):
        asked(engine, log, Request("first", Rendered(PROMPT, stable_boundary=retained), GREEDY, NUM_TOKENS))
        heard = asked(engine, log, changed)
    assert cached(heard) == 48, "the last chunk edge before the change"
    assert heard.ids == cold(changed)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"owner": "one"}, {"owner": "two"}),
        ({"adapters": ("a",)}, {"adapters": ()}),
        ({"adapters": ("a",)}, {"adapters": ("b",)}),
        ({"adapters": ("a", "b")}, {"adapters": ("b", "a")}),
    ],
    ids=["two keys", "adapter off", "another adapter", "another order of adapters"],
)
def test_nothing_is_served_across(first: dict[str, tuple[str, ...]], second: dict[str, tuple[str, ...]]) -> None:
    with reusing(toy_spec(LAYERS, SETTINGS), adapter_identity=lambda name: f"hash of {name}") as (engine, log, _):
        asked(engine, log, replace(a_request("first", PROMPT, NUM_TOKENS, GREEDY), **first))  # type: ignore[arg-type]
        other = asked(engine, log, replace(a_request("other", PROMPT, NUM_TOKENS, GREEDY), **second))  # type: ignore[arg-type]
        same = asked(engine, log, replace(a_request("same", PROMPT, NUM_TOKENS, GREEDY), **first))  # type: ignore[arg-type]
    assert (cached(other), cached(same)) == (0, len(PROMPT) - 1)


def test_an_adapter_whose_content_changed_under_its_name_starts_anew() -> None:
    content = ["one"]
    with reusing(toy_spec(LAYERS, SETTINGS), adapter_identity=lambda name: f"{name} {content[0]}") as (engine, log, _):
        asked(engine, log, a_request("first", PROMPT, NUM_TOKENS, GREEDY, adapters=("a",)))
        content[0] = "two"
        other = asked(engine, log, a_request("other", PROMPT, NUM_TOKENS, GREEDY, adapters=("a",)))
    assert cached(other) == 0


def test_an_adapter_that_nobody_has_fails_its_request_alone() -> None:
    with reusing(toy_spec(LAYERS, SETTINGS)) as (engine, log, _):
        failed = asked(engine, log, a_request("adapted", PROMPT, NUM_TOKENS, GREEDY, adapters=("a",)))
        fine = asked(engine, log, a_request("plain", PROMPT, NUM_TOKENS, GREEDY))
    assert failed.failed.kind == "UsageError"
    assert "'a'" in failed.failed.error
    assert len(fine.ids) == NUM_TOKENS


def test_another_picture_behind_the_same_placeholders_starts_anew() -> None:
    def about(name: str, content_hash: str) -> Request:
        span = MediaSpan(start=4, num_tokens=10, content_hash=content_hash, payload=b"", kind="image")
        return Request(name, Rendered(PROMPT, media=(span,)), GREEDY, NUM_TOKENS)

    with reusing(toy_spec(LAYERS, SETTINGS)) as (engine, log, _):
        asked(engine, log, about("first", "cat"))
        other, same = asked(engine, log, about("other", "dog")), asked(engine, log, about("same", "cat"))
    assert (cached(other), cached(same)) == (0, len(PROMPT) - 1)


def test_a_switch_of_the_scheme_is_another_namespace() -> None:
    one = PrefixNamespace("model", "plain", "identity")
    others = [replace(one, kv_scheme="affine:4"), replace(one, model="other"), replace(one, identity="other")]
    assert len({one.digest(), *(other.digest() for other in others)}) == 4


@pytest.mark.parametrize("layers", ["FF", "FS", "FR", "FL"])
def test_clearing_while_a_row_goes_on_from_a_hit_changes_nothing_for_it(layers: str) -> None:
    turn = a_request("turn", (*PROMPT, 9, 8, 7), 30, GREEDY)
    with reusing(toy_spec(layers, SETTINGS)) as (engine, log, _):
        asked(engine, log, a_request("first", PROMPT, NUM_TOKENS, GREEDY))
        engine.submit(turn)
        log.wait_for_tokens("turn", 1)
        engine.clear_prefix_cache()
        heard = log.wait("turn")
    assert cached(heard) >= len(PROMPT) - 1
    assert heard.ids == alone(toy_spec(layers, SETTINGS), [turn])["turn"].ids


@pytest.mark.parametrize("layers", ["FF", "FS", "FR", "FL"])
def test_what_is_computed_after_a_hit_has_the_bits_it_has_without(layers: str) -> None:
    """At equal geometry: the hit ends where a chunk of the whole prompt ends too."""
    wanted = replace(GREEDY, num_logprobs=5)
    turn = a_request("turn", PROMPT[:49], NUM_TOKENS, wanted)
    with reusing(toy_spec(layers, {**SETTINGS, "batch": 1})) as (engine, log, _):
        asked(engine, log, a_request("first", (*PROMPT[:32], 251), 1, GREEDY))
        heard = asked(engine, log, turn)
    expected = alone(toy_spec(layers, {**SETTINGS, "batch": 1}), [turn])["turn"]
    assert cached(heard) == 32
    assert [token.logprobs for token in heard.tokens] == [token.logprobs for token in expected.tokens]
