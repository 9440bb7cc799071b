"""A step's input whose numbers follow its dispatch: the device has the kernels of the step, and waits for them.

Starting a step's kernels takes the host about as long as the device takes to run them. A step that depends on what the
host makes of the one before can't hide that, unless it is started before its numbers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Protocol, TypeAlias, cast

import mlx.core as mx
import numpy as np

PATIENCE_SECONDS = 0.05
"""After which the device goes on without them: whatever keeps the host, nothing hangs on the device for longer."""

THREADS = 128
NOT_YET = -1

Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"


class LateInput(Protocol):
    """Some int32 numbers, none of them negative."""

    @property
    def numbers(self) -> mx.array:
        """(N,) int32, lazily: what was posted in time."""
        ...

    @property
    def is_dispatchable(self) -> bool:
        """Whether what depends on `numbers` may be dispatched before `post`."""
        ...

    def post(self, numbers: Sequence[int]) -> None:
        """All of them, once."""
        ...

    def was_late(self) -> bool:
        """Waits until the device has looked: whether it has gone on without some of what was posted."""
        ...


OpenLateInput: TypeAlias = "Callable[[Sequence[int]], LateInput]"
"""Makes one from the numbers that the device takes for those that don't come in time."""


class AwaitedInput:
    """On CUDA: a kernel that looks at the host's memory until all numbers are there.

    What is asked of the device between dispatch and `post` is done behind what waits; the host mustn't wait for it.
    """

    is_dispatchable = True

    def __init__(self, otherwise: Sequence[int]) -> None:
        posted = mx.array(np.full(len(otherwise), NOT_YET, dtype=np.int32))
        # The very memory that the kernel reads.
        self._memory = np.array(posted, copy=False)
        self._numbers, self._is_late = _kernel()(
            inputs=[posted, mx.array(list(otherwise), dtype=mx.int32)],
            template=[("PATIENCE_NS", int(PATIENCE_SECONDS * 1e9))],
            grid=(THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[posted.shape, (1,)],
            output_dtypes=[mx.int32, mx.int32],
        )

    @property
    def numbers(self) -> mx.array:
        return self._numbers

    def post(self, numbers: Sequence[int]) -> None:
        self._memory[:] = numbers

    def was_late(self) -> bool:
        return self._is_late.item() != 0


class DeferredInput:
    """The plain twin, for devices that can't wait: what depends on the numbers is dispatched once they are there."""

    is_dispatchable = False

    def __init__(self, otherwise: Sequence[int]) -> None:
        posted = mx.array(list(otherwise), dtype=mx.int32)
        self._memory = np.array(posted, copy=False)
        self._numbers = posted + 0

    @property
    def numbers(self) -> mx.array:
        return self._numbers

    def post(self, numbers: Sequence[int]) -> None:
        self._memory[:] = numbers

    def was_late(self) -> bool:
        return False


@cache
def _kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_late_input",
        input_names=["posted", "otherwise"],
        output_names=["numbers", "is_late"],
        source=files("phyla.engine").joinpath("late_input.cu").read_text(),
        # Nobody would ever post to a copy.
        ensure_row_contiguous=False,
    )
    return cast("Kernel", kernel)
