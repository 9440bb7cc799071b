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
from pathlib import Path
from typing import Any, BinaryIO

from phyla.backend.background import give_way
from phyla.errors import ConstraintError

MAX_ERROR_CHARS = 1000
MAX_OUTPUT_BYTES = 1 << 20


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _write(sink, {"ready": True})
    while len(prefix := source.read(4)) == 4:
        (length,) = struct.unpack("<I", prefix)
        _write(sink, _answer(json.loads(source.read(length))))


def _answer(asked: dict[str, Any]) -> dict[str, str]:
    if "import" in asked:
        for module in asked["import"]:
            importlib.import_module(module)
        return {}
    give_way()
    module, name = asked["trial"]
    trial = getattr(importlib.import_module(module), name)
    if asked["memory_bytes"]:
        # On top of what the compiler's own libraries have mapped.
        _limit(resource.RLIMIT_AS, _mapped_bytes() + asked["memory_bytes"])
    # Counts what this process computes, and ends it wherever it is, in a library's own code too.
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    try:
        trial(asked["kind"], asked["source"])
    except ConstraintError as error:
        return {"error": str(error)[:MAX_ERROR_CHARS]}
    except MemoryError:
        return {"error": "compiling it takes too much memory. Make it simpler."}
    except RecursionError:
        return {"error": "it is nested too deeply."}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
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
