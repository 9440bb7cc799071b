"""Rendering templates in processes that are killed when they take too long.

A thread can't be stopped, and a template can loop, or raise a number to a power, for ever: only a process can be ended.
A call costs some tenths of a millisecond.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, LifoQueue
from threading import BoundedSemaphore
from time import monotonic
from typing import Any

from phyla.errors import TemplateError

_READY_SECONDS = 60.0
_MAX_BYTES_PER_CHAR = 12
"""The worst that JSON makes of one character: two escaped surrogates."""


@dataclass(frozen=True)
class TemplateLimits:
    """What one rendering may take."""

    seconds: float = 5.0
    max_chars: int = 16 * 1024 * 1024
    memory_bytes: int = 1024 * 1024 * 1024
    """Address space of the worker, where the system enforces it; 0 is unlimited."""


@dataclass(frozen=True)
class RenderedText:
    """The outcome for one context: a text, or why there is none."""

    text: str | None
    error: str | None = None


class TemplateSandbox:
    """A few worker processes for one template. Thread-safe; a worker starts when it is first needed."""

    def __init__(self, template: str, limits: TemplateLimits | None = None, num_workers: int = 2) -> None:
        self._template = template
        self._limits = limits if limits is not None else TemplateLimits()
        self._idle: LifoQueue[_Worker] = LifoQueue()
        self._seats = BoundedSemaphore(num_workers)
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def render(self, contexts: Sequence[Mapping[str, Any]]) -> list[RenderedText]:
        """Render the template once per context, all under one deadline.

        Raises:
            TemplateError: the template isn't valid, or all of it took longer than the limit.
        """
        request = {
            "template": self._template,
            "contexts": list(contexts),
            "max_chars": self._limits.max_chars,
            "memory_bytes": self._limits.memory_bytes,
            "cpu_seconds": self._limits.seconds,
        }
        max_bytes = (self._limits.max_chars * len(contexts)) * _MAX_BYTES_PER_CHAR + 4096
        with self._seats:
            worker = self._take()
            try:
                answer = worker.ask(request, self._limits.seconds, max_bytes)
            except BaseException:
                worker.kill()
                raise
            self._idle.put(worker)
        if "error" in answer:
            raise TemplateError(f"The chat template can't be used: {answer['error']}")
        return [RenderedText(result.get("text"), result.get("error")) for result in answer["results"]]

    def close(self) -> None:
        """End the idle workers. Safe to call twice."""
        _close_all(self._idle)

    def _take(self) -> _Worker:
        with contextlib.suppress(Empty):
            return self._idle.get_nowait()
        return _Worker()


class _Worker:
    """One process and its streams."""

    def __init__(self) -> None:
        # The same interpreter with the same path finds the same packages, whatever put them there.
        program = f"import sys; sys.path[:] = {sys.path!r}; from phyla.tokenizer.template_worker import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        try:
            self._read_frame(monotonic() + _READY_SECONDS, 4096)
        except TemplateError as error:
            self.kill()
            raise TemplateError("The process that renders chat templates doesn't start.") from error

    def ask(self, request: Mapping[str, Any], seconds: float, max_bytes: int) -> dict[str, Any]:
        deadline = monotonic() + seconds
        data = json.dumps(request).encode()
        self._write(struct.pack("<I", len(data)) + data, deadline)
        return self._read_frame(deadline, max_bytes)

    def kill(self) -> None:
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
                raise TemplateError("The chat template took too long and was ended.")
            try:
                view = view[os.write(descriptor, view) :]
            except BrokenPipeError as error:
                raise TemplateError(
                    "The process that renders chat templates ended; the request can be sent again."
                ) from error

    def _read_frame(self, deadline: float, max_bytes: int) -> dict[str, Any]:
        (length,) = struct.unpack("<I", self._read(4, deadline))
        if length > max_bytes:
            raise TemplateError("The chat template writes more than a prompt may hold.")
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
                raise TemplateError("The chat template took too long and was ended.")
            chunk = os.read(descriptor, min(num_bytes - len(found), 1 << 20))
            if not chunk:
                raise TemplateError("The chat template used up its memory or time and was ended.")
            found += chunk
        return bytes(found)


def _close_all(idle: LifoQueue[_Worker]) -> None:
    while True:
        try:
            idle.get_nowait().kill()
        except Empty:
            return
