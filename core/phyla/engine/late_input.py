"""A step's input whose numbers follow its dispatch: the device has the kernels of the step, and waits for them.

Starting a step's kernels takes the host about as long as the device takes to run them. A step that depends on what the
host makes of the one before can't hide that, unless it is started before its numbers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from itertools import cycle
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import mlx.core as mx
import numpy as np

from phyla.backend.pinned_memory import PinnedMemory
from phyla.errors import BackendError

if TYPE_CHECKING:
    import numpy.typing as npt

PATIENCE_SECONDS = 0.05
"""After which the device goes on without them: whatever keeps the host, nothing hangs on the device for longer."""

THREADS = 128
NOT_YET = -1
MOST_NUMBERS = 1 << 15
"""Of one input: the widest window of as many rows as a batch may have."""


Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"


class LateInput(Protocol):
    """Some int32 numbers, none of them negative."""

    numbers: mx.array
    """(N,) int32, lazily: what was posted in time."""

    is_dispatchable: bool
    """Whether what depends on `numbers` may be dispatched before `post`."""

    def post(self, numbers: Sequence[int]) -> None:
        """All of them, once."""
        ...

    def was_late(self) -> bool:
        """Waits until the device has looked: whether it has gone on without some of what was posted."""
        ...


class LateInputs(Protocol):
    """Opens them."""

    def open(self, otherwise: Sequence[int]) -> LateInput:
        """One with these numbers for those that don't come in time.

        The device must be through with the one before the last.
        """
        ...

    def close(self) -> None:
        """The device is through with all of them."""
        ...


class AwaitedInput:
    """On CUDA: a kernel that looks at the host's memory until all numbers are there.

    What is asked of the device between dispatch and `post` is done behind what waits; the host mustn't wait for it.

    Args:
        memory: where they are posted.
        address: (1,) int64, of that memory.
        otherwise: numbers to go on with if none are posted.
    """

    is_dispatchable = True

    def __init__(self, memory: npt.NDArray[np.int32], address: mx.array, otherwise: Sequence[int]) -> None:
        self._memory = memory
        memory[:] = NOT_YET
        self.numbers, self._is_late = _kernel()(
            inputs=[address, mx.array(list(otherwise), dtype=mx.int32)],
            template=[("PATIENCE_NS", int(PATIENCE_SECONDS * 1e9))],
            grid=(THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[(len(otherwise),), (1,)],
            output_dtypes=[mx.int32, mx.int32],
        )

    def post(self, numbers: Sequence[int]) -> None:
        self._memory[:] = numbers

    def was_late(self) -> bool:
        return self._is_late.item() != 0


class AwaitedInputs:
    """Opens inputs that a CUDA device waits for.

    Raises:
        BackendError: the driver gives no memory for them, or the device doesn't see what is written there.
        RuntimeError: the kernel can't be compiled.
    """

    def __init__(self) -> None:
        self._memory = PinnedMemory(2 * MOST_NUMBERS)
        addresses = [self._memory.address + 4 * start for start in (0, MOST_NUMBERS)]
        self._slots = cycle(
            (start, mx.array([address], dtype=mx.int64))
            for start, address in zip((0, MOST_NUMBERS), addresses, strict=True)
        )
        try:
            self._try()
        except Exception:
            self.close()
            raise

    def _try(self) -> None:
        """Now, and not in the middle of somebody's answer: does it compile, and does the device see what is posted?"""
        first = self.open([0])
        mx.async_eval(first.numbers)  # type: ignore[no-untyped-call]
        first.post([1])
        if first.was_late() or first.numbers.item() != 1:
            raise BackendError("The CUDA device doesn't see what the host writes into pinned memory.")

    def open(self, otherwise: Sequence[int]) -> AwaitedInput:
        assert len(otherwise) <= MOST_NUMBERS, "a step has so many rows and positions at most"
        start, address = next(self._slots)
        return AwaitedInput(self._memory.numbers[start : start + len(otherwise)], address, otherwise)

    def close(self) -> None:
        self._memory.close()


class DeferredInput:
    """The plain twin, for devices that can't wait: what depends on the numbers is dispatched once they are there."""

    is_dispatchable = False

    def __init__(self, otherwise: Sequence[int]) -> None:
        posted = mx.array(list(otherwise), dtype=mx.int32)
        self._memory = np.array(posted, copy=False)
        self.numbers = posted + 0

    def post(self, numbers: Sequence[int]) -> None:
        self._memory[:] = numbers

    def was_late(self) -> bool:
        return False


class DeferredInputs:
    """Opens plain twins."""

    def open(self, otherwise: Sequence[int]) -> DeferredInput:
        return DeferredInput(otherwise)

    def close(self) -> None:
        """Nothing is held."""


@cache
def _kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_late_input",
        input_names=["address", "otherwise"],
        output_names=["numbers", "is_late"],
        source=files("phyla.engine").joinpath("late_input.cu").read_text(),
    )
    return cast("Kernel", kernel)
