"""Together equals alone: the same tokens in float32 and log-probabilities within a bound, whatever the company.

    class TestMyFamily(RowEqualityContract):
        def spec(self, settings):
            return engine_spec(facts, bind, tokenizer, settings)

Alone means strict: one row at a time on the exact route. Together means rows of different lengths on the fast route.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import pytest

from phyla.engine.engine import Engine, EngineSpec
from phyla.engine.front import EngineFront
from phyla.request import EngineEvent, Failed, Finished, Request, SamplingParams, Token
from phyla.testing.engines import CountedTime, EventLog, Heard, a_request, running
from phyla.testing.family import random_tokens

STRICT: Mapping[str, Any] = {"batch": 1}
NUM_TOKENS = 24


@dataclass(frozen=True)
class Alone:
    """Requests, and what each gets alone."""

    requests: Sequence[Request]
    heard: Mapping[str, Heard]


class RowEqualityContract:
    """Subclass and give `spec`."""

    prompt_lengths: Sequence[int] = (1, 2, 7, 33, 215)
    """Some shorter and some longer than a sliding window, and one that is prefilled in several chunks and outgrows the
    smallest bay while it decodes."""

    group: Literal["auto", "loop", "stacked"] = "auto"
    """What holds the rows in company. `stacked` insists on it: a family whose layers can all be stacked says so."""

    logprob_atol: float = 2e-4
    """Bound on log-probabilities together against alone: other shapes take other paths through the kernels."""

    @property
    def company(self) -> Mapping[str, Any]:
        """Engine settings of rows together."""
        return {"batch": 8, "group": self.group}

    def spec(self, settings: Mapping[str, Any]) -> EngineSpec:
        """The engine to test, with these engine settings."""
        raise AssertionError("give the contract a `spec`")

    @pytest.fixture(scope="class")
    @classmethod
    def greedy(cls) -> Alone:
        """Prompts whose every greedy choice is clear: what company may change in a logit turns none of them."""
        return cls()._clear()

    def test_rows_that_arrive_together_get_what_each_gets_alone(self, greedy: Alone) -> None:
        self._compare(greedy, together(self.spec(self.company), greedy.requests))

    def test_rows_that_join_one_by_one_get_what_each_gets_alone(self, greedy: Alone) -> None:
        self._compare(greedy, staggered(self.spec(self.company), greedy.requests, every=3))

    def test_rows_that_leave_early_change_nothing_for_the_others(self, greedy: Alone) -> None:
        caps = (1, 2, NUM_TOKENS, 9, NUM_TOKENS)
        requests = [replace(one, max_tokens=cap) for one, cap in zip(greedy.requests, caps, strict=True)]
        self._compare(self._alone(requests), staggered(self.spec(self.company), requests, every=1))

    def test_a_cancelled_row_changes_nothing_for_the_others(self, greedy: Alone) -> None:
        requests = greedy.requests
        with _arriving(self.spec(self.company), requests) as (engine, log):
            log.wait_for_tokens(requests[1].request_id, 3)
            engine.cancel(requests[1].request_id)
            heard = {one.request_id: log.wait(one.request_id) for one in requests}
        cut = heard.pop(requests[1].request_id)
        assert cut.finished.reason in ("cancelled", "length")
        self._compare(Alone([requests[0], *requests[2:]], greedy.heard), heard)

    def test_samplers_of_all_sorts_keep_to_their_rows(self) -> None:
        requests = self._requests(_varied)
        self._compare(self._alone(requests), staggered(self.spec(self.company), requests, every=2))

    def test_one_more_than_there_are_places_waits_and_gets_the_same(self, greedy: Alone) -> None:
        self._compare(greedy, together(self.spec({**self.company, "batch": 2}), greedy.requests))

    def _requests(self, sampling: Sequence[SamplingParams], attempt: int = 0) -> list[Request]:
        vocab_size = self.spec(STRICT).facts.vocab_size
        return [
            a_request(
                f"row-{length}", random_tokens(length, vocab_size, seed=length + 1000 * attempt), NUM_TOKENS, params
            )
            for length, params in zip(self.prompt_lengths, sampling, strict=True)
        ]

    def _clear(self) -> Alone:
        found: dict[str, tuple[Request, Heard]] = {}
        names = [one.request_id for one in self._requests(_greedy)]
        for attempt in count():
            missing = [one for one in self._requests(_greedy, attempt) if one.request_id not in found]
            if not missing:
                break
            heard = alone(self.spec(STRICT), missing)
            clear = [one for one in missing if _margin(heard[one.request_id]) > 2 * self.logprob_atol]
            found |= {one.request_id: (one, heard[one.request_id]) for one in clear}
        return Alone([found[name][0] for name in names], {name: found[name][1] for name in names})

    def _alone(self, requests: Sequence[Request]) -> Alone:
        return Alone(requests, alone(self.spec(STRICT), requests))

    def _compare(self, expected: Alone, heard: Mapping[str, Heard]) -> None:
        for request in expected.requests:
            got, want = heard[request.request_id], expected.heard[request.request_id]
            assert got.ids == want.ids, f"{request.request_id} got other tokens in company"
            assert got.text == want.text
            assert got.finished.reason == want.finished.reason
            worst = max((abs(a - b) for a, b in zip(_logprobs(got), _logprobs(want), strict=True)), default=0.0)
            assert worst <= self.logprob_atol, f"{request.request_id}: log-probabilities differ by {worst:.3g}"


def alone(spec: EngineSpec, requests: Sequence[Request]) -> dict[str, Heard]:
    """Each request by itself, one after the other."""
    with running(spec) as (engine, log):
        heard = {}
        for request in requests:
            engine.submit(request)
            heard[request.request_id] = log.wait(request.request_id)
    return heard


def together(spec: EngineSpec, requests: Sequence[Request]) -> dict[str, Heard]:
    """All requests at once."""
    with _arriving(spec, requests) as (_, log):
        return {request.request_id: log.wait(request.request_id) for request in requests}


def staggered(spec: EngineSpec, requests: Sequence[Request], every: int) -> dict[str, Heard]:
    """Each request joins when the one before has said `every` tokens, or has ended."""
    with running(replace(spec, now=CountedTime())) as (engine, log):
        unsubscribe = engine.subscribe(Joining(engine, requests, every))
        engine.submit(requests[0])
        heard = {request.request_id: log.wait(request.request_id) for request in requests}
        unsubscribe()
    return heard


class Joining:
    """Submits each request as the one before gets going.

    It does so on the engine's thread, while the step's events are delivered: the next step meets the newcomer, however
    busy the machine is.
    """

    def __init__(self, engine: EngineFront, requests: Sequence[Request], every: int) -> None:
        self._engine = engine
        self._before, *self._waiting = requests
        self._every = every
        self._num_tokens = 0

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            if not self._waiting or event.request_id != self._before.request_id:
                continue
            self._num_tokens += isinstance(event, Token)
            if self._num_tokens >= self._every or isinstance(event, Finished | Failed):
                self._num_tokens, self._before = 0, self._waiting.pop(0)
                self._engine.submit(self._before)


@contextmanager
def _arriving(spec: EngineSpec, requests: Sequence[Request]) -> Iterator[tuple[Engine, EventLog]]:
    """An engine whose first look into its mail finds all requests."""
    with running(replace(spec, now=CountedTime()), requests) as heard:
        yield heard


def _margin(heard: Heard) -> float:
    """How far the best token was ahead of the second where it was least so."""
    tops = [sorted((one for _, one in token.logprobs.top), reverse=True) for token in heard.tokens if token.logprobs]
    return min((best - second for best, second, *_ in tops), default=float("inf"))


def _logprobs(heard: Heard) -> list[float]:
    return [token.logprobs.logprob for token in heard.tokens if token.logprobs is not None]


_greedy = (SamplingParams(ignore_eos=True, num_logprobs=2),) * 5
_varied = (
    SamplingParams(temperature=1.0, seed=0, ignore_eos=True, num_logprobs=0),
    SamplingParams(
        temperature=0.8,
        top_k=20,
        xtc_probability=0.5,
        xtc_threshold=0.05,
        seed=7,
        repetition_penalty=1.3,
        num_logprobs=0,
    ),
    SamplingParams(logit_bias={5: 100.0}, num_logprobs=0),
    SamplingParams(temperature=1.2, min_p=0.05, seed=-3, presence_penalty=0.5, min_tokens=10, num_logprobs=0),
    SamplingParams(frequency_penalty=0.7, frequency_context_size=0, ignore_eos=True, num_logprobs=0),
)
