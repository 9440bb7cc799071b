"""Whatever is proposed, the tokens are those of plain decoding."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.draft import Span
from phyla.draft.verify import RowRound, plan, settle, verify
from phyla.errors import ConstraintError, GenerationFailed
from phyla.request import SamplingParams
from phyla.sampling.sampler import NO_TOKEN, RowSampler
from phyla.testing.constraint import WordList
from phyla.testing.drafting import ScriptedSource, TableModel, generate

VOCAB = 40
EOS = 1
PROMPT = [3, 4, 5]
MODEL = TableModel(VOCAB, seed=1)

GREEDY = SamplingParams()
SETTINGS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=10, seed=4),
    SamplingParams(temperature=1.2, min_p=0.05, seed=5),
    SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.05, seed=6),
    SamplingParams(temperature=0.9, repetition_penalty=1.4, repetition_context_size=5, seed=7),
    SamplingParams(presence_penalty=2.0, frequency_penalty=1.0, frequency_context_size=0, logit_bias={7: 2.0}),
    SamplingParams(temperature=1.0, min_tokens=12, seed=8),
]


def sampler_of(params: SamplingParams) -> RowSampler:
    return RowSampler(params, VOCAB, [EOS], seed=params.seed or 0)


def plain(params, num_tokens=30, **options):
    return generate(MODEL, sampler_of(params), PROMPT, num_tokens, eos_ids=frozenset([EOS]), **options)


def drafted(params, script, num_tokens=30, **options):
    source = ScriptedSource(script)
    transcript = generate(
        MODEL,
        sampler_of(params),
        PROMPT,
        num_tokens,
        eos_ids=frozenset([EOS]),
        source=source,
        **options,
    )
    return transcript, source


def right(answer, num_drafts=4):
    """Drafts that the target will agree with."""
    return lambda history, room: answer[len(history) - len(PROMPT) :][: min(num_drafts, room)]


def wrong(answer, num_drafts=4):
    """A first draft that the target won't draw."""
    padded = (*answer, EOS)
    return lambda history, room: [(padded[len(history) - len(PROMPT)] + 1) % VOCAB, *range(2, 2 + num_drafts - 1)]


def noisy(answer, seed):
    """Right for a random while, then anything, of any length."""

    def script(history, room):
        draw = np.random.default_rng([seed, len(history)])
        good = list(answer[len(history) - len(PROMPT) :][: draw.integers(0, 5)])
        return [*good, *draw.integers(0, VOCAB, draw.integers(0, 4)).tolist()]

    return script


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("make", [right, wrong, lambda answer: noisy(answer, 1), lambda answer: noisy(answer, 2)])
def test_tokens_logprobs_and_state_are_those_of_plain_decoding(params, make):
    want = plain(params)

    got, _ = drafted(params, make(want.tokens))

    assert got.tokens == want.tokens
    assert got.logprobs == want.logprobs
    assert got.computed == want.computed == (*PROMPT, *want.tokens)[: len(want.computed)]


@settings(max_examples=40, deadline=None)
@given(params=st.sampled_from(SETTINGS), seed=st.integers(0, 10**6), num_tokens=st.integers(1, 20))
def test_any_drafts_give_the_same_tokens(params, seed, num_tokens):
    want = plain(params, num_tokens)

    assert drafted(params, noisy(want.tokens, seed), num_tokens)[0].tokens == want.tokens


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=3, ignore_eos=True)])
def test_right_drafts_save_forwards_and_wrong_ones_dont(params):
    answer = plain(params, 24).tokens

    assert len(answer) == 24
    assert len(drafted(params, right(answer, 3), 24)[0].verdicts) == 6
    assert len(drafted(params, wrong(answer), 24)[0].verdicts) == 24


def test_what_the_source_observes_adds_up_to_the_state():
    answer = plain(GREEDY).tokens
    got, source = drafted(GREEDY, noisy(answer, 5))

    assert source.observed[0].is_prefill
    assert tuple(token for step in source.observed for token in step.tokens) == got.computed


def window(drafts, chosen, *, room=10, constraint=None, step=0):
    """One round with tokens drawn by the test."""
    row = RowRound(sampler_of(GREEDY), PROMPT, step, room, frozenset([EOS]), constraint)
    planned = plan(row, Span(tuple(drafts)) if drafts else None)
    return planned, settle(planned, chosen[: len(planned.draws)])


