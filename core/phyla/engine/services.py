"""What the engine's parts work with, passed in once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.engine.admission import Admission
    from phyla.engine.records import Record
    from phyla.engine.reuse import PrefixReuse
    from phyla.engine.trace import Trace
    from phyla.model.facts import ModelFacts
    from phyla.request import EngineEvent, Request
    from phyla.sampling.declaration import NamedSampler
    from phyla.tokenizer import Tokenizer


@dataclass(frozen=True)
class Services:
    """Used on the engine thread only."""

    facts: ModelFacts
    tokenizer: Tokenizer
    admission: Admission
    reuse: PrefixReuse
    samplers: Sequence[NamedSampler]
    eos_ids: frozenset[int]
    """Of model and tokenizer together."""

    is_solo: Callable[[Request], bool]
    chunk_tokens: int
    """Of a prefill chunk without company."""

    emit: Callable[[Sequence[EngineEvent]], None]
    tell: Callable[[Record], None]
    now: Callable[[], float]
    """Seconds of a clock that only goes forward."""

    trace: Trace
