"""Rotation by positions of three axes, for steps whose axes differ (images and video)."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from phyla.nn.rope import plain_periods


@dataclass(frozen=True)
class AxisRope:
    """Rotates the first numbers of each head; each pair follows one of three axes, by turns.

    Angles, sines and products are float32 whatever the dtype of the heads: rounded sines move whole logits.

    Source:
        Bai et al. 2025 (Qwen3-VL), section 2, interleaved MRoPE. Where all axes are equal: Su et al. 2021, eq. 15.
    """

    num_rotated: int
    base: float
    sections: tuple[int, int, int]
    """Pairs of the first axis, the second and the third."""

    def __call__(self, heads: mx.array, positions: mx.array) -> mx.array:
        """(B, heads, L, D) in and out.

        Args:
            heads: to rotate.
            positions: (3, B*L) int32.
        """
        B, _, L, _ = heads.shape
        half = self.num_rotated // 2
        by_pair = positions[mx.array(self._axis_of_pair())].astype(mx.float32)
        angles = (by_pair / plain_periods(self.num_rotated, self.base)[:, None]).T.reshape(B, 1, L, half)
        cosines, sines = mx.cos(angles), mx.sin(angles)
        rotated = heads[..., : self.num_rotated].astype(mx.float32)
        first, second = rotated[..., :half], rotated[..., half:]
        turned = [first * cosines - second * sines, second * cosines + first * sines]
        return mx.concatenate([*(one.astype(heads.dtype) for one in turned), heads[..., self.num_rotated :]], axis=-1)

    def _axis_of_pair(self) -> list[int]:
        """Every third pair from 1 follows the second axis, from 2 the third, as far as their sections go."""
        axes = [0] * (self.num_rotated // 2)
        for axis in (1, 2):
            for pair in range(axis, min(3 * self.sections[axis], len(axes)), 3):
                axes[pair] = axis
        return axes
