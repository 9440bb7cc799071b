"""What windows emit follows the distribution of plain sampling, for every sampler setting, both ways to accept.

Chi-square of the first three tokens of a row, jointly: N = 1,000 rows, seeds 0 to N - 1, alpha 1e-6; outcomes that are
expected fewer than five times count as one. Rows take as many rounds as they need, so that what a rejected draft
leaves behind is part of it.
"""

from collections import Counter
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from phyla.draft import Span
from phyla.draft.chain import Chain
from phyla.draft.span import RowProposal
from phyla.draft.verify import RowRound, plan, settle, verify
from phyla.request import SamplingParams
from phyla.sampling.sampler import RowSampler
from phyla.sampling.token_mask import allowed_only

NUM_ROWS = 1_000
NUM_TOKENS = 3
NUM_DRAFTS = 2
VOCAB = 6
EOS = 0
PROMPT = [2, 4]
TARGET = np.random.default_rng(2).normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32)
"""Logits after each token."""

DRAFTER = np.random.default_rng(3).normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32)


class NeverTwice:
    """Forbids the token before."""

    is_satisfied = False

    def __init__(self):
        self._accepted = []

    def mask(self):
        last = self._accepted[-1] if self._accepted else PROMPT[-1]
        return allowed_only([token_id for token_id in range(VOCAB) if token_id != last], VOCAB)

    def accept(self, token_id):
        self._accepted.append(token_id)

    def rollback(self, num_tokens):
        del self._accepted[len(self._accepted) - num_tokens :]

    def forced(self):
        return ()


@dataclass(frozen=True)
class Setting:
    params: SamplingParams
    is_constrained: bool = False
    named: dict = field(default_factory=dict)

    def sampler(self, seed):
        return RowSampler(self.params, VOCAB, [EOS], seed=seed, **self.named)


def sampled(**params):
    return Setting(SamplingParams(**{"temperature": 1.0, **params}))


def dislikes_what_came_before(history, logits):
    return logits - mx.array([2.0 * (token_id == history[-1]) for token_id in range(VOCAB)])


SETTINGS = {
    "temperature": sampled(temperature=0.7),
    "top-p": sampled(top_p=0.8),
    "top-k": sampled(top_k=4),
    "min-p": sampled(temperature=1.3, min_p=0.1),
    "xtc": sampled(xtc_probability=0.5, xtc_threshold=0.12, xtc_special_ids=(EOS,)),
    "repetition": sampled(repetition_penalty=1.8, repetition_context_size=2),
    "presence and frequency": sampled(presence_penalty=0.7, frequency_penalty=0.9, frequency_context_size=0),
    "bias": sampled(logit_bias={3: 1.5, 5: -4.0}),
    "min tokens": sampled(min_tokens=2),
    "a named processor": Setting(sampled().params, named={"processors": [dislikes_what_came_before]}),
    "a constraint": Setting(sampled().params, is_constrained=True),
    "all at once": Setting(
        SamplingParams(temperature=0.9, top_p=0.95, min_p=0.02, top_k=5, repetition_penalty=1.3, logit_bias={1: 0.5}),
        is_constrained=True,
    ),
}


def plainly(setting, history):
    """(V,) probabilities of the next token without drafts."""
    sampler = setting.sampler(0)
    logits = sampler.process(history, mx.array(TARGET[history[-1]])[None])
    drawn = sampler.words(len(history) - len(PROMPT), None)
    allowed = np.ones(VOCAB, dtype=bool)
    if setting.is_constrained:
        allowed[history[-1]] = False
    if drawn is not None:
        allowed[EOS] = False
    logits = mx.where(mx.array(allowed), logits, -mx.inf)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if not sampler.filters.uses_xtc:
        return np.array(mx.softmax(sampler.filters.apply(logprobs), axis=-1)[0], dtype=np.float64)
    removing, leaving = (
        np.array(mx.softmax(sampler.filters.apply(logprobs, mx.array([[drawn]])), axis=-1)[0], dtype=np.float64)
        for drawn in (0.0, 1.0)
    )
    return setting.params.xtc_probability * removing + (1 - setting.params.xtc_probability) * leaving


