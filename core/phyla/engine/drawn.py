"""Tokens of one draw for several rows: on the device first, on the host when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.errors import GenerationFailed
from phyla.request import TokenLogprobs
from phyla.sampling.logprobs import Capture, capture
from phyla.sampling.sampler import Chosen, Draw, choose

if TYPE_CHECKING:
    from phyla.model.step import Route


class Drawn:
    """One draw: the tokens of M rows and what their log-probabilities will be read from."""

    def __init__(self, chosen: Chosen, captures: Sequence[Capture | None]) -> None:
        self._chosen = chosen
        self._captures = captures
        self._ids: list[int] | None = None

    @property
    def tokens(self) -> mx.array:
        """(M,) integers."""
        return self._chosen.tokens

    @property
    def failures(self) -> Mapping[int, GenerationFailed]:
        """Rows whose draw failed, and why."""
        return self._chosen.failures

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    def arrays(self) -> list[mx.array]:
        """What to evaluate so that reading doesn't compute."""
        return [*self._chosen.arrays, *(array for one in self._captures if one is not None for array in one.arrays())]

    def ids(self) -> list[int]:
        """The tokens on the host; waits for them once."""
        if self._ids is None:
            self._ids = self._chosen.ids()
        return self._ids

    def logprobs(self, index: int) -> TokenLogprobs | None:
        captured = self._captures[index]
        return None if captured is None else captured.read()


def draw(draws: Sequence[Draw], logits: mx.array, *, vectorised: bool, route: Route) -> Drawn:
    """Choose one token per row of (M, V) logits, which came by `route`; nothing is evaluated."""
    chosen = choose(draws, logits, vectorised=vectorised, route=route)
    wanted = [one.sampler.params.num_logprobs for one in draws]
    return Drawn(chosen, capture(chosen.logprobs, chosen.tokens, wanted))
