"""The two sides a model is built from: tensor headers, to check, and stored tensors, to keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

from phyla.errors import WeightMismatch
from phyla.model.headers import is_ignored

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint, TensorInfo
    from phyla.model.load_options import Progress

MOST_LISTED = 40
OUTSIDE = "model"
"""Label of what is asked for outside of any group."""

MOST_ALONG_AN_AXIS = 2**31 - 1
"""MLX counts an axis in 32 bits."""


class TensorSource(Protocol):
    """What a loader takes tensors from."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]: ...

    def enter(self, label: str) -> None:
        """A group begins. Groups don't nest."""
        ...

    def take(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """The stored tensor, which must have this shape."""
        ...

    def join(self, arrays: list[mx.array]) -> mx.array:
        """One array of what was taken, below each other; empties the list."""
        ...

    def hold(self, arrays: Iterable[mx.array]) -> None:
        """What the model keeps of what was taken; it is made real."""
        ...

    def refuse(self, problem: str) -> None:
        """Note something about the checkpoint that must not be."""
        ...

    def leave(self) -> None:
        """The group ends."""
        ...


@dataclass
class TensorGroup:
    """Tensors that are looked up together."""

    label: str
    names: list[str] = field(default_factory=list)


class HeaderSource:
    """Checks every request against the headers and hands out stand-ins that are never evaluated."""

    def __init__(self, checkpoint: Checkpoint, ignored: Sequence[str]) -> None:
        self.infos = checkpoint.tensor_infos()
        self.groups = [TensorGroup(OUTSIDE)]
        self._current = self.groups[0]
        self._model_id = checkpoint.model_id
        self._ignored = ignored
        self._taken: set[str] = set()
        self._problems: list[str] = []

    def enter(self, label: str) -> None:
        self._current = TensorGroup(label)
        self.groups.append(self._current)

    def take(self, name: str, shape: tuple[int, ...]) -> mx.array:
        if max(shape, default=0) > MOST_ALONG_AN_AXIS:
            # Not even a stand-in can be made, so the survey ends here.
            raise WeightMismatch(f"{self._model_id}: the config says that {name} is {shape}, which no array can be.")
        info = self.infos.get(name)
        if info is None:
            self.refuse(f"missing: {name} {shape}")
            return mx.zeros(shape)
        if info.shape != shape:
            self.refuse(f"shape: {name} is {info.shape} in {info.shard}, the config says {shape}")
        if name in self._taken:
            self.refuse(f"used twice: {name}")
        self._taken.add(name)
        self._current.names.append(name)
        return mx.zeros(shape, getattr(mx, info.dtype))

    def join(self, arrays: list[mx.array]) -> mx.array:
        return mx.concatenate(arrays)

    def hold(self, arrays: Iterable[mx.array]) -> None:
        """Stand-ins aren't kept."""

    def refuse(self, problem: str) -> None:
        self._problems.append(problem)

    def leave(self) -> None:
        self._current = self.groups[0]

    def check(self) -> None:
        """Raise WeightMismatch with everything that was refused and everything nobody asked for."""
        # Most patterns of a draft head among a model's own tensors are names: all of the model's.
        known = self._taken.union(self._ignored)
        unused = sorted(name for name in self.infos if name not in known and not is_ignored(name, self._ignored))
        problems = [*self._problems, *(f"unused: {name} {self.infos[name].shape}" for name in unused)]
        if not problems:
            return
        listed = problems[:MOST_LISTED]
        if len(problems) > len(listed):
            listed.append(f"and {len(problems) - len(listed)} more")
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in listed)
        raise WeightMismatch(
            f"The tensors of {self._model_id} don't fit its config ({count}):\n{lines}\n"
            "Fetch the checkpoint again, or use the config that belongs to these weights."
        )


class StoredSource:
    """Reads the groups that a header pass found, one at a time."""

    def __init__(self, checkpoint: Checkpoint, groups: Sequence[TensorGroup], progress: Progress) -> None:
        self.infos = checkpoint.tensor_infos()
        self._checkpoint = checkpoint
        self._progress = progress
        self._outside, *self._waiting = groups
        self._current = self._outside
        self._stored: dict[str, mx.array] = {}
        self._done = 0
        self._total = sum(self.infos[name].num_bytes for group in groups for name in group.names)

    def enter(self, label: str) -> None:
        self._current = self._waiting.pop(0)
        assert self._current.label == label, "a build function asks for the same groups at each call"

    def take(self, name: str, shape: tuple[int, ...]) -> mx.array:
        if name not in self._stored:
            # All of a group at once: each call to `load` may open a file and parse its header.
            self._stored |= self._checkpoint.load(self._current.names)
        return self._stored.pop(name)

    def join(self, arrays: list[mx.array]) -> mx.array:
        # One after the other into the whole: concatenating would hold all parts beside it.
        whole = mx.zeros((sum(len(array) for array in arrays), *arrays[0].shape[1:]), arrays[0].dtype)
        start = 0
        while arrays:
            stop = start + len(arrays[0])
            whole[start:stop] = arrays.pop(0)
            mx.eval(whole)
            start = stop
        return whole

    def hold(self, arrays: Iterable[mx.array]) -> None:
        # At once: what they were made of can go before the next module's tensors are read.
        mx.eval(list(arrays))

    def refuse(self, problem: str) -> None:
        raise WeightMismatch(problem)

    def leave(self) -> None:
        self._report()
        self._current = self._outside

    def close(self) -> None:
        """Give back what loading needed."""
        self._report()
        mx.clear_cache()

    def _report(self) -> None:
        self._done += sum(self.infos[name].num_bytes for name in self._current.names)
        self._progress(self._current.label, self._done, self._total)
