"""Sizes of feed-forward blocks with experts, for configs that are read without mlx."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertSizes:
    """A router, its experts, and one that every token uses."""

    num_experts: int
    num_chosen: int
    intermediate_size: int
    shared_intermediate_size: int
    is_normalised: bool
    """The shares of the chosen experts are made to sum to one."""
