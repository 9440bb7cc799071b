"""How a checkpoint spells its tensors: three prefixes are in use, and two layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla import Checkpoint
    from phyla.checkpoint import TensorInfo

EMBEDDING = "embed_tokens"
HEAD = "lm_head"

BODIES: Mapping[str, str] = {
    "model.language_model.": HEAD,
    "language_model.model.": f"language_model.{HEAD}",
    "model.": HEAD,
}
"""What stands before the decoder's own names, and what the head is then called; the longer spellings first."""

TOWERS = ("vision_tower.*", "model.visual.*", "visual.*")
"""Encoders of images and video: known, and not used for text."""

DRAFT_HEADS = ("mtp.*", "model.mtp.*", "language_model.mtp.*", "language_model.model.mtp.*")
"""A draft head that rides along; the `mtp` method reads it."""


@dataclass(frozen=True)
class Names:
    """The spelling of one checkpoint."""

    body: str
    head: str
    is_published: bool
    """The layout of the published weights, which converters change: convolutions are (channels, 1, kernel), and norms
    hold their difference to one."""

    def of(self, path: str) -> str:
        """A module of the decoder (`norm`, `layers.3.mlp.gate`), as the checkpoint spells it."""
        return f"{self.body}{path}"

    def respelt(self, path: str) -> str:
        """A module under any of the known spellings, in this checkpoint's; others as they are."""
        for body, head in BODIES.items():
            if path == head:
                return self.head
            if path.startswith(body):
                return self.of(path.removeprefix(body))
        return path


def names_of(checkpoint: Checkpoint) -> Names:
    """Read the spelling off the headers.

    The shape of the convolutions alone tells the layouts apart: names don't, since converted weights are exported again
    under either prefix, and a draft head doesn't, since converters may keep it.
    """
    infos = checkpoint.tensor_infos()
    own = [name for name in infos if not name.startswith(("model.visual.", "model.mtp."))]
    body = next((body for body in BODIES if any(name.startswith(body) for name in own)), "model.")
    return Names(body, BODIES[body], any(_is_published_convolution(info) for info in infos.values()))


def _is_published_convolution(info: TensorInfo) -> bool:
    return info.name.endswith(".linear_attn.conv1d.weight") and len(info.shape) == 3 and info.shape[-1] != 1
