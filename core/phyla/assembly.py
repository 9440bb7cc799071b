"""From a plan's parts to what an engine is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from phyla.draft.compiling import ConstraintCompiler
from phyla.draft.grammar_settings import GrammarSettings
from phyla.draft.settings import DraftSettings
from phyla.engine.admission import Admission
from phyla.engine.drafting import Drafting
from phyla.engine.engine import EngineSpec, Loaded
from phyla.engine.fast_route import FastRoute
from phyla.engine.forwarding import check_can_compile
from phyla.engine.grouping import Grouping, shares_steps
from phyla.engine.indexed_reuse import IndexedReuse, WantedSet
from phyla.engine.memory import USABLE_SHARE, FitEquation
from phyla.engine.pressure import PRESSURE_SHARE, Pressure
from phyla.engine.proposing import ProposingOptions
from phyla.engine.records import EngineStarted, Record, StepFinished
from phyla.engine.settings import EngineSettings
from phyla.engine.trace import TraceSettings
from phyla.errors import RefusedCombination
from phyla.kv.plain import dtype_bytes, plain_bytes_per_token
from phyla.kv.prefix import PrefixIndex, PrefixNamespace, PrefixSettings, TokenMemory
from phyla.kv.row_state import RowState
from phyla.plugins import plugin_border
from phyla.selection.settings import SelectionSettings
from phyla.tokenizer.absent import why_no_text
from phyla.tokenizer.render import PromptRenderer

if TYPE_CHECKING:
    from phyla.backend import BackendFacts
    from phyla.draft.method import LoadableDrafter
    from phyla.model import ModelFacts
    from phyla.model.binding import ModelBinding
    from phyla.plan import Plan
    from phyla.plugins import PluginManager
    from phyla.selection import Parts
    from phyla.settings import Settings
    from phyla.tokenizer import Tokenizer


def engine_spec(
    parts: Parts, tokenizer: Tokenizer, constraints: ConstraintCompiler, manager: PluginManager, settings: Settings
) -> EngineSpec:
    """What the engine of this plan is made from; nothing is loaded yet."""
    plan, layout = parts.plan, parts.plan.facts.layout
    chosen = settings.section(EngineSettings)
    admission = _admission(parts, tokenizer, chosen)

    def new_state() -> RowState:
        return RowState.fresh(layout, parts.new_state)

    if chosen.group == "stacked" and not shares_steps(plan.route, chosen.batch):
        raise RefusedCombination(
            "--group stacked is about rows that share steps; with --route exact or --batch 1 none do. Leave one away."
        )

    def load() -> Loaded:
        # Before the weights: what can't be honoured is refused at once.
        Grouping(chosen.group, plan.strategies, chosen.batch).group(layout, new_state())
        check_can_compile(plan.compiled_decode, layout, new_state())
        drafter = _bound(parts.loadable_drafter())
        binding = parts.bind()
        drafting = _drafting(parts, binding, drafter, settings)
        reuse = IndexedReuse(
            new_state=new_state,
            index=_prefix_index(plan, settings, is_drafting=drafting is not None),
            namespace=PrefixNamespace(plan.fingerprint, ",".join(plan.layer_schemes), plan.identity.digest()),
            chunk_tokens=plan.identity.prefill_chunk,
            memory=TokenMemory(tokenizer, settings.section(PrefixSettings).remembered_texts),
            draft=WantedSet.of(drafting),
            pressure=_pressure(admission, plan),
            adapter_identity=binding.adapter_identity,
        )
        return Loaded(binding, reuse, drafting, probe_state=new_state)

    def tell(record: Record) -> None:
        if isinstance(record, StepFinished):
            manager.step_finished(record)
        elif isinstance(record, EngineStarted):
            manager.engine_started(record)
        else:
            manager.request_finished(record)

    return EngineSpec(
        model_id=plan.model_id,
        facts=plan.facts,
        tokenizer=tokenizer,
        admission=admission,
        load=load,
        settings=chosen,
        trace=settings.section(TraceSettings),
        route=plan.route,
        fast=_fast_route(plan, admission.usable_bytes),
        samplers=tuple(one.value for one in manager.samplers(settings)),
        open_constraint=constraints.open,
        proposing=_proposing(parts, settings),
        tell=tell,
    )


def _fast_route(plan: Plan, room_bytes: int) -> FastRoute:
    can_wait = plan.backend.device == "cuda"
    return FastRoute(
        strategies=plan.strategies,
        weights=plan.weights,
        compiled_decode=plan.compiled_decode,
        room_bytes=room_bytes,
        starts_ahead=plan.windows_ahead == "on" or (plan.windows_ahead == "auto" and can_wait),
        device_waits=can_wait,
    )


def _prefix_index(plan: Plan, settings: Settings, *, is_drafting: bool) -> PrefixIndex:
    """A draft method's windows give up the bits anyway, so that nothing would be left to insist on."""
    is_strict = not shares_steps(plan.route, settings.section(EngineSettings).batch)
    return PrefixIndex.configured(settings.section(PrefixSettings), only_exact=is_strict and not is_drafting)


