"""Draft methods inside the engine: on every layer kind, alone, in company and going on from computed prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from phyla.draft.method import DraftMethod, LoadableDrafter
from phyla.draft.verify import Acceptance
from phyla.engine.drafting import Drafting
from phyla.engine.engine import EngineSpec, Loaded
from phyla.request import Request, SamplingParams
from phyla.testing.engines import Heard, a_request, running, toy_spec
from phyla.testing.reuse import reusing
from phyla.testing.row_equality import alone, staggered

LAYOUTS = ("FF", "FS", "RF", "LF", "SRLF")
PROMPT = (5, 9, 7, 5, 9, 7, 5, 9)
LONG_PROMPT = tuple(3 + index * 7 % 50 for index in range(60))
NUM_TOKENS = 24
SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=1.0, seed=11),
    "filtered": SamplingParams(temperature=0.8, top_p=0.9, top_k=30, seed=12),
    "penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={20: 1.0}),
    "reported": SamplingParams(temperature=1.0, seed=13, num_logprobs=3),
    # What was said is then often said again, so that a lookup is right at times whatever the toy.
    "few words": SamplingParams(temperature=1.0, seed=14, logit_bias=dict.fromkeys(PROMPT[:3], 100.0)),
}


def with_method(
    spec: EngineSpec,
    method: DraftMethod,
    drafter: LoadableDrafter | None,
    *,
    most_tokens: int | None = None,
    is_adaptive: bool = False,
    acceptance: Acceptance = "exact",
    wrap: Callable[[Any], Any] = lambda provider: provider,
) -> EngineSpec:
    """The spec with that method drafting.

    Args:
        spec: of a model that the drafter fits.
        method: made on the engine thread.
        drafter: as selection would give it.
        most_tokens: drafted at once; None is the method's own number.
        is_adaptive: let lengths follow acceptance and the clock. Tests that count leave it off.
        acceptance: how drafts are judged.
        wrap: gets the provider, for tests that want to look at it.
    """

    def load() -> Loaded:
        loaded = spec.load()
        provider = wrap(method.create(loaded.binding, drafter))
        most = most_tokens or provider.facts.max_tokens
        return replace(loaded, drafting=Drafting(method.name, provider, most, acceptance, is_adaptive=is_adaptive))

    return replace(spec, load=load)


class EngineMethodContract:
    """The half of `MethodContract` that runs engines."""

    least: Literal["accepted", "drafted", "nothing"] = "accepted"
    """What must come of its drafts at least, or the contract has proved nothing of them. Its prompts repeat themselves,
    its targets are toys of random weights that sample with the row's own random numbers. A method that such a target
    never agrees with says `drafted`; one that has nothing to propose there says `nothing`."""

    @pytest.fixture
    def method(self) -> DraftMethod:
        raise AssertionError("give the contract a `method` fixture")

    @pytest.fixture
    def drafter(self) -> LoadableDrafter | None:
        return None

    def target_spec(self, layers: str, settings: dict[str, Any]) -> EngineSpec:
        """A target with such layers that the method can draft for; a method that needs a certain one gives that."""
        return toy_spec(layers, settings)

    @pytest.mark.parametrize("layers", LAYOUTS)
    def test_a_lone_row_gets_the_tokens_of_plain_decoding(
        self, method: DraftMethod, drafter: LoadableDrafter | None, layers: str
    ) -> None:
        requests = [a_request(name, PROMPT, NUM_TOKENS, params) for name, params in SAMPLINGS.items()]
        spec = self.target_spec(layers, {"batch": 1})

        drafted = alone(with_method(spec, method, drafter), requests)

        _same(drafted, alone(spec, requests), requests)
        assert all(_speculation(one)["method"] == method.name for one in drafted.values())
        self._agreed_on(drafted.values())

    @pytest.mark.parametrize("layers", LAYOUTS)
    def test_rows_that_join_one_by_one_get_what_each_gets_alone(
        self, method: DraftMethod, drafter: LoadableDrafter | None, layers: str
    ) -> None:
        requests = [
            a_request(name, [*PROMPT, index], NUM_TOKENS - 2 * index, params)
            for index, (name, params) in enumerate(SAMPLINGS.items())
        ]
        expected = alone(self.target_spec(layers, {"batch": 1}), requests)

        together = staggered(with_method(self.target_spec(layers, {}), method, drafter), requests, every=2)

        _same(together, expected, requests)
        self._agreed_on(together.values())

    @pytest.mark.parametrize("layers", LAYOUTS)
    def test_the_next_turn_goes_on_with_the_drafters_state(
        self, method: DraftMethod, drafter: LoadableDrafter | None, layers: str
    ) -> None:
        spec = self.target_spec(layers, {"prefill_chunk": 16})
        with reusing(with_method(spec, method, drafter)) as (engine, log, _):
            engine.submit(a_request("first", LONG_PROMPT, NUM_TOKENS))
            turn = a_request("turn", [*LONG_PROMPT, *log.wait("first").ids, 9, 8, 7], NUM_TOKENS)
            engine.submit(turn)
            heard = log.wait("turn")

        assert heard.finished.usage.num_cached_tokens > len(LONG_PROMPT)
        assert "reason" not in _speculation(heard)
        self.proposed(_speculation(heard)["drafted"])
        _same({"turn": heard}, alone(spec, [turn]), [turn])

    @pytest.mark.parametrize("layers", ["SRLF", "FF"])
    def test_what_was_drafted_from_a_prefix_is_what_would_have_been_without(
        self, method: DraftMethod, drafter: LoadableDrafter | None, layers: str
    ) -> None:
        spec = with_method(self.target_spec(layers, {"prefill_chunk": 16}), method, drafter)
        request = a_request("first", LONG_PROMPT, NUM_TOKENS)
        with reusing(spec) as (engine, log, _):
            for name in ("first", "again"):
                engine.submit(replace(request, request_id=name))
                log.wait(name)
            first, again = log.wait("first"), log.wait("again")

        assert again.finished.usage.num_cached_tokens > 0
        assert _speculation(again) == _speculation(first)
        self.proposed(_speculation(first)["drafted"])

    def test_adaptive_lengths_never_change_the_tokens(
        self, method: DraftMethod, drafter: LoadableDrafter | None
    ) -> None:
        requests = [a_request(name, PROMPT, 60, params) for name, params in SAMPLINGS.items()]
        spec = self.target_spec("SRLF", {})

        drafted = alone(with_method(spec, method, drafter, is_adaptive=True), requests)

        _same(drafted, alone(spec, requests), requests)

    def test_samples_of_one_request_draft_each_for_itself(
        self, method: DraftMethod, drafter: LoadableDrafter | None
    ) -> None:
        request = a_request("r", PROMPT, NUM_TOKENS, SamplingParams(temperature=1.0, seed=3), num_samples=3)
        spec = self.target_spec("FF", {})

        assert _samples(with_method(spec, method, drafter), request) == _samples(spec, request)

    def test_a_cancelled_row_leaves_the_others_as_they_were(
        self, method: DraftMethod, drafter: LoadableDrafter | None
    ) -> None:
        kept = a_request("kept", PROMPT, NUM_TOKENS)
        spec = self.target_spec("SRLF", {})
        with running(with_method(spec, method, drafter)) as (engine, log):
            engine.submit(a_request("cut", LONG_PROMPT, 1000, SamplingParams(ignore_eos=True)))
            log.wait_for_tokens("cut", 2)
            engine.submit(kept)
            log.wait_for_tokens("kept", 2)
            engine.cancel("cut")
            heard = log.wait("kept")
            assert log.wait("cut").finished.reason == "cancelled"

        _same({"kept": heard}, alone(spec, [kept]), [kept])

    def test_a_stop_string_inside_a_window_ends_the_row_there(
        self, method: DraftMethod, drafter: LoadableDrafter | None
    ) -> None:
        spec = self.target_spec("FF", {})
        free = alone(spec, [a_request("r", PROMPT, NUM_TOKENS)])["r"]
        stopping = a_request("r", PROMPT, NUM_TOKENS, stop=(free.tokens[5].text,))

        got, want = (alone(one, [stopping])["r"] for one in (with_method(spec, method, drafter), spec))

        assert (got.text, got.ids, got.finished.stop_string) == (want.text, want.ids, want.finished.stop_string)
        num_tokens = want.finished.usage.num_completion_tokens
        assert got.finished.usage.num_completion_tokens == num_tokens
        assert _speculation(got)["targetCalls"] + _speculation(got)["forwardsSaved"] == num_tokens

    def proposed(self, num_drafted: int) -> None:
        """Fail if nothing was drafted where something had to be."""
        assert num_drafted or self.least == "nothing", (
            f"nothing was drafted, so that this proves nothing of the method. {_SAY_SO.format('nothing')}"
        )

    def _agreed_on(self, answers: Iterable[Heard]) -> None:
        reports = [_speculation(one) for one in answers]
        self.agreed(*(sum(report[key] for report in reports) for key in ("drafted", "accepted")))

    def agreed(self, num_drafted: int, num_accepted: int) -> None:
        """Fail if nothing was drafted, or nothing accepted, where something had to be."""
        self.proposed(num_drafted)
        assert self.least != "accepted" or num_accepted, (
            f"none of {num_drafted} drafts was accepted, so that nothing past a window's first position was looked at. "
            f"{_SAY_SO.format('drafted')}"
        )


_SAY_SO = "If the contract's prompts and toy targets allow no more, say `least = '{}'` in its subclass."


def _same(got: dict[str, Heard], want: dict[str, Heard], requests: Sequence[Request]) -> None:
    for request in requests:
        mine, plain = got[request.request_id], want[request.request_id]
        assert mine.ids == plain.ids, f"{request.request_id} got other tokens"
        assert mine.finished.reason == plain.finished.reason
        assert [one.logprobs and one.logprobs.top[0][0] for one in mine.tokens] == [
            one.logprobs and one.logprobs.top[0][0] for one in plain.tokens
        ]


def _speculation(heard: Heard) -> Any:
    return heard.finished.usage.speculation


def _samples(spec: EngineSpec, request: Request) -> list[list[int]]:
    with running(spec) as (engine, log):
        engine.submit(request)
        return [log.wait(request.request_id, sample).ids for sample in range(request.num_samples)]
