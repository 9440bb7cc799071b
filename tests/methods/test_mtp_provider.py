"""The draft head's provider: what it drafts is what the formulas say, and its rows keep in step with any target."""

from dataclasses import dataclass, field

import mlx.core as mx
import pytest
from phyla.draft import DraftProvider, LoadableDrafter, Observed, RowProposal
from phyla.draft.method import DraftTarget
from phyla.kv.group import LoopGroup
from phyla.kv.row_state import RowState
from phyla.model import StepInput, Tap
from phyla.request import Rendered, Request, SamplingParams
from phyla.sampling.sampler import Draw, RowSampler, draw_tokens
from phyla.testing.bits import same_bits, same_state
from phyla.testing.close import assert_close
from phyla.testing.engines import TOY_VOCAB, a_request, toy_spec
from phyla.testing.method_engine import EngineMethodContract, with_method
from phyla.testing.row_equality import alone
from phyla.testing.stepping import plain_state
from phyla.testing.toy import toy_binding
from phyla_mtp.head import load_head

from tests.methods.test_mtp import METHOD, OPTIONS, TOY, companion, fresh, rows_at

LAST = Tap(1)


@pytest.fixture(scope="module")
def toy_head(tmp_path_factory):
    return LoadableDrafter(companion(tmp_path_factory.mktemp("head") / "mtp"), options=OPTIONS)


@pytest.fixture
def target():
    return toy_binding("FF", 3, vocab_size=TOY_VOCAB)


@pytest.fixture
def provider(target, toy_head):
    return METHOD.create(target, toy_head)


@pytest.fixture
def formulas(target, toy_head):
    return Formulas(load_head(toy_head.checkpoint, toy_head.options), target)


class TestMtp(EngineMethodContract):
    """Any target that lends its embedding and its last hidden rows is one that the bookkeeping must hold for.

    Not the half of `MethodContract` that runs beside a table. A table has no hidden rows, and beside made-up ones the
    head would agree with it by chance alone: many runs with hardly a draft accepted. What that half looks at beyond
    tokens is looked at below: how many are proposed, what they were drawn from, and the declaration.
    """

    @pytest.fixture
    def method(self):
        return METHOD

    @pytest.fixture
    def drafter(self, toy_head):
        return toy_head


@dataclass
class Formulas:
    """Drafts by the head's formulas over a whole history, without a provider."""

    head: object
    target: object

    def drafts(self, history, hidden, num_drafts, sampler=None, step=0):
        """Ids, and the (N, V) logits that each was drawn from.

        Args:
            history: tokens 0 to n, the pending one last.
            hidden: (1, n, E): the target's last layer at positions 0 to n - 1, before its final norm.
            sampler: None is greedy.
        """
        sampler = sampler or RowSampler(SamplingParams(), TOY_VOCAB)
        cache, num_rows = fresh(TOY), len(history) - 1
        # Row p: token p + 1 with the hidden row of position p. Then each guess with what the head made of the last.
        made = self.head(self._embedded(history[1:]), hidden, rows_at(0, num_rows), cache)[:, -1:]
        ids, logits = [], []
        while True:
            logits.append(sampler.process([*history, *ids], self.target.project(made)[0]))
            ids.append(int(draw_tokens([Draw(sampler, step + len(ids))], logits[-1]).tokens.item()))
            if len(ids) == num_drafts:
                return tuple(ids), mx.concatenate(logits)
            made = self.head(self._embedded(ids[-1:]), made, rows_at(num_rows + len(ids) - 1, 1), cache)

    def rows(self, tokens):
        """(1, n, E): what leaves the target's last layer, from one pass of its own."""
        step = StepInput(ids=mx.array([tokens]), num_real=(len(tokens),), offsets=(0,), wanted=mx.arange(len(tokens)))
        state = RowState.fresh(self.target.facts.layout, plain_state)
        group = LoopGroup(self.target.facts.layout)
        group.seat(state)
        return self.target.forward(step, group.states()).hidden

    def _embedded(self, ids):
        return self.target.embed_ids(mx.array([ids])).reshape(1, len(ids), -1)


