"""Rows that share steps, with everything a request may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phyla.engine.answers import Answers
from phyla.request import Request, SamplingParams
from phyla.testing.engines import Heard, a_request, running, toy_spec
from phyla.testing.row_equality import alone, staggered

from tests.compat.matrix import cell

LAYERS = "FSRL"
NUM_TOKENS = 12
PROMPTS = tuple(tuple(3 + (start + 7 * index) % 200 for index in range(length)) for start, length in ((0, 5), (40, 23)))


def requests(*sampling: SamplingParams) -> list[Request]:
    """One request per prompt, sampled in turn as given."""
    return [
        a_request(f"row-{index}", prompt, NUM_TOKENS, sampling[index % len(sampling)])
        for index, prompt in enumerate(PROMPTS)
    ]


def in_company(wanted: Sequence[Request]) -> dict[str, Heard]:
    heard = staggered(toy_spec(LAYERS, {"batch": 4}), wanted, every=1)
    assert any(one.finished.usage.lane == "batched" for one in heard.values())
    return heard


def by_itself(wanted: Sequence[Request]) -> dict[str, Heard]:
    return alone(toy_spec(LAYERS, {"batch": 1}), wanted)


def assert_same_tokens(wanted: Sequence[Request]) -> None:
    got, want = in_company(wanted), by_itself(wanted)
    assert {name: one.ids for name, one in got.items()} == {name: one.ids for name, one in want.items()}


@cell("batch", "seed")
def test_a_seed_draws_the_same_tokens_in_company() -> None:
    one, other = (SamplingParams(temperature=1.0, seed=seed, ignore_eos=True) for seed in (7, -3))
    assert_same_tokens(requests(one, other))


@cell("batch", "logprobs")
def test_logprobs_in_company_are_those_of_the_row() -> None:
    wanted = requests(SamplingParams(num_logprobs=3, ignore_eos=True))
    got, want = in_company(wanted)["row-1"], by_itself(wanted)["row-1"]
    reported = [token.logprobs for token in got.tokens if token.logprobs is not None]
    expected = [token.logprobs for token in want.tokens if token.logprobs is not None]
    assert len(reported) == len(expected) == NUM_TOKENS
    assert [[token_id for token_id, _ in one.top] for one in reported] == [
        [token_id for token_id, _ in one.top] for one in expected
    ]
    assert max(abs(a.logprob - b.logprob) for a, b in zip(reported, expected, strict=True)) < 2e-4


@cell("batch", "penalties")
def test_penalties_look_at_their_own_row() -> None:
    repetition = SamplingParams(repetition_penalty=1.5, ignore_eos=True)
    others = SamplingParams(presence_penalty=0.9, frequency_penalty=0.9, frequency_context_size=0, ignore_eos=True)
    assert_same_tokens(requests(repetition, others))


@cell("batch", "stop strings")
def test_a_stop_string_ends_its_own_row_only() -> None:
    wanted = requests(SamplingParams(ignore_eos=True))
    free = by_itself(wanted)
    stop = next(token.text for token in free["row-1"].tokens[4:] if token.text)
    stopping = [wanted[0], replace(wanted[1], stop=(stop,))]
    got, want = in_company(stopping), by_itself(stopping)
    assert got["row-1"].finished.stop_string == stop
    assert got["row-1"].text == want["row-1"].text
    assert got["row-0"].ids == free["row-0"].ids


@cell("batch", "cancel")
def test_cancelling_a_row_leaves_the_others_as_they_were() -> None:
    kept, cancelled = requests(SamplingParams(ignore_eos=True))
    endless = replace(cancelled, max_tokens=400)
    with running(toy_spec(LAYERS, {"batch": 4})) as (engine, log):
        engine.submit(endless)
        log.wait_for_tokens(endless.request_id, 2)
        engine.submit(kept)
        log.wait_for_tokens(kept.request_id, 2)
        engine.cancel(endless.request_id)
        heard, cut = log.wait(kept.request_id), log.wait(endless.request_id)
    assert cut.finished.reason == "cancelled"
    assert heard.ids == by_itself([kept])[kept.request_id].ids


@cell("batch", "stream")
def test_rows_are_streamed_side_by_side() -> None:
    one, other = requests(SamplingParams(ignore_eos=True))
    long_one = replace(one, max_tokens=400)
    with running(toy_spec(LAYERS, {"batch": 4})) as (engine, _):
        answers = Answers(engine)
        first, second = answers.stream(long_one), answers.stream(other)
        began = next(first)
        pieces = list(second)
        went_on = next(first)
        first.close()  # type: ignore[attr-defined]
    assert began.finish_reason is None
    assert went_on.finish_reason is None
    assert [piece.token_id for piece in pieces if piece.token_id is not None] == by_itself([other])["row-1"].ids
