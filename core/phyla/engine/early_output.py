"""What was drawn, on the host as soon as the device knows it.

The way MLX gives it takes an event that the host is woken by, and pages that move to whoever touches them: on an H200
0.2 to 0.3 ms, as long as a round's whole bookkeeping, in which the device has nothing to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from select import select
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import mlx.core as mx

from phyla.backend.pinned_memory import PinnedMemory
from phyla.errors import BackendError
from phyla.sampling.sampler import NO_TOKEN, Chosen

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PATIENCE_SECONDS = 0.05
"""After which the host sleeps until MLX wakes it: looking on keeps one of its cores busy."""

SLEPT_THROUGH = 0.5
"""Of the wait that is expected: who looks on slows everybody else who wants the interpreter."""

SHORTEST_SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 2e-4, 2e-3
"""Shorter ones take as long as that anyway; a longer one is missed too much when a wait was expected in vain."""

THREADS = 128
NOT_YET = -1
MOST_DRAWS = 1 << 15

Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"
Post: TypeAlias = "Callable[[Chosen], mx.array]"


class Readout(Protocol):
    """The tokens of some draws, on their way."""

    @property
    def arrays(self) -> Sequence[mx.array]:
        """To dispatch before `ids` is asked for."""
        ...

    def ids(self) -> list[int]:
        """Waits for them; see `Chosen.ids`. Once."""
        ...


class Readouts(Protocol):
    """Opens them, one at a time. Belongs to the engine thread."""

    def open(self, chosen: Chosen) -> Readout:
        """The tokens of these draws, which are still to be dispatched."""
        ...

    def close(self) -> None:
        """No more of them."""
        ...


class AwaitedReadout:
    """The plain way, everywhere: wait for arrays and read them."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen

    @property
    def arrays(self) -> Sequence[mx.array]:
        return self._chosen.arrays

    def ids(self) -> list[int]:
        mx.eval(self.arrays)
        return self._chosen.ids()


class AwaitedReadouts:
    """Opens the plain ones."""

    def open(self, chosen: Chosen) -> AwaitedReadout:
        return AwaitedReadout(chosen)

    def close(self) -> None:
        """Nothing is held."""


class Memory(Protocol):
    """That the device writes into while the host looks."""

    @property
    def numbers(self) -> npt.NDArray[np.int32]: ...

    def close(self) -> None:
        """Give it back."""
        ...


class Waits:
    """How long the host waited lately."""

    def __init__(self) -> None:
        self._latest = (0.0, 0.0)

    def note(self, seconds: float) -> None:
        self._latest = (self._latest[1], seconds)

    def sleep(self) -> None:
        """Through a part of the next wait, if the last two were long enough for that."""
        seconds = min(SLEPT_THROUGH * min(self._latest), LONGEST_SLEEP_SECONDS)
        if seconds >= SHORTEST_SLEEP_SECONDS:
            time.sleep(seconds)


class PostedReadout:
    """The device writes the tokens where the host looks for them.

    Args:
        posted: (M,) int32, where they are looked for; nothing else is under way to it. A number is one more than its
            token, or 0 for none.
        post: an array whose evaluation writes there what came of some draws.
        chosen: what came of M draws.
        waits: of those before it.
    """

    def __init__(self, posted: npt.NDArray[np.int32], post: Post, chosen: Chosen, waits: Waits) -> None:
        posted[:] = NOT_YET
        self._posted = posted
        self._chosen = chosen
        self._waits = waits
        self.is_done = post(chosen)
        self.was_seen = False
        """The host saw all tokens where they were posted, and didn't have to wait for the array."""

    @property
    def arrays(self) -> Sequence[mx.array]:
        return [*self._chosen.arrays, self.is_done]

    def ids(self) -> list[int]:
        began = time.perf_counter()
        self._waits.sleep()
        while (self._posted == NOT_YET).any():
            if time.perf_counter() - began > PATIENCE_SECONDS:
                mx.eval(self.arrays)
                return self._chosen.ids()
            # Gives others the interpreter, and comes back at once: the shortest sleep takes 50 microseconds and more.
            select([], [], [], 0)
        self._waits.note(time.perf_counter() - began)
        self.was_seen = True
        numbers, failures = self._posted.tolist(), self._chosen.failures
        return [NO_TOKEN if index in failures else number - 1 for index, number in enumerate(numbers)]


class PostedReadouts:
    """Opens those that a device writes.

    Args:
        memory: where it does.
        post: see `PostedReadout`.
    """

    def __init__(self, memory: Memory, post: Post) -> None:
        self._memory = memory
        self._post = post
        self._waits = Waits()
        self._under_way: mx.array | None = None

    def open(self, chosen: Chosen) -> PostedReadout:
        posted = self._memory.numbers[: chosen.tokens.size]
        assert posted.size == chosen.tokens.size, "a step has so many rows and positions at most"
        # Of a window that is computed again: what it writes mustn't be taken for what comes now.
        self._wait()
        readout = PostedReadout(posted, self._post, chosen, self._waits)
        self._under_way = readout.is_done
        return readout

    def close(self) -> None:
        self._wait()
        self._memory.close()

    def _wait(self) -> None:
        """Until nothing is under way to the memory."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            # What failed there has failed its own round, and isn't under way.
            with suppress(RuntimeError):
                mx.eval(under_way)


def cuda_readouts() -> PostedReadouts:
    """Through pinned memory, where that was seen to work.

    Raises:
        BackendError: the driver gives no memory for them, or the host doesn't see what the device writes there.
        RuntimeError: the kernel can't be compiled.
    """
    memory = PinnedMemory(MOST_DRAWS)
    readouts = PostedReadouts(memory, partial(_posted, mx.array([memory.address], dtype=mx.int64)))
    try:
        # Now, and not in the middle of somebody's answer.
        readout = readouts.open(Chosen(mx.array([7, 8]), mx.zeros((2, 1)), mx.array([[0.0], [mx.nan]])))
        mx.eval(readout.arrays)
        if readout.ids() != [7, NO_TOKEN] or not readout.was_seen:
            raise BackendError("The host doesn't see what the CUDA device writes into pinned memory.")
    except Exception:
        readouts.close()
        raise
    return readouts


def _posted(address: mx.array, chosen: Chosen) -> mx.array:
    return _kernel()(
        inputs=[address, chosen.tokens, chosen.evidence],
        grid=(THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(1,)],
        output_dtypes=[mx.int32],
    )[0]


@cache
def _kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_early_output",
        input_names=["address", "tokens", "evidence"],
        output_names=["is_done"],
        source=files("phyla.engine").joinpath("early_output.cu").read_text(),
    )
    return cast("Kernel", kernel)
