"""A checkpoint that can be looked at and not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from phyla.checkpoint.checkpoint import Checkpoint


class FirstRead(BaseException):
    """A weight was asked for. No `Exception`: nobody on the way up may take it for a fault and report that."""


def headers_only(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, whose `load` raises FirstRead."""
    return cast("Checkpoint", _HeadersOnly(checkpoint))


class _HeadersOnly:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def load(self, names: Iterable[str]) -> NoReturn:
        raise FirstRead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)