def hidden_rows(start, num_rows):
    """(1, L, E): made up, but always the same for a position."""
    rows = [mx.random.normal((1, 1, 64), key=mx.random.key(start + i)) for i in range(num_rows)]
    return mx.concatenate(rows, axis=1)


class Worked:
    """One row's rounds; hidden rows are made up, but always the same for a position."""

    def __init__(self, provider, prompt, chunks):
        self.provider = provider
        self.history = list(prompt)
        self.states = provider.new_states()
        self.source = provider.open(Request("r", Rendered(tuple(prompt))), self.states)
        self.num_target = 0
        for size in chunks:
            self.give(self.history[self.num_target : self.num_target + size], is_prefill=True)

    def give(self, tokens, **more):
        taps = {LAST: hidden_rows(self.num_target, len(tokens))}
        self.source.observe(Observed(tuple(tokens), self.num_target, taps=taps, **more))
        self.num_target += len(tokens)

    def propose(self, room=2):
        [span] = self.provider.propose([RowProposal(0, self.source, self.history, room)])
        return span.tokens

    def round(self, num_accepted, num_drafts=2):
        drafts = self.propose(num_drafts) if num_drafts else ()
        kept = [self.history[-1], *drafts[:num_accepted]]
        self.history += [*drafts[:num_accepted], 300]
        self.give(kept)
        return self.num_target, self.source.num_rows


def test_the_worked_trace_stays_one_row_behind_the_target(provider):
    row = Worked(provider, range(10), [9])

    assert row.source.num_rows == 8
    assert row.round(0) == (10, 9)
    assert row.round(1) == (12, 11)
    assert row.round(2) == (15, 14)
    row.give([row.history[-1]])
    assert (row.num_target, row.source.num_rows) == (16, 15)


@pytest.mark.parametrize(
    ("num_drafts", "num_accepted", "num_target", "num_rows", "pending"),
    [(2, 0, 11, 10, 10), (2, 1, 12, 11, 11), (2, 2, 13, 12, 12), (0, 0, 11, 10, 10)],
)
def test_after_a_round_the_next_token_meets_the_last_hidden_row(
    provider, formulas, num_drafts, num_accepted, num_target, num_rows, pending
):
    """Ten tokens of a prompt computed, and one round: what it leaves is what a prefill of them all would."""
    row = Worked(provider, range(11), [10])

    assert row.round(num_accepted, num_drafts) == (num_target, num_rows)
    resumed = provider.open(Request("r", Rendered(())), row.states)
    assert all(same_bits(one.carried, hidden_rows(pending, 1)) for one in (row.source, resumed))
    assert row.propose(3) == formulas.drafts(row.history, hidden_rows(0, num_target), 3)[0]


@pytest.mark.parametrize("room", [1, 2, 5])
@pytest.mark.parametrize("prompt", [range(2), range(10), range(20, 60)], ids=len)
def test_drafts_are_the_formulas_chained(provider, formulas, prompt, room):
    row = Worked(provider, prompt, [len(prompt) - 1])

    assert row.propose(room) == formulas.drafts(row.history, hidden_rows(0, row.num_target), room)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"logit_bias": {7: 3.0, 11: -100.0}},
        {"repetition_penalty": 1.5, "presence_penalty": 2.0, "presence_context_size": 2},
        {"frequency_penalty": 4.0, "frequency_context_size": 0},
    ],
    ids="+".join,
)
def test_drafts_come_with_what_the_head_drew_them_from(provider, formulas, changes):
    params = SamplingParams(temperature=1.0, **changes)
    row, sampler = Worked(provider, range(10), [9]), RowSampler(params, TOY_VOCAB, seed=5)

    [span] = provider.propose([RowProposal(0, row.source, row.history, 3, sampler, 7)])

    ids, logits = formulas.drafts(row.history, hidden_rows(0, 9), 3, sampler, 7)
    assert span.tokens == ids != formulas.drafts(row.history, hidden_rows(0, 9), 3)[0]
    got, want = (mx.softmax(one, axis=-1) for one in (span.draft_logits, logits))
    assert_close(got, want, atol=1e-7, why="of a softmax and of its logarithm")


