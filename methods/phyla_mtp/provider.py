"""The head beside its target: rows that follow the target's own hidden rows, and guesses beyond them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from phyla import DraftFacts, DraftProvider, Observed, RowProposal, Span, StepInput
from phyla.draft.chain import Chain
from phyla.kv.group import looped

from phyla_mtp.artifact import CARRY

if TYPE_CHECKING:
    from phyla import LayerSpec, LayerState, ModelBinding, Request, SpanSource
    from phyla.draft.heads import EmbeddingHead

    from phyla_mtp.head import MtpHead


class MtpProvider(DraftProvider):
    """Guesses for all rows of a round together.

    Args:
        facts: as the method describes the head.
        head: loaded on this thread.
        target: lends its embedding and output projection.
        new_state: an empty state of one of the layout's layers.
    """

    def __init__(
        self,
        facts: DraftFacts,
        head: MtpHead,
        target: ModelBinding,
        new_state: Callable[[LayerSpec], LayerState],
    ) -> None:
        self.facts = facts
        self._head = head
        self._target = cast("EmbeddingHead", target)
        self._vocab_size = target.facts.vocab_size
        self._new_state = new_state

    def new_states(self) -> list[LayerState]:
        return [self._new_state(layer) for layer in self.facts.layout]

    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        return MtpSource(self, states)

    def propose(self, rows: Sequence[RowProposal]) -> list[Span | None]:
        """The pending token with the hidden row before it, then each guess with what the head made of the last."""
        sources = [cast(MtpSource, row.source) for row in rows]
        spans: list[Span | None] = [None] * len(rows)
        able = [place for place, source in enumerate(sources) if source.carried is not None]
        if able:
            asked = [rows[place] for place in able]
            for place, span in zip(able, self._guessed(asked, [sources[place] for place in able]), strict=True):
                spans[place] = span
        return spans

    def _guessed(self, rows: Sequence[RowProposal], sources: Sequence[MtpSource]) -> list[Span]:
        for source, row in zip(sources, rows, strict=True):
            source.begin(row.room)
        chain = Chain(rows, self._vocab_size)
        ids = mx.array([[row.history[-1]] for row in rows], dtype=mx.int32)
        hidden = mx.concatenate([source.carried for source in sources if source.carried is not None], axis=1)
        num_real: tuple[int, ...] = (1,) * len(rows)
        while True:
            hidden = self.rows(sources, ids, hidden, num_real)
            chain.draw(self._target.project(hidden)[0])
            if chain.is_complete:
                return chain.spans("mtp")
            ids, num_real = chain.ids, chain.num_real

    def rows(
        self, sources: Sequence[MtpSource], ids: mx.array, hidden: mx.array, num_real: tuple[int, ...]
    ) -> mx.array:
        """Append rows to the head's keys and values.

        Args:
            sources: whose rows; B of them.
            ids: (B, L) tokens.
            hidden: (1, B*L, E) hidden rows of the positions before them.
            num_real: real positions per row.

        Returns:
            (1, B*L, E) as the head gives them.
        """
        step = StepInput(
            ids=ids,
            num_real=num_real,
            offsets=tuple(source.num_rows for source in sources),
            route="exact" if len(sources) == 1 else "fast",
        )
        cache = looped(self.facts.layout, [source.states for source in sources])[0]
        embedded = self._target.embed_ids(ids).reshape(1, ids.size, -1)
        return self._head(embedded, hidden, step, cache)


class MtpSource:
    """One row's head: a row per target token but the first, and the hidden row that the next token belongs to.

    Guessed rows are all taken back: what is kept is made from the target's own hidden rows, so that the state doesn't
    depend on what was guessed.
    """

    def __init__(self, provider: MtpProvider, states: Sequence[LayerState]) -> None:
        self.states = states
        self._provider = provider
        self._is_guessing = False
        self.carried: mx.array | None = self._held() if states[1].num_tokens else None
        """(1, 1, E): the target's hidden row of the last computed token."""

    @property
    def num_rows(self) -> int:
        return self.states[0].num_tokens

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        return self._provider.propose([RowProposal(0, self, history, room)])[0]

    def begin(self, room: int) -> None:
        """Guessed rows follow, so many."""
        self.states[0].open_window(room)
        self._is_guessing = True

    def observe(self, step: Observed) -> None:
        if self._is_guessing:
            self.states[0].keep(0)
            self._is_guessing = False
        if step.start != self.states[1].num_tokens:
            raise ValueError(f"the head stands at {self.states[1].num_tokens} tokens and the target at {step.start}")
        [hidden] = step.taps.values()
        self._follow(step.tokens, hidden)
        carry = looped(None, [self.states])[1]
        carry.advance({CARRY: hidden}, last_row, (len(step.tokens),))
        self.carried = hidden[:, -1:]
        mx.async_eval(  # type: ignore[no-untyped-call]
            [array for state in looped(None, [self.states]) for array in state.evaluate()]
        )

    def _follow(self, tokens: Sequence[int], hidden: mx.array) -> None:
        """Pair each token with the hidden row before it; the first token of a row has none."""
        before = hidden[:, :-1]
        if self.carried is not None:
            before = mx.concatenate([self.carried, before], axis=1)
        num_new = before.shape[1]
        if num_new:
            ids = mx.array([tokens[len(tokens) - num_new :]], dtype=mx.int32)
            self._provider.rows([self], ids, before, (num_new,))

    def _held(self) -> mx.array:
        carry: Any = looped(None, [self.states])[1]
        width = self._provider.facts.layout[1].plane(CARRY).width
        held: mx.array = carry.advance({CARRY: mx.zeros((1, 1, width))}, recalled, (0,))
        return held


def last_row(
    inputs: Mapping[str, mx.array], state: Mapping[str, mx.array], num_real: Sequence[int]
) -> tuple[mx.array, dict[str, mx.array]]:
    """The state is the last real input: (B, L, E) in and out, (B, 1, 1, E) held."""
    rows = inputs[CARRY]
    if min(num_real) == 0:
        return rows, dict(state)
    last = mx.stack([rows[row, count - 1] for row, count in enumerate(num_real)])
    return rows, {CARRY: last[:, None, None]}


def recalled(
    inputs: Mapping[str, mx.array], state: Mapping[str, mx.array], num_real: Sequence[int]
) -> tuple[mx.array, dict[str, mx.array]]:
    """The held row as it is: (B, 1, E)."""
    return state[CARRY][:, 0], dict(state)
