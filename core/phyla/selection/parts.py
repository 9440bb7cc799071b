"""The objects that a plan names: looked up again, identically, in whatever process the plan has come to."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phyla.backend import BackendFacts
from phyla.checkpoint import Checkpoint
from phyla.checkpoint.headers_only import FirstRead, headers_only
from phyla.draft import ConstraintEngine, DraftMethod, LoadableDrafter
from phyla.draft.fill import FillSource
from phyla.kv import KVScheme, LayerSpec, LayerState
from phyla.model import Family, LoadOptions, Progress, no_progress
from phyla.plan import Plan
from phyla.plugins import Declared, PluginManager, by_name, pick, plugin_border
from phyla.selection.methods import NO_METHOD
from phyla.selection.openers import open_checkpoint, reopen
from phyla.selection.proposers import constraint_engines, fill_sources
from phyla.selection.schemes import completed, configured
from phyla.settings import Settings

if TYPE_CHECKING:
    from phyla.model.binding import ModelBinding


@dataclass(frozen=True)
class Parts:
    """What the engine loads and runs."""

    plan: Plan
    checkpoint: Checkpoint
    family: Declared[Family]
    schemes: tuple[Declared[KVScheme], ...]
    """One per layer of the layout."""

    method: Declared[DraftMethod] | None = None
    drafter: Checkpoint | None = None
    constraint_engines: tuple[ConstraintEngine, ...] = ()
    """The chosen one first; where nobody named it, those that may stand in for what it can't enforce."""
    fills: tuple[FillSource, ...] = ()
    drafter_family: Declared[Family] | None = None
    """Of a drafter that is a model of its own."""

    def bind(self, progress: Progress = no_progress) -> ModelBinding:
        """Load the weights. Call it on the engine thread."""
        with plugin_border(self.family.plugin, f"loading {self.plan.model_id}"):
            return self.family.value.bind(self.checkpoint, self.plan.facts, self._load_options(progress))

    def loadable_drafter(self, progress: Progress = no_progress) -> LoadableDrafter | None:
        """The drafter, if there is one; its `bind` loads weights, on the engine thread."""
        if self.drafter is None:
            return None
        checkpoint, family, facts = self.drafter, self.drafter_family, self.plan.drafter_model
        options = self._load_options(progress)
        if family is None or facts is None:
            return LoadableDrafter(checkpoint, options=options)

        def bind() -> ModelBinding:
            with plugin_border(family.plugin, f"loading the drafter {checkpoint.model_id}"):
                return family.value.bind(checkpoint, facts, options)

        return LoadableDrafter(checkpoint, facts, options=options, family_bind=bind)

    def check_tensors(self) -> None:
        """Refuse what binding would refuse before it reads the first weight, a drafter that is a model first.

        Raises:
            CheckpointError: tensors that don't fit, as `bind` says it.
        """
        drafter = None if self.drafter is None else headers_only(self.drafter)
        unread = replace(self, checkpoint=headers_only(self.checkpoint), drafter=drafter)
        loadable = unread.loadable_drafter()
        if loadable is not None and loadable.family_bind is not None:
            with suppress(FirstRead):
                loadable.bind()
        with suppress(FirstRead):
            unread.bind()

    def new_state(self, layer: LayerSpec) -> LayerState:
        """An empty state of one layer, in its scheme."""
        scheme = self.schemes[layer.index]
        with plugin_border(scheme.plugin, f"making a state of '{scheme.value.identity}' for layer {layer.index}"):
            return scheme.value.create(layer, self.backend, self.plan.dtype)

    @property
    def backend(self) -> BackendFacts:
        return self.plan.backend

    def _load_options(self, progress: Progress) -> LoadOptions:
        return LoadOptions(
            backend=self.plan.backend,
            dtype=self.plan.dtype,
            weights=self.plan.weights,
            compiled_activations=self.plan.compiled_activations,
            strategies=self.plan.strategies,
            progress=progress,
        )


def resolve(plan: Plan, manager: PluginManager, settings: Settings) -> Parts:
    """Look up what a plan names.

    Raises:
        UnknownName: a plugin that the plan needs isn't loaded here.
        CheckpointError: the checkpoint is gone or damaged.
    """
    schemes = by_name(manager.kv_schemes(settings), "KV scheme")
    checkpoint = reopen(plan.reference, plan.opener, manager.openers(settings))
    by_identity = {
        identity: completed(configured(identity, schemes), checkpoint, plan.facts, schemes)
        for identity in set(plan.layer_schemes)
    }
    method, drafter = _drafting(plan, checkpoint, manager, settings)
    families = by_name(manager.families(settings), "model family")
    proposers = by_name(manager.proposers(settings), "proposer")
    return Parts(
        plan=plan,
        checkpoint=checkpoint,
        family=pick(families, "model family", plan.family.name),
        schemes=tuple(
            Declared(schemes[by_identity[identity].name].plugin, by_identity[identity])
            for identity in plan.layer_schemes
        ),
        method=method,
        drafter=drafter,
        constraint_engines=constraint_engines(plan.proposer, proposers),
        fills=fill_sources(plan.fills, proposers),
        drafter_family=None if plan.drafter_family is None else pick(families, "model family", plan.drafter_family),
    )


def _drafting(
    plan: Plan, checkpoint: Checkpoint, manager: PluginManager, settings: Settings
) -> tuple[Declared[DraftMethod] | None, Checkpoint | None]:
    if plan.method.name == NO_METHOD:
        return None, None
    method = pick(by_name(manager.methods(settings), "draft method"), "draft method", plan.method.name)
    if plan.drafter_reference is not None:
        return method, open_checkpoint(plan.drafter_reference, manager.openers(settings)).checkpoint
    with plugin_border(method.plugin, f"looking for a drafter in {plan.model_id}"):
        return method, method.value.bundled(checkpoint)