@pytest.mark.parametrize(
    ("drafts", "chosen", "emitted", "num_kept", "num_accepted"),
    [
        ([10, 11, 12], [10, 20, 99, 99], (10, 20), 2, 1),
        ([10, 11, 12], [10, 11, 12, 13], (10, 11, 12, 13), 4, 3),
        ([10, 11, 12], [20, 99, 99, 99], (20,), 1, 0),
        ([], [20], (20,), 1, 0),
    ],
)
def test_worked_trace_of_acceptance(drafts, chosen, emitted, num_kept, num_accepted):
    _, verdict = window(drafts, chosen)

    assert (verdict.tokens, verdict.num_kept, verdict.num_accepted) == (emitted, num_kept, num_accepted)
    assert verdict.num_drafted == len(drafts)
    assert verdict.ended is None


def test_target_lengths_of_the_two_model_trace():
    """Cache lengths 9, 11, 15, 16 of the specification's first trace."""
    lengths = [9]
    for drafts, chosen in [([10, 11, 12], [10, 20, 0, 0]), ([10, 11, 12], [10, 11, 12, 13]), ([10, 11, 12], [20])]:
        lengths.append(lengths[-1] + window(drafts, chosen)[1].num_kept)

    assert lengths == [9, 11, 15, 16]


def test_end_of_sequence_inside_a_window_ends_it_uncounted_in_the_output():
    planned, verdict = window([10, EOS, 12], [10, EOS])

    assert planned.drafts == (10,), "nothing after an end of sequence could be emitted"
    assert (verdict.tokens, verdict.num_kept, verdict.ended) == ((10,), 2, "eos")
    assert (verdict.num_drafted, verdict.num_accepted) == (3, 2)


def test_a_bonus_that_would_be_past_the_budget_isnt_emitted():
    planned, verdict = window([10, 11, 12], [10, 11, 12], room=2)

    assert planned.drafts == (10, 11)
    assert (verdict.tokens, verdict.num_kept, verdict.ended) == ((10, 11), 2, "length")


def test_a_stop_inside_a_window_drops_what_came_after():
    planned = plan(RowRound(sampler_of(GREEDY), PROMPT, 0, 9, frozenset()), Span((10, 11, 12)))

    verdict = settle(planned, [10, 11, 12, 13], goes_on=lambda token_id: token_id != 11)

    assert (verdict.tokens, verdict.num_kept, verdict.ended) == ((10, 11), 2, "stop")


def test_drafts_without_a_logit_are_cut():
    assert window([10, VOCAB, 11], [10, 20])[0].drafts == (10,)
    assert window([-1], [10])[0].drafts == ()


def test_a_row_that_fails_in_the_middle_keeps_what_came_before():
    _, verdict = window([10, 11], [10, NO_TOKEN, 12])

    assert verdict.tokens == (10,)
    assert isinstance(verdict.error, GenerationFailed)


WORDS = WordList([[10, 11, 12], [10, 11, 13, 14], [20]], eos_ids=[EOS], vocab_size=VOCAB)


@pytest.mark.parametrize("drafts", [[11], [10, 12], [10, 11, 10], [10, 11, 12, 12, 12], [30, 31, 32, 33], []])
def test_a_constraint_is_rolled_back_by_what_was_rejected(drafts):
    matcher, fresh = WORDS.open(), WORDS.open()
    row = RowRound(sampler_of(GREEDY), PROMPT, 0, 9, frozenset([EOS]), matcher)

    plan(row, Span(tuple(drafts)))

    assert matcher.mask().tobytes() == fresh.mask().tobytes()


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("seed", range(6))
def test_drafts_and_a_constraint_together_give_what_the_constraint_alone_gives(params, seed):
    want = plain(params, constraint=WORDS.open())
    got, _ = drafted(params, noisy(want.tokens, seed), constraint=WORDS.open())

    assert got.tokens == want.tokens
    assert got.logprobs == want.logprobs
    assert want.tokens in [(10, 11, 12), (10, 11, 13, 14), (20,)]
    assert got.verdicts[-1].ended == "satisfied"


def test_an_illegal_first_draft_costs_a_plain_step_and_nothing_else():
    planned, verdict = window([30, 31, 32, 33], [20], constraint=WORDS.open())

    assert planned.drafts == ()
    assert (verdict.tokens, verdict.ended, verdict.num_accepted) == ((20,), "satisfied", 0)


def test_a_token_that_the_matcher_refuses_fails_its_row_alone():
    _, broken = window([], [30], constraint=WORDS.open())
    _, fine = window([], [20], constraint=WORDS.open())

    assert isinstance(broken.error, ConstraintError)
    assert broken.tokens == ()
    assert fine.error is None


