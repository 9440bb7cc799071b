"""Acceptance by rejection: keeps the target's distribution, not the tokens of a seed.

Source:
    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2. We differ: the target's distribution is the one
    after processors, constraint, filters and temperature; where the leftover mass is at most 1e-8 the target's own
    distribution stands in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from phyla.sampling.random_stream import categorical, split_keys, uniforms
from phyla.sampling.sampler import Chosen, Draw, draw_tokens, flatten, groups, process_rows

NO_DRAFT = -1
LEAST_MASS = 1e-8

WindowDraws = tuple[Sequence[Draw], Sequence[int], "mx.array | None"]
"""One row's draws, what was proposed from the first of them on, and the logits that was sampled from (None: certain).

A proposal that can't be computed further (an end of sequence, something forbidden) is among them: to leave it out where
it was sampled would shift what is drawn in its place.
"""


@dataclass(frozen=True)
class _Position:
    """A position that has a draft to accept, or is the bonus after all of them."""

    draft: int
    draft_logits: mx.array | None


def draw_with_rejection(windows: Sequence[WindowDraws], logits: mx.array) -> Chosen:
    """A token for each position: its draft where that is accepted, else one from what the target has left over.

    Greedy rows, rows without proposals and rows with a sampler of their own draw as in exact match.

    Args:
        windows: the rows in the order of their logits.
        logits: (M, V), one row per draw.
    """
    draws = [draw for one, _, _ in windows for draw in one]
    positions = [position for one in windows for position in _positions(*one)]
    processed, failures = process_rows(draws, logits)
    exact = draw_tokens(draws, processed, failures)
    tokens = exact.tokens.astype(mx.int32)
    for filters, indices in groups(draws):
        drafted = [index for index in indices if positions[index] is not None]
        if filters is None or filters.is_greedy or not drafted:
            continue
        places = mx.array(drafted)
        flattened, keys = flatten(filters, [draws[index] for index in drafted], exact.logprobs[places])
        judged = _judge(flattened, keys, [position for index in drafted if (position := positions[index])])
        tokens = mx.put_along_axis(tokens, places, judged, axis=0)
    return replace(exact, tokens=tokens)


def _positions(draws: Sequence[Draw], proposed: Sequence[int], draft_logits: mx.array | None) -> list[_Position | None]:
    if not proposed:
        return [None] * len(draws)
    return [
        _Position(proposed[index], None if draft_logits is None else draft_logits[index])
        if index < len(proposed)
        else _Position(NO_DRAFT, None)
        for index in range(len(draws))
    ]


def _judge(flattened: mx.array, keys: mx.array, positions: Sequence[_Position]) -> mx.array:
    """(M,) int32 tokens from the target's (M, V) unnormalised log-probabilities and the drafters' own."""
    target = mx.softmax(flattened.astype(mx.float32), axis=-1)
    vocab_size = target.shape[-1]
    drafter = mx.stack([_drafter_probabilities(position, vocab_size) for position in positions])
    # An id that the target has no logit for is never accepted.
    drafts = mx.array([one.draft if one.draft < vocab_size else NO_DRAFT for one in positions], dtype=mx.int32)
    accept_keys, draw_keys = split_keys(keys)

    at_draft = mx.maximum(drafts, 0)[:, None]
    target_at, drafter_at = (mx.take_along_axis(one, at_draft, axis=-1)[:, 0] for one in (target, drafter))
    # u < p/q without dividing; u is below 1, so that p >= q always accepts.
    is_accepted = (uniforms(accept_keys)[:, 0] * drafter_at < target_at) & (drafts != NO_DRAFT)

    left_over = mx.maximum(target - drafter, 0.0)
    has_mass = left_over.sum(axis=-1, keepdims=True) > LEAST_MASS
    redrawn = categorical(mx.log(mx.where(has_mass, left_over, target)), draw_keys)
    return mx.where(is_accepted, drafts, redrawn.astype(mx.int32))


def _drafter_probabilities(position: _Position, vocab_size: int) -> mx.array:
    """(V,) what the draft was sampled from: its logits' softmax, all on the draft itself, or nothing for a bonus."""
    if position.draft_logits is None:
        return (mx.arange(vocab_size) == position.draft).astype(mx.float32)
    probabilities = mx.softmax(position.draft_logits.astype(mx.float32), axis=-1)[:vocab_size]
    return mx.pad(probabilities, (0, vocab_size - probabilities.shape[0]))
