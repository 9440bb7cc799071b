"""A process of ours for work that may never end: frames of JSON over its standard streams, under a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

READY_SECONDS = 60.0
MAX_READY_BYTES = 4096


class WorkerFailed(Exception):
    """The process didn't answer as it should; of no use afterwards."""


class WorkerTookTooLong(WorkerFailed):
    """No answer within the deadline."""


class WorkerDied(WorkerFailed):
    """It ended by itself: a crash, or one of its limits."""


class WorkerSaysTooMuch(WorkerFailed):
    """Its answer is longer than allowed."""


class KillableWorker:
    """One process. Answers one question at a time; not thread-safe."""

    def __init__(self, module: str) -> None:
        """Start `module.main()`, which says that it is ready in its first frame.

        Raises:
            WorkerFailed: it doesn't start.
        """
        # The same interpreter with the same path finds the same packages, whatever put them there.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        try:
            self._read_frame(monotonic() + READY_SECONDS, MAX_READY_BYTES)
        except WorkerFailed:
            self.kill()
            raise

    def ask(self, question: Mapping[str, Any], seconds: float, max_bytes: int) -> dict[str, Any]:
        """The answer to one question.

        Raises:
            WorkerFailed: there is none; kill the worker.
        """
        deadline = monotonic() + seconds
        data = json.dumps(question).encode()
        self._write(struct.pack("<I", len(data)) + data, deadline)
        return self._read_frame(deadline, max_bytes)

    @property
    def exit_status(self) -> int | None:
        """How the process ended, a signal as a negative number; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it now. Safe to call twice."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        os.set_blocking(descriptor, False)
        view = memoryview(data)
        while view:
            _, writable, _ = select.select([], [descriptor], [], max(0.0, deadline - monotonic()))
            if not writable:
                raise WorkerTookTooLong
            try:
                view = view[os.write(descriptor, view) :]
            except BrokenPipeError as error:
                raise WorkerDied from error

    def _read_frame(self, deadline: float, max_bytes: int) -> dict[str, Any]:
        (length,) = struct.unpack("<I", self._read(4, deadline))
        if length > max_bytes:
            raise WorkerSaysTooMuch
        answer = json.loads(self._read(length, deadline))
        assert isinstance(answer, dict)
        return answer

    def _read(self, num_bytes: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        found = bytearray()
        while len(found) < num_bytes:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - monotonic()))
            if not readable:
                raise WorkerTookTooLong
            chunk = os.read(descriptor, min(num_bytes - len(found), 1 << 20))
            if not chunk:
                raise WorkerDied
            found += chunk
        return bytes(found)
