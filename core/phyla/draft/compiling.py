"""Compiled constraints: tried out where a hang can be ended, made once, kept for the next request that wants them.

Nothing here runs on the engine thread but `open`, which only looks up.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from phyla.backend.background import QUICK_SECONDS, in_background
from phyla.draft.grammar_settings import GrammarSettings
from phyla.draft.looking import is_long, look_over
from phyla.draft.trial import TrialLimits, Trials
from phyla.draft.vocabulary import Vocabulary
from phyla.errors import ConstraintError, ConstraintUntried
from phyla.kv.scheme import SUPPORTED, Support, refused

if TYPE_CHECKING:
    from phyla.draft.constraint import CompiledConstraint, Constraint, ConstraintEngine
    from phyla.request import ConstraintSpec, Request
    from phyla.tokenizer import Tokenizer

NO_ENGINE = "no grammar engine is active. Install one (phyla[xgrammar]) or choose one with --proposer."


_log = logging.getLogger(__name__)


class Enforced:
    """One compiled constraint. Whoever has it keeps it ready for the engine."""

    def __init__(self, engine: str, compiled: CompiledConstraint) -> None:
        self.engine = engine
        self.compiled = compiled


@dataclass(frozen=True)
class _Failure:
    message: str


class ConstraintCompiler:
    """The constraints of one model. Thread-safe."""

    def __init__(
        self,
        engines: Sequence[ConstraintEngine],
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        settings: GrammarSettings | None = None,
    ) -> None:
        """Over these engines, the one to be asked first in front; none refuses every constraint."""
        self._settings = settings if settings is not None else GrammarSettings()
        self._engines = tuple(engines) if self._settings.enabled else ()
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        limits = TrialLimits(self._settings.compile_seconds, self._settings.compile_memory_bytes)
        self._trials = Trials(limits, lambda: Vocabulary.of(tokenizer, eos_ids))
        self._lock = threading.Lock()
        self._recent: OrderedDict[ConstraintSpec, Enforced | _Failure] = OrderedDict()
        self._recent_bytes = 0
        self._alive: WeakValueDictionary[ConstraintSpec, Enforced] = WeakValueDictionary()
        self._under_way: dict[ConstraintSpec, Future[Enforced]] = {}

    @property
    def is_active(self) -> bool:
        """Whether anything can be enforced at all."""
        return bool(self._engines)

    def supports(self, spec: ConstraintSpec) -> Support:
        """Yes, or why no engine here can enforce it. Cheap but for a long one; compiling may still find a reason."""
        try:
            chosen = self._engine_for(spec)
        except ConstraintError as error:
            return refused(str(error))
        return chosen if isinstance(chosen, Support) else SUPPORTED

    def compile(self, spec: ConstraintSpec) -> Enforced:
        """The compiled constraint; hold on to it until the request has ended. Blocks, also for another's same spec.

        Raises:
            ConstraintError: it can't be enforced; says why.
        """
        with self._lock:
            known = self._known(spec)
            under_way = self._under_way.get(spec)
            mine: Future[Enforced] = Future()
            if known is None and under_way is None:
                self._under_way[spec] = mine
        if isinstance(known, _Failure):
            raise ConstraintError(known.message)
        if known is not None:
            return known
        return under_way.result() if under_way is not None else self._compiled(spec, mine)

    def open(self, request: Request) -> Constraint | None:
        """A fresh matcher for a row, or None if its request wants none. On the engine thread.

        Raises:
            ConstraintError: it wasn't compiled before the request was submitted.
        """
        spec = request.constraint
        if spec is None:
            return None
        with self._lock:
            enforced = self._alive.get(spec)
        if enforced is None:
            raise ConstraintError(f"The constraint of kind '{spec.kind}' wasn't compiled before it was submitted.")
        return enforced.compiled.open()

    def warm_up(self) -> None:
        """Do what the first request would otherwise wait for: imports, the tokenizer's tables, a worker."""
        from phyla.request import ConstraintSpec

        spec = ConstraintSpec("json_object", "{}")
        if not self.supports(spec):
            return
        try:
            self.compile(spec)
        except ConstraintError as error:
            # A model without grammars still serves; requests that need one are told the same.
            _log.warning("No constraint can be enforced for this model: %s", error)

    def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        self._trials.close()

    def _compiled(self, spec: ConstraintSpec, mine: Future[Enforced]) -> Enforced:
        outcome: Enforced | _Failure | None = None
        try:
            outcome = enforced = self._compile(spec)
            mine.set_result(enforced)
            return enforced
        except ConstraintUntried as error:
            mine.set_exception(error)
            raise
        except ConstraintError as error:
            outcome = _Failure(str(error))
            mine.set_exception(error)
            raise
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[spec]
                if outcome is not None:
                    self._remember(spec, outcome)

    def _compile(self, spec: ConstraintSpec) -> Enforced:
        engine = self._engine_for(spec)
        if isinstance(engine, Support):
            raise ConstraintError(str(engine.reason))
        seconds = 0.0 if engine.trial is None else self._trials.run(engine.trial, spec)
        quick_seconds = 0.0 if is_long(spec) or seconds > QUICK_SECONDS else QUICK_SECONDS
        try:
            compiled = in_background(
                lambda: engine.compile(spec, self._tokenizer, self._eos_ids), quick_seconds=quick_seconds
            )
        except ConstraintError:
            raise
        except Exception as error:
            raise ConstraintError(f"'{engine.name}' can't compile it: {type(error).__name__}: {error}") from error
        return Enforced(engine.name, compiled)

    def _engine_for(self, spec: ConstraintSpec) -> ConstraintEngine | Support:
        """The first engine that supports it, or what the first one said against it."""
        from phyla.tokenizer import why_no_text

        reason = why_no_text(self._tokenizer)
        if reason is not None:
            return refused(reason)
        too_large = self._too_large(spec)
        if not too_large:
            return too_large
        refusals = []
        for engine in self._engines:
            if spec.engine in ("auto", engine.name):
                support = self._looked_over(spec, engine)
                if support:
                    return engine
                refusals.append(support)
        return refusals[0] if refusals else refused(_nobody(spec, [one.name for one in self._engines]))

    def _looked_over(self, spec: ConstraintSpec, engine: ConstraintEngine) -> Support:
        if is_long(spec) and engine.trial is not None:
            return self._trials.look_over(engine.supports, spec, self._settings.max_nesting)
        return look_over(spec, engine.supports, self._settings.max_nesting)

    def _too_large(self, spec: ConstraintSpec) -> Support:
        try:
            num_bytes = len(spec.source.encode())
        except UnicodeEncodeError:
            return refused("it has half of a surrogate pair, which no text can be.")
        most = self._settings.max_source_bytes
        return SUPPORTED if num_bytes <= most else refused(f"it has {num_bytes} bytes, and the most is {most}.")

    def _known(self, spec: ConstraintSpec) -> Enforced | _Failure | None:
        known = self._recent.get(spec)
        if known is None:
            return self._alive.get(spec)
        self._recent.move_to_end(spec)
        return known

    def _remember(self, spec: ConstraintSpec, outcome: Enforced | _Failure) -> None:
        if isinstance(outcome, Enforced):
            self._alive[spec] = outcome
        self._recent[spec] = outcome
        self._recent_bytes += _num_bytes(spec, outcome)
        settings = self._settings
        while len(self._recent) > settings.cache_entries or self._recent_bytes > settings.cache_bytes:
            self._recent_bytes -= _num_bytes(*self._recent.popitem(last=False))


def _num_bytes(spec: ConstraintSpec, outcome: Enforced | _Failure) -> int:
    return len(spec.source) + (outcome.compiled.num_bytes if isinstance(outcome, Enforced) else 0)


def _nobody(spec: ConstraintSpec, names: Sequence[str]) -> str:
    if not names:
        return NO_ENGINE
    return f"there is no grammar engine '{spec.engine}' here; there is {', '.join(names)}."
