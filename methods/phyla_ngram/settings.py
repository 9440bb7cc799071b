"""The `[ngram]` section."""

from __future__ import annotations

from typing import Self

from phyla import PluginSettings, setting
from pydantic import model_validator


class NgramSettings(PluginSettings, section="ngram"):
    """How much must match before anything is proposed."""

    longest_match: int = setting(3, flag="--ngram-max", ge=1, le=16)
    """Trailing tokens that are looked up first; shorter runs follow while nothing is found."""

    shortest_match: int = setting(1, flag="--ngram-min", ge=1, le=16)
    """Fewest trailing tokens that count as a match."""

    indexed_tokens: int = setting(65_536, ge=16)
    """Tokens at the start of a row whose continuations are remembered: about 0.3 KiB each at the default match
    lengths. What comes later can still be matched against them, but is never proposed itself."""

    @model_validator(mode="after")
    def _shortest_is_no_longer_than_longest(self) -> Self:
        if self.shortest_match > self.longest_match:
            raise ValueError(
                f"--ngram-min {self.shortest_match} is above --ngram-max {self.longest_match}, so nothing could ever "
                "match. Lower the one or raise the other."
            )
        return self
