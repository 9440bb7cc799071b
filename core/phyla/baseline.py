"""Other programs that run the same models, as `phyla bench engine --against NAME` measures them beside this one."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path


class BaselineModel(Protocol):
    """A model that another program has loaded in this process. Used from one thread."""

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Generator[Sequence[int], None, None]:
        """Continue prompts greedily, side by side, past any end of sequence.

        A prompt may be one that was read before, but for its last token: it needn't be read again.

        Args:
            prompts: token ids of each row.
            max_tokens: of each row.

        Yields:
            Whenever tokens have become known: the rows they belong to, one entry per token. Closing the generator
            ends all rows.
        """
        ...

    def close(self) -> None:
        """Let go of the weights."""
        ...


@runtime_checkable
class Baseline(Protocol):
    """Another program."""

    @property
    def name(self) -> str:
        """What `--against` calls it."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Of what is measured, by distribution."""
        ...

    def open(self, folder: Path) -> BaselineModel:
        """Load a model folder, on the thread that will use it.

        Raises:
            UsageError: the program isn't installed, or can't run this model; says what to do.
        """
        ...
