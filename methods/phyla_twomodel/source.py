"""One row's drafter: how far it has read, and what of its own proposals it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyla import Observed, RowProposal, Span

if TYPE_CHECKING:
    from phyla import LayerState

    from phyla_twomodel.provider import TwoModelProvider


class TwoModelSource:
    """Reads prompts along with the target, and everything else when it is next asked to propose.

    What it needs are ids alone, so plain steps cost it nothing and a row whose prefix came without it is read again.
    """

    def __init__(self, provider: TwoModelProvider, prompt: Sequence[int], states: Sequence[LayerState]) -> None:
        self.states = states
        self._provider = provider
        self._prompt = prompt
        self._fed: Sequence[int] | None = None
        """What it was given in the open window."""

        self._num_certain = 0
        """Tokens at the front of those that the target had computed before."""

    @property
    def num_read(self) -> int:
        """Tokens of the row that its states stand for."""
        return self.states[0].num_tokens

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        return self._provider.propose([RowProposal(0, self, history, room)])[0]

    def begin(self, known: Sequence[int], room: int) -> None:
        """Open a window for the row's unread tokens, the pending one last, and all drafts but the last."""
        for state in self.states:
            state.open_window(len(known) + room - 1)
        self._fed, self._num_certain = list(known), len(known) - 1

    def drafted(self, drafts: Sequence[int]) -> None:
        """The drafts are known now; the last one was never given to the drafter."""
        assert self._fed is not None, "nothing was begun"
        self._fed = [*self._fed, *drafts[:-1]]

    def observe(self, step: Observed) -> None:
        if self._fed is not None:
            num_kept = self._num_certain + _num_common(self._fed[self._num_certain :], step.tokens)
            for state in self.states:
                state.keep(num_kept)
            self._fed = None
        if step.is_prefill:
            self._provider.read(self, self._prompt[self.num_read : step.start + len(step.tokens)])


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    num_common = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        num_common += 1
    return num_common
