"""One stream of JSON lines about what the engine does; each debug lever is a filter on it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

from phyla.errors import UsageError
from phyla.settings import PluginSettings, setting

if TYPE_CHECKING:
    from phyla.draft.span import Span
    from phyla.draft.verify import Verdict
    from phyla.engine.row import Row
    from phyla.engine.scheduler import PrefillPiece, RowKey
    from phyla.request import Request

TraceKind = Literal["phase", "step", "lane", "memory", "spec", "grammar", "fill", "expert"]

VERSION = 1


class TraceSettings(PluginSettings, section="trace"):
    """Diagnostics; all off by default."""

    trace: str | None = setting(None, flag="--trace", metavar="FILE")
    """Write every kind of trace line to this file; `-` is standard error."""

    phases: bool = setting(False, lever="P2R_TRACE")
    """Requests: admission, prefill pieces, first token, end."""

    sync: bool = setting(False, lever="P2R_SYNC")
    """Wait for the device around the first token, so that its phases don't lend time to each other."""

    lanes: bool = setting(False, lever="LANE_DEBUG")
    """Which rows step together and on which route."""

    steps: bool = setting(False, lever="BATCH_STEP_TRACE")
    """Every decode step with its duration."""

    speculation: bool = setting(False, lever="SPEC_TRACE")
    """Every verified window: drafted and accepted."""

    grammar: bool = setting(False, lever="GRAMMAR_DEBUG")
    """Constraints: opened, advanced, refused, rolled back."""

    fill: bool = setting(False, lever="FILL_TRACE")
    """Every span of a fill source: what it proposed and how much of it stayed."""

    memory: bool = setting(False, lever="PREFILL_MEM_LOG")
    """MLX's active and peak memory after every chunk of prefill."""

    @property
    def kinds(self) -> frozenset[TraceKind]:
        """What is to be written."""
        if self.trace is not None:
            return frozenset({"phase", "step", "lane", "memory", "spec", "grammar", "fill", "expert"})
        chosen: dict[TraceKind, bool] = {
            "phase": self.phases,
            "step": self.steps,
            "lane": self.lanes,
            "memory": self.memory,
            "spec": self.speculation,
            "grammar": self.grammar,
            "fill": self.fill,
        }
        return frozenset(kind for kind, is_on in chosen.items() if is_on)


class Trace:
    """Writes a line if its kind is wanted; otherwise costs one look-up. Never writes text of prompts or answers."""

    def __init__(
        self, kinds: frozenset[TraceKind], stream: TextIO, now: Callable[[], float], *, owns_stream: bool
    ) -> None:
        self._kinds = kinds
        self._stream = stream
        self._owns_stream = owns_stream
        self._now = now
        self._lanes: tuple[str, ...] = ()

    def wants(self, kind: TraceKind) -> bool:
        return kind in self._kinds

    def line(self, kind: TraceKind, event: str, **facts: Any) -> None:
        """One line: version, kind, event, milliseconds of the engine's clock, and the facts."""
        if kind in self._kinds:
            record = {"v": VERSION, "kind": kind, "event": event, "ms": round(self._now() * 1000, 3), **facts}
            self._write(json.dumps(record))

    def close(self) -> None:
        """Close the stream, if it was opened for this trace. Safe to call twice."""
        # Whose it is can't be seen from the stream: `sys.stderr` may be another one by now.
        if self._owns_stream:
            self._stream.close()

    def admitted(self, request: Request, num_cached: int) -> None:
        if "phase" in self._kinds:
            ids = {"request": request.request_id, "trace": request.trace_id}
            self.line("phase", "admitted", **ids, prompt_tokens=len(request.rendered.ids), cached_tokens=num_cached)

    def prefilled(self, piece: PrefillPiece, seconds: float) -> None:
        if "phase" in self._kinds:
            facts = {"start": piece.start, "tokens": piece.num_tokens, "layers": piece.num_layers, "route": piece.route}
            self.line("phase", "prefill", request=piece.row.request_id, duration_ms=_milliseconds(seconds), **facts)

    def chunk_memory(self, request_id: str, active_bytes: int, peak_bytes: int) -> None:
        self.line("memory", "chunk", request=request_id, active_bytes=active_bytes, peak_bytes=peak_bytes)

    def stepped(self, rows: Sequence[Row], route: str, seconds: float) -> None:
        if "step" in self._kinds:
            self.line("step", "decode", rows=len(rows), route=route, duration_ms=_milliseconds(seconds))
        if "lane" in self._kinds:
            lanes = (route, *(f"{row.key.request_id}/{row.key.sample}" for row in rows))
            if lanes != self._lanes:
                self._lanes = lanes
                self.line("lane", "membership", route=route, rows=list(lanes[1:]))

    def verified(self, key: RowKey, drafts: Sequence[int], verdict: Verdict, source: str | None) -> None:
        """One row's window, and whose drafts were in it."""
        if "spec" in self._kinds:
            self.line(
                "spec",
                "verified",
                request=key.request_id,
                sample=key.sample,
                source=source,
                drafted=verdict.num_drafted,
                accepted=verdict.num_accepted,
                drafts=list(drafts),
                emitted=list(verdict.tokens),
            )

    def filled(self, key: RowKey, span: Span, verdict: Verdict, source: str | None) -> None:
        """A fill's span: `entered` as it was, or `checked` by the model."""
        self.line(
            "fill",
            "entered" if span.kind == "asserted" else "checked",
            request=key.request_id,
            sample=key.sample,
            source=source,
            proposed=list(span.tokens),
            kept=verdict.num_asserted + verdict.num_accepted,
        )

    def ended(self, request_id: str, sample: int, outcome: str, error: str | None = None) -> None:
        if "phase" in self._kinds:
            self.line("phase", "end", request=request_id, sample=sample, outcome=outcome, error=error)

    def _write(self, line: str) -> None:
        # A closed or full stream loses diagnostics; it never stops decoding.
        with contextlib.suppress(ValueError, OSError):
            self._stream.write(line + "\n")
            self._stream.flush()


def open_trace(settings: TraceSettings, now: Callable[[], float]) -> Trace:
    """The trace that the settings ask for.

    Raises:
        UsageError: the file can't be written.
    """
    if settings.trace is None or settings.trace == "-":
        return Trace(settings.kinds, sys.stderr, now, owns_stream=False)
    try:
        return Trace(settings.kinds, open(settings.trace, "a", encoding="utf-8"), now, owns_stream=True)
    except OSError as error:
        raise UsageError(f"--trace can't write to '{settings.trace}': {error.strerror}. Name another file.") from error


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