def test_ragged_windows_of_several_rows_share_one_call():
    params = [SETTINGS[1], SETTINGS[5], GREEDY, SETTINGS[2]]
    spans = [Span((10, 11, 12)), None, Span((7,)), Span((9, 9))]
    plans = [
        plan(RowRound(sampler_of(one), [*PROMPT, row], row, 9), span)
        for row, (one, span) in enumerate(zip(params, spans, strict=True))
    ]
    logits = [
        mx.stack([MODEL.logits([*one.row.history, *one.drafts[:at]]) for at in range(len(one.drafts) + 1)])
        for one in plans
    ]

    together = verify(plans, mx.concatenate(logits)).tokens.tolist()
    alone = [verify([one], rows).tokens.tolist() for one, rows in zip(plans, logits, strict=True)]

    assert together == [token for tokens in alone for token in tokens]
    assert together == verify(plans, mx.concatenate(logits), vectorised=False).tokens.tolist()


def test_penalties_see_accepted_drafts_and_nothing_beyond():
    seen: list[list[int]] = []

    def look(history, logits):
        seen.append(list(history))
        return logits

    row = RowRound(RowSampler(GREEDY, VOCAB, processors=[look]), PROMPT, 0, 9)
    verify([plan(row, Span((10, 11)))], mx.zeros((3, VOCAB)))

    assert seen == [PROMPT, [*PROMPT, 10], [*PROMPT, 10, 11]]


def test_usage_adds_up():
    answer = plain(SETTINGS[1]).tokens
    got, _ = drafted(SETTINGS[1], noisy(answer, 3))
    report = got.usage.report()

    assert report["drafted"] == report["accepted"] + report["rejected"]
    assert report["drafted"] == sum(report["draftedByPos"])
    assert report["accepted"] == sum(report["acceptedByPos"])
    assert sum(report["acceptanceLengths"]) == report["rounds"] == report["targetCalls"] == len(got.verdicts)
    assert report["tokensPerForward"] == len(got.tokens) / report["targetCalls"]
    assert report["forwardsSaved"] == len(got.tokens) - report["targetCalls"]


class Asserting:
    """Asserts `span` once, after so many emitted tokens."""

    def __init__(self, span, after):
        self.span = tuple(span)
        self.length = len(PROMPT) + after

    def propose(self, history, room):
        return Span(self.span[:room], kind="asserted") if len(history) == self.length else None

    def observe(self, step):
        pass


def asserting(params, span, after=3, num_tokens=12, **options):
    return generate(
        MODEL,
        sampler_of(params),
        PROMPT,
        num_tokens,
        eos_ids=frozenset([EOS]),
        source=Asserting(span, after),
        **options,
    )


@pytest.mark.parametrize("params", SETTINGS)
def test_an_asserted_span_enters_as_if_it_had_been_drawn(params):
    """What comes after it is drawn at the step of its own position, from a history that has the span in it."""
    got = asserting(params, [8, 9, 8], after=0)

    assert got.tokens[:3] == (8, 9, 8)
    history = [*PROMPT, 8, 9, 8]
    again = plan(RowRound(sampler_of(params), history, step=3, room=6, eos_ids=frozenset([EOS])))
    chosen = verify([again], MODEL.logits(history)[None]).tokens.tolist()
    assert settle(again, chosen).tokens == got.tokens[3:4]
    assert got.computed == tuple([*PROMPT, *got.tokens][: len(got.computed)])


def test_an_asserted_span_costs_one_step_and_is_no_draft():
    got = asserting(GREEDY, [8, 9, 8])
    [round_] = [one for one in got.verdicts if one.num_asserted]
    assert (round_.num_asserted, round_.num_drafted, round_.num_accepted, len(round_.tokens)) == (3, 0, 0, 4)


def test_an_asserted_span_ends_before_end_of_sequence_and_at_the_cap():
    assert EOS not in asserting(GREEDY, [8, EOS, 9]).tokens
    cut = asserting(GREEDY, [8, 9, 8, 9, 8, 9], num_tokens=5)
    assert cut.tokens[3:] == (8, 9)
    assert cut.verdicts[-1].ended == "length"


def test_an_asserted_span_is_cut_where_the_constraint_forbids_it():
    words = WordList([[10, 11, 12, 13, 14], [10, 11, 12, 20]], eos_ids=[EOS], vocab_size=VOCAB)
    got = asserting(GREEDY, [12, 30], after=2, constraint=words.open())
    assert got.tokens in ((10, 11, 12, 13, 14), (10, 11, 12, 20))
    whole = asserting(GREEDY, [12, 13, 14, 15], after=2, constraint=words.open())
    assert (whole.tokens, whole.verdicts[-1].ended) == ((10, 11, 12, 13, 14), "satisfied")


def test_a_stop_string_inside_an_asserted_span_ends_the_row_there():
    got = asserting(GREEDY, [8, 9, 10], after=0, goes_on=lambda token_id: token_id != 9)
    assert got.tokens == (8, 9)
    assert got.verdicts[-1].num_asserted == 2
