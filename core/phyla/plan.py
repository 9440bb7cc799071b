"""What was chosen before anything is loaded, by whom and why: frozen, picklable, printed by `phyla explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phyla.backend.device import BackendFacts
    from phyla.backend.identity import NumericalIdentity
    from phyla.backend.strategy import Strategies
    from phyla.draft.method import DraftFacts
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import WeightForm

RouteOption = Literal["auto", "exact", "fast"]
Question = Literal["family", "kv_scheme", "method", "proposer", "weights", "dtype"]


@dataclass(frozen=True)
class Choice:
    """One decision."""

    name: str
    """What was chosen; `plain` and `none` are names too."""

    chosen_by: str
    """`flag`, `variable`, `file`, `auto`, or `plugin NAME`."""

    reason: str
    rejected: tuple[tuple[str, str], ...] = ()
    """(name, why not) of everything else that was asked."""


@dataclass(frozen=True)
class Candidates:
    """What `phyla_plan` may choose among."""

    facts: ModelFacts
    backend: BackendFacts
    defaults: Mapping[Question, Choice]
    names: Mapping[Question, tuple[str, ...]]
    """Names that would be accepted for each question."""


@dataclass(frozen=True)
class PlanAnswer:
    """One plugin's choice for one or more questions."""

    choices: Mapping[Question, str]
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything the engine needs to load and run a model."""

    reference: str
    model_id: str
    fingerprint: str
    opener: str
    facts: ModelFacts
    backend: BackendFacts
    identity: NumericalIdentity
    family: Choice
    kv_scheme: Choice
    method: Choice
    proposer: Choice
    dtype: str
    dtype_choice: Choice
    weights_choice: Choice
    strategies: Strategies
    """What chooses between ways of computing the same, on the fast route."""

    weights: WeightForm = "stored"
    route: RouteOption = "auto"
    layer_schemes: tuple[str, ...] = ()
    """Scheme identity per layer of the layout (`plain` where the scheme doesn't reach)."""

    drafter_reference: str | None = None
    drafter_family: str | None = None
    """Of a drafter that is a model of its own."""

    drafter_model: ModelFacts | None = None
    draft_facts: DraftFacts | None = None
    num_draft_tokens: int | None = None
    """Most tokens drafted at once; None is the method's own number."""

    fills: tuple[str, ...] = ()
    """Fill sources by name, as they were asked for."""

    fused_sdpa: bool = False
    """Fused attention over quantised keys and values."""

    compiled_activations: bool = True
    compiled_decode: Literal["auto", "on", "off"] = "auto"
    windows_ahead: Literal["auto", "on", "off"] = "auto"
    notices: tuple[str, ...] = field(default=())
    """What was accepted without effect, what fell back and why."""
