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
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from phyla.backend.background import QUICK_SECONDS, give_way, in_background
from phyla.draft.blaming import blamed, costliest
from phyla.draft.looking import is_long, look_over
from phyla.draft.vocabulary import Vocabulary
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec

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
        _write(sink, _or_error(lambda asked=asked: _answered(asked, trials)))  # type: ignore[misc]


def _answered(asked: dict[str, Any], trials: dict[str, Trial]) -> dict[str, Any]:
    if "prepare" in asked:
        make, vocabulary = _named(asked["prepare"]), Vocabulary.from_json(asked["vocabulary"])
        # Importing a library takes seconds, and is no reason to slow an answer down.
        trials[".".join(asked["prepare"])] = in_background(lambda: make(vocabulary), quick_seconds=0)
        return {}
    spec = ConstraintSpec(**asked["spec"])
    work = _work(asked, spec, trials)
    if asked["memory_bytes"]:
        # On top of what the compiler's own libraries have mapped.
        _limit(resource.RLIMIT_AS, _mapped_bytes() + asked["memory_bytes"])
    # Counts what this process computes, and ends it wherever it is, in a library's own code too.
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    quick_seconds = 0 if is_long(spec) else QUICK_SECONDS
    try:
        return in_background(work, quick_seconds=quick_seconds, is_waited_for=False)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # What is made ready next may map more than that.
        _limit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[1])


def _work(asked: dict[str, Any], spec: ConstraintSpec, trials: dict[str, Trial]) -> Callable[[], dict[str, Any]]:
    if "costliest" in asked:
        return lambda: {"costliest": costliest(spec)}
    if "supports" in asked:
        supports, max_nesting = _named(asked["supports"]), asked["max_nesting"]
        return lambda: {"reason": look_over(spec, supports, max_nesting).reason}
    trial = trials[".".join(asked["trial"])]

    def tried() -> dict[str, Any]:
        began = time.process_time()
        try:
            trial(spec.kind, spec.source)
        except ConstraintError as error:
            raise ConstraintError(blamed(spec, error, lambda schema: trial("json_schema", schema))) from error
        return {"seconds": time.process_time() - began}

    return tried


def _named(name: Sequence[str]) -> Callable[..., Any]:
    module, function = name
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _or_error(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except ConstraintError as error:
        return {"error": str(error)[:MAX_ERROR_CHARS]}
    except MemoryError:
        return {"error": "compiling it takes too much memory. Make it simpler."}
    except RecursionError:
        return {"error": "it is nested too deeply."}


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
