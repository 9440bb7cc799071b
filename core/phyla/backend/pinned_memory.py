"""Host memory that a CUDA device reads where it lies, while both are at work.

MLX's own buffers move to whoever touches them, a page fault each time: tens of microseconds in the middle of a step.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from phyla.errors import BackendError

DRIVER = "libcuda.so.1"
PORTABLE, MAPPED = 1, 2
"""CU_MEMHOSTALLOC flags: for every context, and with an address that is the device's too."""


class PinnedMemory:
    """Some int32 numbers. Made on a thread where MLX has used the device.

    Raises:
        BackendError: the driver has none to give.
    """

    def __init__(self, num_numbers: int) -> None:
        try:
            self._driver = ctypes.CDLL(DRIVER)
        except OSError as error:
            raise BackendError(f"No CUDA driver: {error}.") from error
        pointer = ctypes.c_void_p()
        size = ctypes.c_size_t(4 * num_numbers)
        code = self._driver.cuMemHostAlloc(ctypes.byref(pointer), size, ctypes.c_uint(PORTABLE | MAPPED))
        if code or pointer.value is None:
            raise BackendError(f"The CUDA driver gives no pinned memory (code {code}).")
        self.address = pointer.value
        """Of host and device alike."""

        self.numbers: npt.NDArray[np.int32] = np.ctypeslib.as_array(
            (ctypes.c_int32 * num_numbers).from_address(pointer.value)
        )

    def close(self) -> None:
        """Give it back. Nobody may look at it any more."""
        self._driver.cuMemFreeHost(ctypes.c_void_p(self.address))