def expected(setting, answer=()):
    """Probability of each answer of up to three tokens, end of sequence counted as one."""
    if len(answer) == NUM_TOKENS or EOS in answer:
        return {answer: 1.0}
    probabilities = plainly(setting, [*PROMPT, *answer])
    return {
        whole: probabilities[token_id] * rest
        for token_id in np.flatnonzero(probabilities).tolist()
        for whole, rest in expected(setting, (*answer, token_id)).items()
    }


class DraftedRow:
    """One row on its way to three tokens."""

    def __init__(self, setting, seed):
        self.sampler = setting.sampler(seed)
        self.constraint = NeverTwice() if setting.is_constrained else None
        self.history = list(PROMPT)
        self.has_ended = False

    @property
    def answer(self):
        return tuple(self.history[len(PROMPT) :])

    def planned(self, span):
        room = NUM_TOKENS - len(self.answer)
        row = RowRound(self.sampler, self.history, len(self.answer), room, frozenset([EOS]), self.constraint)
        return plan(row, span)

    def settled(self, planned, tokens):
        verdict = settle(planned, tokens)
        assert verdict.error is None
        self.history.extend(verdict.tokens)
        if verdict.ended == "eos":
            self.history.append(EOS)
        self.has_ended = verdict.ended is not None


def certain(rows):
    """What the target finds likeliest, with nothing said about how it was drawn."""
    return [Span(tuple(np.argmax(TARGET[[row.history[-1], 1]], axis=-1).tolist())) for row in rows]


def drawn(rows):
    """From a drafter of its own, with the row's own sampler and random numbers."""
    asked = [
        RowProposal(index, None, row.history, NUM_DRAFTS, row.sampler, len(row.answer))
        for index, row in enumerate(rows)
    ]
    chain = Chain(asked, VOCAB)
    chain.draw(mx.array(DRAFTER[[row.history[-1] for row in rows]]))
    chain.draw(mx.array(DRAFTER)[chain.ids[:, 0]])
    return chain.spans("drawn")


def answers(setting, propose, acceptance):
    rows = [DraftedRow(setting, seed) for seed in range(NUM_ROWS)]
    while going := [row for row in rows if not row.has_ended]:
        plans = [row.planned(span) for row, span in zip(going, propose(going), strict=True)]
        before = np.array([token_id for one in plans for token_id in one.tokens])
        tokens = verify(plans, mx.array(TARGET[before]), acceptance=acceptance).tokens.tolist()
        for row, one in zip(going, plans, strict=True):
            row.settled(one, tokens[: len(one.tokens)])
            del tokens[: len(one.tokens)]
    return [row.answer for row in rows]


def quantile(freedom):
    """Of chi-square at 1 - 1e-6, by Wilson and Hilferty 1931: within a hundredth from five degrees on."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 4.7534 * spread**0.5) ** 3


def assert_follows(got, probabilities):
    counts = Counter(got)
    assert set(counts) <= set(probabilities), "something was emitted that plain sampling can't"
    common = {answer: share * NUM_ROWS for answer, share in probabilities.items() if share * NUM_ROWS >= 5}
    pairs = [(counts[answer], share) for answer, share in common.items()]
    rare = NUM_ROWS - sum(common.values())
    if rare >= 5:
        pairs.append((NUM_ROWS - sum(count for count, _ in pairs), rare))
    statistic = sum((count - share) ** 2 / share for count, share in pairs)
    assert statistic < quantile(len(pairs) - 1)


@pytest.mark.parametrize("propose", [certain, drawn])
@pytest.mark.parametrize("acceptance", ["exact", "rejection"])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_windows_emit_what_plain_sampling_does(setting, acceptance, propose):
    assert_follows(answers(setting, propose, acceptance), expected(setting))


def test_a_distribution_that_is_a_little_off_is_noticed():
    wrong = expected(sampled(temperature=0.85))

    with pytest.raises(AssertionError):
        assert_follows(answers(SETTINGS["temperature"], certain, "exact"), wrong)
