"""The toy's two mixers that aren't attention over keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from phyla.kv.kinds import LatentCache, RecurrentCache, State
from phyla.kv.mask import Causal
from phyla.model.step import StepInput
from phyla.nn.attention import heads_first, merge_heads, split_heads
from phyla.nn.linear import Linear
from phyla.nn.rope import Rope
from phyla.testing.toy.config import ToyConfig


class GatedRecurrence:
    """`h_t = a_t * h_{t-1} + (1 - a_t) * u_t`, gated on the way out; serial in time, so exact at every step width."""

    def __init__(self, decay: Linear, update: Linear, output_gate: Linear, out: Linear) -> None:
        self._decay = decay
        self._update = update
        self._output_gate = output_gate
        self._out = out

    def __call__(self, hidden: mx.array, step: StepInput, cache: RecurrentCache) -> mx.array:
        """(B*L, E) in and out."""
        shape = (step.num_rows, step.width, hidden.shape[-1])
        inputs = {
            "decay": mx.sigmoid(self._decay(hidden)).reshape(shape),
            "update": self._update(hidden).reshape(shape),
        }
        mixed = cache.advance(inputs, gated_recurrence, step.num_real).reshape(hidden.shape)
        return self._out((mixed * mx.sigmoid(self._output_gate(hidden))).astype(hidden.dtype))


def gated_recurrence(
    inputs: Mapping[str, mx.array], state: State, num_real: Sequence[int]
) -> tuple[mx.array, dict[str, mx.array]]:
    """The formula alone: (B, L, E) inputs to (B, L, E) outputs and the state (B, 1, 1, E) after the real positions."""
    decay = inputs["decay"].astype(mx.float32)
    update = inputs["update"].astype(mx.float32)
    num_rows, width, size = decay.shape
    held = state["state"].reshape(num_rows, size) if "state" in state else mx.zeros((num_rows, size))
    outputs: list[mx.array] = []
    for position in range(width):
        moved = decay[:, position] * held + (1 - decay[:, position]) * update[:, position]
        held = moved if min(num_real) > position else _where_real(position, num_real, moved, held)
        outputs.append(held)
    return mx.stack(outputs, axis=1), {"state": held.reshape(num_rows, 1, 1, size)}


def _where_real(position: int, num_real: Sequence[int], moved: mx.array, held: mx.array) -> mx.array:
    is_real = mx.array([position < count for count in num_real])[:, None]
    return mx.where(is_real, moved, held)


class LatentAttention:
    """Attention in a compressed space: each token stores one latent and one rotated key for all heads.

    Source:
        DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.2 and 2.1.3, with the up-projections absorbed.
    """

    def __init__(self, queries: Linear, latent: Linear, k_rope: Linear, out: Linear, config: ToyConfig) -> None:
        self._queries = queries
        self._latent = latent
        self._k_rope = k_rope
        self._out = out
        self._rope = Rope(config.rope_size, base=config.rope_theta)
        self._num_heads = config.num_attention_heads
        self._latent_size = config.latent_size

    def __call__(self, hidden: mx.array, step: StepInput, cache: LatentCache) -> mx.array:
        """(B*L, E) in and out; this step's latents are appended to `cache`."""
        latent = heads_first(split_heads(self._latent(hidden), step, 1), step)
        k_rope = heads_first(split_heads(self._k_rope(hidden), step, 1), step)
        queries = heads_first(split_heads(self._queries(hidden), step, self._num_heads), step)
        content, positional = mx.split(queries, [self._latent_size], axis=-1)
        queries = mx.concatenate([content, self._rope(positional, step.rope_offset)], axis=-1)
        cache.append({"latent": latent, "rope": self._rope(k_rope, step.rope_offset)}, step.num_real)
        return self._out(merge_heads(cache.attend(queries, Causal(), step.num_real)))
