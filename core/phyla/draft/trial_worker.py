"""The process in which constraints are tried out: schemas come from outside, and a compiler can hang, grow or crash.

Speaks frames over its standard streams: four bytes of length, then JSON. Runs until its input ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from phyla.backend.background import give_way, in_background
from phyla.draft.vocabulary import Vocabulary
from phyla.errors import ConstraintError

if TYPE_CHECKING:
    from phyla.draft.constraint import Trial

MAX_ERROR_CHARS = 1000
MAX_OUTPUT_BYTES = 1 << 20


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    # Getting ready too: a process that takes the place of one that was killed starts beside running answers.
    give_way()
    _write(sink, {"ready": True})
    trials: dict[str, Trial] = {}
    while len(prefix := source.read(4)) == 4:
        (length,) = struct.unpack("<I", prefix)
        asked = json.loads(source.read(length))
        _write(sink, _error_of(lambda asked=asked: _do(asked, trials)))  # type: ignore[misc]


def _do(asked: dict[str, Any], trials: dict[str, Trial]) -> None:
    if "prepare" in asked:
        module, name = asked["prepare"]
        prepare = getattr(importlib.import_module(module), name)
        trials[f"{module}.{name}"] = prepare(Vocabulary.from_json(asked["vocabulary"]))
        return
    trial = trials[".".join(asked["trial"])]
    if asked["memory_bytes"]:
        # On top of what the compiler's own libraries have mapped.
        _limit(resource.RLIMIT_AS, _mapped_bytes() + asked["memory_bytes"])
    # Counts what this process computes, and ends it wherever it is, in a library's own code too.
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    try:
        in_background(lambda: trial(asked["kind"], asked["source"]), is_waited_for=False)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _error_of(work: Callable[[], None]) -> dict[str, str]:
    try:
        work()
    except ConstraintError as error:
        return {"error": str(error)[:MAX_ERROR_CHARS]}
    except MemoryError:
        return {"error": "compiling it takes too much memory. Make it simpler."}
    except RecursionError:
        return {"error": "it is nested too deeply."}
    return {}


def _mapped_bytes() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 1 << 40


def _write(sink: BinaryIO, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    sink.write(struct.pack("<I", len(data)) + data)
    sink.flush()


def _limit(kind: int, value: int) -> None:
    # Not every system enforces every limit; the parent's deadline holds on all of them.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
