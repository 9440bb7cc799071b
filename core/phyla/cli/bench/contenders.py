"""The sides of a comparison: the engine, and another program's model, run on the same prompts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

from phyla.baseline import BaselineModel
from phyla.cli.bench.window import Window
from phyla.errors import GenerationFailed
from phyla.library import Model
from phyla.request import EngineEvent, Failed, Finished, Rendered, Request, SamplingParams, Token

OURS = "phyla"
Prompts = Sequence[Sequence[int]]


class Contender(Protocol):
    """One side."""

    @property
    def name(self) -> str: ...

    def run(self, prompts: Prompts, max_tokens: int, window: Window, *, is_fresh: bool) -> None:
        """Continue the prompts side by side until the window is over, or all rows are; then end them.

        Args:
            prompts: token ids of each row.
            max_tokens: of each row.
            window: is told when tokens come.
            is_fresh: the prompts have to be read whole, whatever was read before.
        """
        ...

    def drafting(self) -> Mapping[str, Any] | None:
        """Running counts of what was drafted; None where nothing drafts."""
        ...


class OurSide:
    """The engine, asked as the server asks it.

    The window is told on the engine's thread: another thread that woke up for each token would take from its time.
    """

    name = OURS

    def __init__(self, model: Model) -> None:
        self._model = model
        self._numbers = itertools.count()

    def run(self, prompts: Prompts, max_tokens: int, window: Window, *, is_fresh: bool) -> None:
        run = next(self._numbers)
        rows = {f"bench-{run}-{row}": row for row in range(len(prompts))}
        is_over, has_ended = threading.Event(), threading.Event()
        failures: list[str] = []
        open_ids = set(rows)

        def hear(events: Sequence[EngineEvent]) -> None:
            now = time.perf_counter()
            tokens = [rows[one.request_id] for one in events if isinstance(one, Token) and one.request_id in rows]
            if tokens and window.saw(tokens, now):
                is_over.set()
            for event in events:
                if isinstance(event, Finished | Failed) and event.request_id in rows:
                    failures.extend([event.error] if isinstance(event, Failed) else [])
                    open_ids.discard(event.request_id)
                    is_over.set()
            if not open_ids:
                has_ended.set()

        forget = self._model.engine.subscribe(hear)
        try:
            window.began = time.perf_counter()
            for request_id, row in rows.items():
                self._model.engine.submit(_request(request_id, prompts[row], max_tokens, is_fresh=is_fresh))
            is_over.wait()
            if not window.is_over:
                # A row that ended first leaves the others to go on as they are: they end by their own caps.
                has_ended.wait()
            for request_id in rows:
                self._model.engine.cancel(request_id)
            has_ended.wait()
        finally:
            forget()
        _raise_first(failures)

    def drafting(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._model.engine.stats()["speculation"]
        return found


class BaselineSide:
    """Another program's model, on this thread."""

    def __init__(self, name: str, model: BaselineModel) -> None:
        self.name = name
        self._model = model

    def run(self, prompts: Prompts, max_tokens: int, window: Window, *, is_fresh: bool) -> None:
        window.began = time.perf_counter()
        with closing(self._model.decode(prompts, max_tokens)) as steps:
            for rows in steps:
                if window.saw(rows, time.perf_counter()):
                    break

    def drafting(self) -> Mapping[str, Any] | None:
        return None


def _request(request_id: str, prompt: Sequence[int], max_tokens: int, *, is_fresh: bool) -> Request:
    return Request(
        request_id=request_id,
        rendered=Rendered(tuple(prompt)),
        sampling=SamplingParams(ignore_eos=True),
        max_tokens=max_tokens,
        skip_prefix_reuse=is_fresh,
    )


def _raise_first(failures: Sequence[str]) -> None:
    if failures:
        raise GenerationFailed(failures[0])