def _pressure(admission: Admission, plan: Plan) -> Pressure:
    """On the engine thread. A budget is kept to the byte; without one the device's share is."""
    import mlx.core as mx

    device = plan.backend
    share = int(PRESSURE_SHARE * min(device.memory_bytes, device.working_set_bytes))
    return Pressure(admission.memory_budget_bytes or share, mx.get_active_memory, admission.fit.row_bytes)


def _bound(drafter: LoadableDrafter | None) -> LoadableDrafter | None:
    """A drafter that is a model loads first: its headers are looked at before a weight is read, its target's too."""
    if drafter is None or drafter.family_bind is None:
        return drafter
    binding = drafter.bind()
    return replace(drafter, family_bind=lambda: binding)


def _drafting(
    parts: Parts, binding: ModelBinding, drafter: LoadableDrafter | None, settings: Settings
) -> Drafting | None:
    """On the engine thread: a method may load weights of its own."""
    if parts.method is None:
        return None
    name = parts.method.value.name
    with plugin_border(parts.method.plugin, f"loading draft method '{name}'"):
        provider = parts.method.value.create(binding, drafter)
    chosen, asked = settings.section(DraftSettings), settings.section(SelectionSettings).num_draft_tokens
    return Drafting(
        method=name,
        provider=provider,
        most_tokens=asked or provider.facts.max_tokens,
        acceptance=chosen.acceptance,
        is_adaptive=chosen.adapts(settings.section(EngineSettings).batch),
    )


def _proposing(parts: Parts, settings: Settings) -> ProposingOptions:
    grammar = settings.section(GrammarSettings)
    return ProposingOptions(
        most_forced=grammar.draft_tokens if grammar.jump else 0,
        fills=parts.fills,
        form_changes=frozenset(one.value.encodes_from for one in parts.schemes if one.value.encodes_from is not None),
    )


def constraints_of(parts: Parts, tokenizer: Tokenizer, settings: Settings) -> ConstraintCompiler:
    """What enforces the form of this model's answers; compiles nothing yet."""
    eos_ids = frozenset(parts.plan.facts.eos_ids) | tokenizer.eos_ids
    return ConstraintCompiler(parts.constraint_engines, tokenizer, eos_ids, settings.section(GrammarSettings))


def renderer_of(parts: Parts, tokenizer: Tokenizer) -> PromptRenderer:
    """The renderer of this model's prompts."""
    facts = parts.plan.facts
    reasoning = None if facts.reasoning is None else (facts.reasoning.start, facts.reasoning.end)
    template = parts.checkpoint.chat_template
    return PromptRenderer(
        tokenizer,
        template,
        reasoning=reasoning,
        default_thinking=facts.default_thinking,
        context_limit=facts.context_limit,
    )


def _admission(parts: Parts, tokenizer: Tokenizer, chosen: EngineSettings) -> Admission:
    plan, facts = parts.plan, parts.plan.facts
    return Admission(
        vocab_size=facts.vocab_size,
        context_limit=min(facts.context_limit, chosen.context_limit or facts.context_limit),
        fit=fit_equation(parts),
        usable_bytes=chosen.memory_budget or usable_bytes(plan.backend),
        memory_budget_bytes=chosen.memory_budget,
        kv_budget_bytes=chosen.kv_budget,
        default_max_tokens=chosen.max_tokens,
        why_no_text=why_no_text(tokenizer),
    )


def fit_equation(parts: Parts) -> FitEquation:
    """What a context of this plan will need."""
    plan, facts = parts.plan, parts.plan.facts
    return FitEquation(
        layout=facts.layout,
        bytes_per_token=lambda layer: parts.schemes[layer.index].value.bytes_per_token(layer, plan.dtype),
        weight_bytes=_weight_bytes(plan, facts),
        chunk_tokens=plan.identity.prefill_chunk,
        element_bytes=dtype_bytes(plan.dtype),
        scores_are_materialised=facts.scores_are_materialised,
        draft=_draft_equation(plan),
    )


def _draft_equation(plan: Plan) -> FitEquation | None:
    """Drafters store plainly."""
    facts = plan.draft_facts
    if facts is None:
        return None
    held = facts.weight_bytes if plan.drafter_model is None else _weight_bytes(plan, plan.drafter_model)
    return FitEquation(
        layout=facts.layout,
        bytes_per_token=lambda layer: plain_bytes_per_token(layer, plan.dtype),
        weight_bytes=held,
        chunk_tokens=plan.identity.prefill_chunk,
        element_bytes=dtype_bytes(plan.dtype),
    )


def usable_bytes(device: BackendFacts) -> int:
    """Of the device's memory, where no budget is given."""
    return min(int(device.memory_bytes * USABLE_SHARE), device.working_set_bytes)


def _weight_bytes(plan: Plan, facts: ModelFacts) -> int:
    """As they are held, not as they are stored: an upcast checkpoint takes more."""
    if facts.quantization is not None and plan.weights == "stored":
        return facts.weight_bytes.total
    return facts.weight_bytes.total * dtype_bytes(plan.dtype) // dtype_bytes(facts.stored_dtype)
