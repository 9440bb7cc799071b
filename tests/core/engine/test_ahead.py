"""Windows that are started before their tokens are known: the tokens of any other, whatever becomes of the rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from phyla.backend.strategy import Strategies, shipped_table
from phyla.draft.length import StepCosts
from phyla.engine import forwarding
from phyla.engine.drafting import Drafting
from phyla.engine.early_output import PostedReadouts
from phyla.engine.engine import Engine, EngineSpec
from phyla.engine.fast_route import FastRoute
from phyla.engine.late_input import DeferredInput, DeferredInputs
from phyla.engine.rounds import Rounds
from phyla.request import Request, SamplingParams
from phyla.sampling.sampler import Chosen
from phyla.testing.drafting import Script, ScriptedProvider
from phyla.testing.engines import CountedTime, a_request, running, toy_spec
from phyla.testing.family import random_tokens
from phyla.testing.row_equality import Joining, RowEqualityContract

FAST = FastRoute(Strategies(shipped_table("cpu")), compiled_decode="on", starts_ahead=True)
MOST_DRAFTS = 3


def as_before(history: Sequence[int], room: int) -> Sequence[int]:
    """What came after the last token when it came before; toys repeat themselves."""
    seen = [place for place, token in enumerate(history[:-1]) if token == history[-1]]
    return [*history[seen[-1] + 1 :][:room], *[0] * room][:room] if seen else [0] * room


def spec_of(layers: str, script: Script = as_before, *, is_lookup: bool = True, **changes: Any) -> EngineSpec:
    """An engine that drafts by this script and starts windows ahead."""
    spec = toy_spec(layers, **{"fast": FAST} | changes)
    loading = spec.load

    def load() -> Any:
        provider = ScriptedProvider(script, is_lookup=is_lookup)
        return replace(loading(), drafting=Drafting("scripted", provider, MOST_DRAFTS, is_adaptive=False))

    # By a clock of its own: which rounds meet a prefill then doesn't depend on how fast the machine is.
    return replace(spec, load=load, now=CountedTime())


def counts(engine: Engine) -> Mapping[str, int]:
    ahead: Mapping[str, int] = engine.stats()["fast_route"]["ahead"]
    return ahead


def alone(layers: str, requests: Sequence[Request]) -> list[list[int]]:
    """What plain decoding says to each."""
    with running(toy_spec(layers, {"batch": 1})) as (engine, log):
        for request in requests:
            engine.submit(request)
        return [log.wait(request.request_id).ids for request in requests]


def of_length(length: int, num_tokens: int, **sampling: Any) -> Request:
    params = SamplingParams(**{"ignore_eos": True} | sampling)
    return a_request(f"{length}", random_tokens(length, 200, seed=length), num_tokens, params)


class TestStartedAhead(RowEqualityContract):
    """Rows that come, go, are cancelled and sample in all sorts of ways."""

    group = "stacked"

    def spec(self, settings: Mapping[str, Any]) -> EngineSpec:
        return spec_of("SF", settings=settings)


@pytest.mark.parametrize("layers", ["FF", "SF", "RF"])
def test_rounds_are_started_ahead_where_windows_are_traced(layers: str) -> None:
    requests = [of_length(length, 40) for length in (5, 9, 30)]
    with running(spec_of(layers), requests) as (engine, log):
        heard = [log.wait(request.request_id).ids for request in requests]
        ahead = counts(engine)
    assert heard == alone(layers, requests)
    assert (ahead["started"] > 5) == ("R" not in layers)
    # None before a piece of another row's prompt, and none that an answer's last token would meet.
    assert (ahead["unused"], ahead["late"]) == (0, 0)


def test_windows_pass_the_ends_of_rings_and_of_bays() -> None:
    requests = [of_length(length, 60) for length in (2, 215, 250, 700)]
    with running(spec_of("SF"), requests) as (engine, log):
        heard = [log.wait(request.request_id).ids for request in requests]
        assert counts(engine)["started"] > 5
    assert heard == alone("SF", requests)


class Late(DeferredInput):
    """Every second one goes without what is posted."""

    def __init__(self, otherwise: Sequence[int], number: int) -> None:
        super().__init__(otherwise)
        self._is_late = number % 2 == 1

    def post(self, numbers: Sequence[int]) -> None:
        if not self._is_late:
            super().post(numbers)

    def was_late(self) -> bool:
        return self._is_late


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}, {"repetition_penalty": 1.3}])
def test_a_window_that_the_device_did_not_wait_for_is_computed_again(
    monkeypatch: pytest.MonkeyPatch, sampling: Mapping[str, Any]
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(DeferredInputs, "open", lambda self, otherwise: Late(otherwise, next(numbers)))
    requests = [of_length(length, 40, **sampling) for length in (5, 9, 215)]
    with running(spec_of("SF"), requests) as (engine, log):
        heard = [log.wait(request.request_id).ids for request in requests]
        assert counts(engine)["late"] > 5
    assert heard == alone("SF", requests)


class Posting:
    """Memory that what was drawn is written to when that is dispatched."""

    def __init__(self) -> None:
        self.numbers = np.zeros(1 << 10, dtype=np.int32)
        self.num_opened = self.num_dispatched = 0
        self.is_closed = False
        self._waiting: tuple[mx.array, Chosen] | None = None

    def post(self, chosen: Chosen) -> mx.array:
        self.num_opened += 1
        self._waiting = mx.array([1]), chosen
        return self._waiting[0]

    def dispatch(self, *asked: mx.array | list[mx.array]) -> None:
        """As `mx.async_eval`."""
        dispatch_all(*asked)
        lists = [one for one in asked if isinstance(one, list)]
        if self._waiting is None or not any(one is self._waiting[0] for together in lists for one in together):
            return
        numbers = [number + 1 for number in self._waiting[1].ids()]
        self.numbers[: len(numbers)] = numbers
        self.num_dispatched += 1

    def close(self) -> None:
        self.is_closed = True


dispatch_all = mx.async_eval


@pytest.mark.parametrize("num_logprobs", [None, 3])
def test_rounds_are_read_where_the_device_writes(monkeypatch: pytest.MonkeyPatch, num_logprobs: int | None) -> None:
    memory = Posting()
    monkeypatch.setattr(forwarding, "cuda_readouts", lambda: PostedReadouts(memory, memory.post))
    monkeypatch.setattr(forwarding, "AwaitedInputs", DeferredInputs)
    numbers = itertools.count()
    monkeypatch.setattr(DeferredInputs, "open", lambda self, otherwise: Late(otherwise, next(numbers)))
    requests = [of_length(length, 40, num_logprobs=num_logprobs) for length in (5, 9, 215)]
    plain = alone("SF", requests)
    monkeypatch.setattr(mx, "async_eval", memory.dispatch)
    with running(spec_of("SF", fast=replace(FAST, device_waits=True)), requests) as (engine, log):
        heard = [log.wait(request.request_id).ids for request in requests]
        assert (counts(engine)["late"] > 5) == (num_logprobs is None)
    assert heard == plain
    assert memory.num_dispatched == memory.num_opened > 20
    assert memory.is_closed


def test_what_a_late_round_took_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(StepCosts, "record", lambda self, rows, width, seconds: seen.append((rows, width)))
    numbers = itertools.count()
    monkeypatch.setattr(DeferredInputs, "open", lambda self, otherwise: Late(otherwise, next(numbers)))
    request = of_length(5, 40)
    with running(spec_of("FF"), [request]) as (engine, log):
        rounds = log.wait("5").finished.usage.speculation["targetCalls"]
        num_late = counts(engine)["late"]
    assert num_late > 2
    assert len(seen) == rounds - num_late


def test_a_cancelled_row_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Rounds] = []
    monkeypatch.setattr(
        Rounds, "_stage", lambda self, before, stage=Rounds._stage: made.append(self) or stage(self, before)
    )
    with running(spec_of("FF"), [of_length(5, 200)]) as (engine, log):
        log.wait_for_tokens("5", 40)
        engine.cancel("5")
        log.wait("5")
        # Answered between two steps.
        engine.close_session("nobody")
    assert made
    assert made[0]._staged is None


def test_a_row_that_ends_in_between_takes_the_window_of_the_others_with_it() -> None:
    requests = [of_length(length, 40) for length in (5, 9, 30)]
    plain = alone("FF", requests)
    # Found in the text of a round, when the next one has its tokens.
    stop = toy_spec("FF").tokenizer.decode([plain[1][20]])
    requests[1] = replace(requests[1], stop=(stop,))
    with running(spec_of("FF"), requests) as (engine, log):
        heard = [log.wait(request.request_id).ids for request in requests]
        assert counts(engine)["unused"] > 0
    assert heard == alone("FF", requests)
    assert len(heard[1]) < 40


def test_newcomers_and_questions_to_the_engine_let_it_go_first() -> None:
    requests = [of_length(length, 40) for length in (5, 9, 30)]
    with running(spec_of("SF")) as (engine, log):
        unsubscribe = engine.subscribe(Joining(engine, requests, every=12))
        engine.submit(requests[0])
        log.wait_for_tokens("5", 8)
        assert not engine.close_session("nobody")
        heard = [log.wait(request.request_id).ids for request in requests]
        unsubscribe()
        ahead = counts(engine)
    assert heard == alone("SF", requests)
    assert ahead["started"] > ahead["unused"] > 0


@pytest.mark.parametrize(
    ("spec", "num_logprobs"),
    [
        (lambda: spec_of("FF", is_lookup=False), None),
        (lambda: spec_of("FF", fast=replace(FAST, starts_ahead=False)), None),
        (lambda: spec_of("FF", settings={"batch": 1}), None),
        (lambda: spec_of("FF", lambda history, room: []), None),
        (lambda: spec_of("FF"), 3),
    ],
    ids=["needs-the-device", "off", "exact", "nothing-proposed", "log-probabilities"],
)
def test_nothing_is_started_ahead(spec: Callable[[], EngineSpec], num_logprobs: int | None) -> None:
    request = of_length(5, 30, num_logprobs=num_logprobs)
    with running(spec(), [request]) as (engine, log):
        assert log.wait("5").ids == alone("FF", [request])[0]
        assert (counts(engine) or {"started": 0})["started"] == 0


def test_without_a_driver_rounds_begin_when_they_are_known(caplog: pytest.LogCaptureFixture) -> None:
    request = of_length(5, 30)
    with running(spec_of("FF", fast=replace(FAST, device_waits=True)), [request]) as (engine, log):
        assert log.wait("5").ids == alone("FF", [request])[0]
        is_on_cuda = mx.cuda.is_available()
        assert (counts(engine)["started"] > 0) == is_on_cuda
    assert ("Windows aren't started ahead" in caplog.text) != is_on_cuda


def test_drafts_that_come_and_go_meet_a_window_that_is_wide_enough() -> None:
    request = of_length(5, 60)
    [plain] = alone("FF", [request])

    def some(history: Sequence[int], room: int) -> Sequence[int]:
        right = plain[len(history) - 5 :][:room]
        return right[: (0, 1, 3, 3, 3, 3, 2)[len(history) % 7]]

    with running(spec_of("FF", some), [request]) as (engine, log):
        assert log.wait("5").ids == plain
        assert counts(engine)["started"] > 3
