"""What a process that only serves asks of its Python: that no thread keeps the others waiting."""

from __future__ import annotations

import gc
import sys

SWITCH_SECONDS = 0.0005
"""The interpreter's default of 5 ms makes a 7 ms engine step 34 ms long beside one busy thread; this makes it 10.5."""


def share_interpreter() -> None:
    """Let threads take turns often."""
    sys.setswitchinterval(SWITCH_SECONDS)


def freeze_garbage() -> None:
    """Take everything that exists by now out of the collector's sight.

    What was imported and loaded stays for good. Looking through it would stop all threads for 40 ms with the starter,
    every time that enough has come and gone.
    """
    gc.collect()
    gc.freeze()
