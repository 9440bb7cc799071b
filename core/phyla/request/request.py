"""One unit of work for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phyla.request.rendered import Rendered
from phyla.request.sampling_params import SamplingParams


@dataclass(frozen=True)
class ConstraintSpec:
    """What the output must look like, before any engine has compiled it."""

    kind: str
    """`json_object`, `json_schema`, `regex`, `grammar`, `choice`, `structural_tag`, or an outside plugin's own."""

    source: str
    """The schema, pattern or grammar as text; JSON for structured kinds."""

    engine: str = "auto"
    """A `phyla_proposers` name, or `auto`."""

    compact: bool = False
    """JSON without any whitespace between its tokens; otherwise a little is allowed, never without end."""


@dataclass(frozen=True)
class Request:
    """Plain picklable data; the engine never sees anything else of a client."""

    request_id: str
    rendered: Rendered
    sampling: SamplingParams = field(default_factory=SamplingParams)

    max_tokens: int | None = None
    """Cap on emitted tokens; None runs to end of sequence, a stop string or the context limit."""

    stop: tuple[str, ...] = ()
    """Stop strings, matched on decoded text; empty ones are not allowed."""

    num_samples: int = 1
    """Rows that share one prefill (`n`); each event names its `sample`."""

    constraint: ConstraintSpec | None = None
    adapters: tuple[str, ...] = ()

    owner: str = ""
    """Cache namespace of the API key that sent it; empty without keys."""

    session_id: str | None = None
    """Affinity for the prefix index."""

    levers: Mapping[str, str] = field(default_factory=dict)
    """Per-request levers: `placement` = `solo` never shares a step with other rows."""

    trace_id: str | None = None

    skip_prefix_reuse: bool = False
