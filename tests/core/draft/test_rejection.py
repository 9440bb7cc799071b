"""Rejection: how often drafts are accepted, and rows that have none or are greedy. `test_window_distribution` has what
is drawn."""

import mlx.core as mx
import numpy as np
from phyla.draft import Span
from phyla.draft.verify import RowRound, plan, settle, verify
from phyla.request import SamplingParams
from phyla.sampling.sampler import RowSampler
from phyla.sampling.token_mask import allowed_only
from phyla.testing.drafting import ScriptedSource, TableModel, generate

NUM_ROUNDS = 4_000
VOCAB = 12
LOGITS = mx.array(np.random.default_rng(2).normal(0, 1.2, (2, VOCAB)).astype(np.float32))
"""After the pending token, and after whatever draft: the second doesn't depend on the first here."""

DRAFTER = mx.array(np.random.default_rng(3).normal(0, 1.2, VOCAB).astype(np.float32))

PARAMS = SamplingParams(temperature=1.0, seed=1)


def rounds(params, drafts, draft_logits, acceptance):
    """Verdicts of many rounds of one row, each at its own step, as one call."""
    sampler = RowSampler(params, VOCAB)
    plans = [
        plan(RowRound(sampler, [2], step, 9), Span((int(draft),), draft_logits=draft_logits))
        for step, draft in enumerate(drafts)
    ]
    chosen = np.array(verify(plans, mx.tile(LOGITS, (len(plans), 1)), acceptance=acceptance).tokens).reshape(-1, 2)
    return [settle(one, tokens.tolist()) for one, tokens in zip(plans, chosen, strict=True)]


def target(params, position, history):
    sampler = RowSampler(params, VOCAB)
    logits = sampler.process(history, LOGITS[position : position + 1])
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return np.array(mx.softmax(sampler.filters.apply(logprobs), axis=-1)[0], dtype=np.float64)


def test_acceptance_is_one_minus_half_the_distance_of_the_distributions():
    params = PARAMS
    draw = np.random.default_rng(10)
    drafter = np.array(mx.softmax(DRAFTER), dtype=np.float64)
    drafts = draw.choice(VOCAB, NUM_ROUNDS, p=drafter / drafter.sum())

    rate = np.mean([verdict.num_accepted for verdict in rounds(params, drafts, DRAFTER[None], "rejection")])

    expected = 1 - 0.5 * np.abs(target(params, 0, [2]) - drafter).sum()
    assert abs(rate - expected) < 5 * np.sqrt(expected * (1 - expected) / NUM_ROUNDS)


def test_a_drafter_that_is_the_target_is_always_accepted():
    params = PARAMS
    drafts = np.random.default_rng(11).choice(VOCAB, 500)

    verdicts = rounds(params, drafts, LOGITS[:1] - mx.logsumexp(LOGITS[0]), "rejection")

    assert all(verdict.num_accepted == 1 for verdict in verdicts)


def test_greedy_rows_are_exact_under_rejection_too():
    model = TableModel(VOCAB, seed=4)
    want = generate(model, RowSampler(SamplingParams(), VOCAB), [1, 2], 20).tokens
    source = ScriptedSource(lambda seen, room: [model.greedy(seen), 3, 4][:room])

    got = generate(model, RowSampler(SamplingParams(), VOCAB), [1, 2], 20, source=source, acceptance="rejection")

    assert got.tokens == want


def test_rows_without_drafts_draw_as_always_beside_rows_with_them():
    sampler = RowSampler(SamplingParams(temperature=1.0, seed=5), VOCAB)
    bare = plan(RowRound(sampler, [2], 3, 9))
    drafted = plan(RowRound(sampler, [2], 3, 9), Span((4,)))

    together = verify([bare, drafted], mx.concatenate([LOGITS[:1], LOGITS]), acceptance="rejection")

    assert together.tokens[0].item() == verify([bare], LOGITS[:1]).tokens.item()


def test_a_forbidden_draft_is_never_accepted():
    class Only:
        def mask(self):
            return allowed_only([5, 6], VOCAB)

        def accept(self, token_id):
            pass

        def rollback(self, num_tokens):
            pass

        def forced(self):
            return ()

        is_satisfied = False

    sampler = RowSampler(SamplingParams(temperature=1.0), VOCAB, seed=1)
    for step in range(50):
        planned = plan(RowRound(sampler, [2], step, 9, constraint=Only()), Span((4, 5)))
        tokens = verify([planned], LOGITS[: len(planned.draws)], acceptance="rejection").tokens.tolist()
        assert set(tokens) <= {5, 6}


def test_a_drafter_with_another_vocabulary_size_is_padded_or_cut():
    for num_ids in (VOCAB - 3, VOCAB + 5):
        logits = mx.zeros((1, num_ids))
        sampler = RowSampler(SamplingParams(temperature=1.0), VOCAB, seed=2)
        planned = plan(RowRound(sampler, [2], 0, 9), Span((1,), draft_logits=logits))
        assert 0 <= verify([planned], LOGITS, acceptance="rejection").tokens[0].item() < VOCAB


def test_a_sampled_draft_that_the_target_has_no_logit_for_is_turned_down():
    sampler = RowSampler(SamplingParams(temperature=1.0), VOCAB, seed=2)
    for step in range(20):
        planned = plan(RowRound(sampler, [2], step, 9), Span((VOCAB + 2,), draft_logits=mx.zeros((1, VOCAB + 5))))
        assert 0 <= verify([planned], LOGITS[:1], acceptance="rejection").tokens[0].item() < VOCAB