def test_an_engine_gives_it_the_hidden_rows_that_the_formulas_want(toy_head):
    overheard = []

    def wrap(provider):
        overheard.append(Overheard(provider))
        return overheard[0]

    spec = with_method(toy_spec("FF"), METHOD, toy_head, most_tokens=4, wrap=wrap)
    alone(spec, [a_request("r", [5, 9, 7, 5, 9, 7], 12, SamplingParams(ignore_eos=True))])

    formulas = Formulas(load_head(toy_head.checkpoint, toy_head.options), toy_binding("FF", vocab_size=TOY_VOCAB))
    assert len(overheard[0].said) > 5
    for history, drafts in overheard[0].said:
        assert drafts == formulas.drafts(history, formulas.rows(history[:-1]), len(drafts))[0]


def test_under_rejection_drafts_are_judged_by_the_heads_logits(toy_head):
    """Flat distributions overlap in most of their mass; drafts that count as certain would hardly ever stand."""
    request = a_request("r", [5, 6, 7], 24, SamplingParams(temperature=1.5, seed=5, ignore_eos=True))
    exact, rejection = (
        alone(with_method(toy_spec("FF"), METHOD, toy_head, acceptance=acceptance), [request])["r"]
        for acceptance in ("exact", "rejection")
    )

    usage = rejection.finished.usage
    assert exact.ids != rejection.ids
    assert usage.num_completion_tokens == 24
    assert usage.speculation["accepted"] > usage.speculation["drafted"] / 2


def test_its_declaration_and_its_provider_agree(provider, target, toy_head):
    assert METHOD.describe(DraftTarget(None, target.facts), toy_head) == provider.facts
    assert [one.layer for one in provider.new_states()] == list(provider.facts.layout)


@pytest.mark.parametrize("chunks", [[1] * 9, [1, 8], [4, 5], [8, 1]])
def test_prefill_in_any_pieces_gives_the_same_rows(provider, chunks):
    whole, pieces = Worked(provider, range(10), [9]), Worked(provider, range(10), chunks)

    assert whole.propose(3) == pieces.propose(3)
    assert [one.num_tokens for one in whole.states[1:]] == [9]


def test_what_was_guessed_leaves_no_trace(provider):
    drafted, plain = Worked(provider, range(10), [9]), Worked(provider, range(10), [9])
    drafted.round(1)
    plain.history = list(drafted.history)
    plain.give(plain.history[9:11])

    assert all(same_state(one, other) for one, other in zip(drafted.states, plain.states, strict=True))


def test_a_row_goes_on_from_states_alone(provider):
    row = Worked(provider, range(10), [9])
    resumed = provider.open(Request("r", Rendered(())), [state.clone() for state in row.states])

    [span] = provider.propose([RowProposal(0, resumed, row.history, 3)])

    assert span.tokens == row.propose(3)


def test_rows_guessed_for_together_get_what_each_gets_alone(provider):
    def asked(rows, rooms):
        spans = provider.propose(
            [
                RowProposal(i, row.source, row.history, room)
                for i, (row, room) in enumerate(zip(rows, rooms, strict=True))
            ]
        )
        return [span.tokens for span in spans]

    prompts = [range(10), range(20, 60), [5]]
    alone = [asked([Worked(provider, one, [len(one) - 1] if len(one) > 1 else [])], [3]) for one in prompts[:2]]
    rows = [Worked(provider, one, [len(one) - 1]) for one in prompts[:2]]

    assert asked(rows, [3, 2]) == [alone[0][0], alone[1][0][:2]]


def test_before_the_first_hidden_row_nothing_is_proposed(provider):
    row = Worked(provider, [5], [])
    assert provider.propose([RowProposal(0, row.source, row.history, 2)]) == [None]


@dataclass
class Overheard(DraftProvider):
    """A provider, and what each of its rows was asked and said."""

    inner: DraftProvider
    said: list = field(default_factory=list)

    @property
    def facts(self):
        return self.inner.facts

    def open(self, request, states):
        return self.inner.open(request, states)

    def new_states(self):
        return self.inner.new_states()

    def propose(self, rows):
        spans = self.inner.propose(rows)
        self.said += [(list(row.history), span.tokens) for row, span in zip(rows, spans, strict=True)]
        return spans
