"""Opening a reference with whoever knows it best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phyla.checkpoint import Checkpoint, CheckpointOpener
from phyla.errors import CheckpointNotFound, PluginError
from phyla.plugins import Declared, by_name, pick, plugin_border


@dataclass(frozen=True)
class Opened:
    """A checkpoint and who opened it."""

    checkpoint: Checkpoint
    opener: str
    reference: str
    """What opens it again."""


def open_checkpoint(reference: str, openers: Sequence[Declared[CheckpointOpener]]) -> Opened:
    """Open a reference with the opener that ranks it highest.

    Raises:
        CheckpointNotFound: nobody knows it.
        PluginError: two rank it equally; names both.
    """
    named = by_name(openers, "checkpoint opener")
    known = _knowing(reference, named)
    if not known:
        asked = ", ".join(sorted(named)) or "none"
        raise CheckpointNotFound(
            f"Nothing opens '{reference}': it is no model folder or file, nor a hub id that is downloaded. "
            f"Openers asked: {asked}."
        )
    best, opener = known[0]
    if len(known) > 1 and known[1][0] == best:
        other = known[1][1]
        raise PluginError(
            opener.plugin,
            f"its opener '{opener.value.name}' and '{other.value.name}' of plugin '{other.plugin}' both claim "
            f"'{reference}' with rank {best}. Switch one off with --disable.",
        )
    return _open(reference, opener)


def is_known(reference: str, openers: Sequence[Declared[CheckpointOpener]]) -> bool:
    """Whether some opener knows the reference."""
    return bool(_knowing(reference, by_name(openers, "checkpoint opener")))


def reopen(reference: str, opener: str, openers: Sequence[Declared[CheckpointOpener]]) -> Checkpoint:
    """Open a reference again as a plan says."""
    return _open(reference, pick(by_name(openers, "checkpoint opener"), "checkpoint opener", opener)).checkpoint


def _knowing(
    reference: str, named: Mapping[str, Declared[CheckpointOpener]]
) -> list[tuple[int, Declared[CheckpointOpener]]]:
    """Each with its rank, the highest first."""
    ranked = sorted(((_rank(one, reference), one) for one in named.values()), key=lambda pair: -pair[0])
    return [(rank, one) for rank, one in ranked if rank > 0]


def _rank(opener: Declared[CheckpointOpener], reference: str) -> int:
    with plugin_border(opener.plugin, f"ranking '{reference}'"):
        return opener.value.rank(reference)


def _open(reference: str, opener: Declared[CheckpointOpener]) -> Opened:
    with plugin_border(opener.plugin, f"opening '{reference}'"):
        return Opened(opener.value.open(reference), opener.value.name, reference)
