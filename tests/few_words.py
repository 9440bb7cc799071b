"""Models that say few different words: drafts are then often right and often wrong, whoever made them.

Those of random weights agree with hardly any draft, so that next to nothing is emitted past a window's first position.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import mlx.core as mx

WORDS = (10, 17, 24, 31)
CONTRAST = 4.0
"""Makes the logits of tiny models far enough from each other that a sample depends on what was read before."""


def of_few_words(folder: Path, words: Sequence[int] = WORDS) -> Path:
    """Leave a tiny model with a head of its own only these words to say, and return its folder.

    Args:
        folder: of the model, which is changed.
        words: an even number of ids; every other logit is zero, and one of these is above it.
    """
    tensors = cast(dict[str, mx.array], mx.load(str(folder / "model.safetensors")))
    half = tensors["lm_head.weight"][mx.array(words[: len(words) // 2])]
    head = mx.zeros_like(tensors["lm_head.weight"])
    # Of two opposites one is never below zero.
    head[mx.array(words)] = CONTRAST * mx.concatenate([half, -half])
    mx.save_safetensors(str(folder / "model.safetensors"), tensors | {"lm_head.weight": head}, {"format": "mlx"})
    return folder
