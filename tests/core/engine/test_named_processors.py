"""Processors of plugins in the engine: each sees and hurts its own row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from phyla.engine.engine import EngineSpec
from phyla.request import Request, SamplingParams
from phyla.sampling.declaration import NamedSampler
from phyla.testing.engines import Heard, a_request, running, toy_spec
from phyla.testing.row_equality import alone

PROMPT = tuple(range(3, 20))
NUM_TOKENS = 8
FORCED = 42


def only_forced(history: Sequence[int], logits: mx.array) -> mx.array:
    return mx.where(mx.arange(logits.shape[-1]) == FORCED, logits, -mx.inf)


def raises(history: Sequence[int], logits: mx.array) -> mx.array:
    raise ValueError("words of a prompt")


def returns_nothing(history: Sequence[int], logits: mx.array) -> Any:
    return None


def fails_to_begin(request: Request) -> Any:
    raise ValueError("words of a prompt")


def spec() -> EngineSpec:
    named = {"force": only_forced, "raises": raises, "returns_nothing": returns_nothing}
    samplers = [
        *(NamedSampler(name, "processor", lambda request, one=one: one) for name, one in named.items()),  # type: ignore[misc]
        NamedSampler("fails_to_begin", "processor", fails_to_begin),
    ]
    return replace(toy_spec("FR"), samplers=samplers)


def plain(name: str) -> Request:
    return a_request(name, PROMPT, NUM_TOKENS, SamplingParams(ignore_eos=True))


def processed(name: str, processor: str) -> Request:
    return a_request(name, PROMPT, NUM_TOKENS, SamplingParams(ignore_eos=True, processors=(processor,)))


def in_company(*requests: Request) -> list[Heard]:
    """A plain row runs already when the others join."""
    with running(spec()) as (engine, log):
        engine.submit(requests[0])
        log.wait_for_tokens(requests[0].request_id, 1)
        for request in requests[1:]:
            engine.submit(request)
        return [log.wait(request.request_id) for request in requests]


def test_a_processor_reaches_its_own_row_only() -> None:
    first, forced, last = in_company(plain("first"), processed("forced", "force"), plain("last"))
    expected = alone(spec(), [plain("alone")])["alone"].ids
    assert forced.ids == [FORCED] * NUM_TOKENS
    assert first.ids == last.ids == expected
    assert expected != forced.ids


@pytest.mark.parametrize("processor", ["raises", "returns_nothing", "fails_to_begin"])
def test_a_processor_that_fails_fails_its_own_request(processor: str, caplog: pytest.LogCaptureFixture) -> None:
    first, broken, last = in_company(plain("first"), processed("broken", processor), plain("last"))
    expected = alone(spec(), [plain("alone")])["alone"].ids
    assert broken.failed.kind == "GenerationFailed"
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition(":")[0] for line in logged] == ["Request broken failed"]
    assert "/phyla/sampling/" in logged[0]
    assert "words of a prompt" not in broken.failed.error + logged[0]
    assert first.ids == last.ids == expected


def test_a_processor_that_nobody_offers_is_refused_with_what_there_is() -> None:
    first, unknown = in_company(plain("first"), processed("unknown", "forces"))
    assert unknown.failed.kind == "RequestError"
    assert "'force'" in unknown.failed.error
    assert first.finished.reason == "length"
