"""What was drawn, on the host as soon as the device knows it.

The way MLX gives it takes an event that the host is woken by, and pages that move to whoever touches them: on an H200
0.2 to 0.3 ms, as long as a round's whole bookkeeping, in which the device has nothing to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
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

THREADS = 128
NOT_YET = -1
MOST_DRAWS = 1 << 15

Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"


class Readout(Protocol):
    """The tokens of some draws."""

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
        """That of what came of some draws."""
        ...

    def close(self) -> None:
        """The device is through with all of them."""
        ...


class AwaitedReadout:
    """The plain way, everywhere: wait for arrays and read them."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen

    @property
    def arrays(self) -> Sequence[mx.array]:
        return self._chosen.arrays

    def ids(self) -> list[int]:
        mx.eval(self.arrays)  # type: ignore[no-untyped-call]
        return self._chosen.ids()


class AwaitedReadouts:
    """Opens the plain ones."""

    def open(self, chosen: Chosen) -> AwaitedReadout:
        return AwaitedReadout(chosen)

    def close(self) -> None:
        """Nothing is held."""


class PostedReadout:
    """On CUDA: a kernel writes the tokens where the host looks for them.

    Args:
        memory: (M,) int32, where they are looked for; nothing else is under way to it.
        address: (1,) int64, of that memory.
        chosen: what came of M draws.
    """

    def __init__(self, memory: npt.NDArray[np.int32], address: mx.array, chosen: Chosen) -> None:
        memory[:] = NOT_YET
        self._memory = memory
        self._chosen = chosen
        [self._is_done] = _kernel()(
            inputs=[address, chosen.tokens, chosen.evidence],
            grid=(THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
        )
        self.was_read = False

    @property
    def arrays(self) -> Sequence[mx.array]:
        return [*self._chosen.arrays, self._is_done]

    def ids(self) -> list[int]:
        until = time.perf_counter() + PATIENCE_SECONDS
        while (self._memory == NOT_YET).any():
            if time.perf_counter() > until:
                self.wait()
                return self._chosen.ids()
            time.sleep(0)  # others may have the interpreter
        self.was_read = True
        failures = self._chosen.failures
        return [
            NO_TOKEN if index in failures else number - 1 for index, number in enumerate(self._memory.tolist())
        ]

    def wait(self) -> None:
        """Until nothing is under way to the memory any more."""
        self.was_read = True
        mx.eval(self.arrays)  # type: ignore[no-untyped-call]


class PostedReadouts:
    """Opens those of a CUDA device.

    Raises:
        BackendError: the driver gives no memory for them, or the host doesn't see what the device writes there.
        RuntimeError: the kernel can't be compiled.
    """

    def __init__(self) -> None:
        self._memory = PinnedMemory(MOST_DRAWS)
        self._address = mx.array([self._memory.address], dtype=mx.int64)
        self._latest: PostedReadout | None = None
        try:
            self._try()
        except Exception:
            self.close()
            raise

    def _try(self) -> None:
        """Now, and not in the middle of somebody's answer."""
        chosen = Chosen(mx.array([7, 8]), mx.zeros((2, 1)), mx.array([[0.0], [mx.nan]]))
        readout = self.open(chosen)
        readout.wait()
        if readout.ids() != [7, NO_TOKEN]:
            raise BackendError("The host doesn't see what the CUDA device writes into pinned memory.")

    def open(self, chosen: Chosen) -> PostedReadout:
        assert chosen.tokens.size <= MOST_DRAWS, "a step has so many rows and positions at most"
        latest, self._latest = self._latest, None
        if latest is not None and not latest.was_read:
            # Of a window that is computed again: what it writes mustn't be taken for what comes now.
            latest.wait()
        self._latest = PostedReadout(self._memory.numbers[: chosen.tokens.size], self._address, chosen)
        return self._latest

    def close(self) -> None:
        self._memory.close()


@cache
def _kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_early_output",
        input_names=["address", "tokens", "evidence"],
        output_names=["is_done"],
        source=files("phyla.engine").joinpath("early_output.cu").read_text(),
    )
    return cast("Kernel", kernel)
