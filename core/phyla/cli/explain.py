"""`phyla explain MODEL`: what would run and why, from headers alone; no weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import rich_click as click

from phyla.backend.strategy import Operation
from phyla.cli.chosen_model import chosen_model
from phyla.cli.columns import columns
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.draft.settings import DraftSettings
from phyla.engine.geometry import typical_choices
from phyla.engine.settings import EngineSettings
from phyla.kv.layer_spec import Plane
from phyla.kv.plain import plain_bytes_per_token, plain_fixed_bytes
from phyla.plan import Choice, Plan
from phyla.selection.parts import Parts
from phyla.settings import Settings

OPERATION_NAMES: Mapping[Operation, str] = MappingProxyType(
    {
        "attention": "Attention",
        "append": "Append",
        "matmul": "Product",
        "qmm": "Quantised product",
        "decode": "Decode step",
    }
)


def _explain(session: Session, settings: Settings, model: str | None) -> int:
    from phyla.backend.detect import detect
    from phyla.backend.settings import BackendSettings
    from phyla.selection import resolve, select

    backend_settings = settings.section(BackendSettings)
    backend = detect(backend_settings.blas, backend_settings.blas_threads)
    reference = chosen_model(session, settings, model, may_fetch=False)
    plan = select(reference, session.manager, settings, backend)
    parts, rows = resolve(plan, session.manager, settings), settings.section(EngineSettings).batch
    parts.check_tensors()
    lines = [*_model(plan), "", *_choices(plan), "", *_strategies(plan, rows), "", *_layout(parts), "", *_memory(parts)]
    lines.extend(_drafts(plan, settings.section(DraftSettings), rows))
    reported = [one.value for one in session.manager.report(plan)]
    for title, more in (("Notes", plan.facts.notes), ("Plugins report", reported), ("Notices", plan.notices)):
        if more:
            lines.extend(["", f"{title}:", *(f"  {line}" for line in more)])
    click.echo("\n".join(lines))
    return 0


def _model(plan: Plan) -> Iterator[str]:
    facts = plan.facts
    quantised = facts.quantization or {}
    form = f", quantised to {quantised.get('bits', '?')} bits" if quantised else ""
    blas = f", {plan.backend.blas}" if plan.backend.blas else ""
    yield columns(
        [
            ("Model", f"{plan.model_id} ({facts.architecture}), opened by {plan.opener}"),
            ("Weights", f"{_size(facts.weight_bytes.total)} in {facts.stored_dtype}{form}"),
            ("Shape", f"{len(facts.layout)} layers, hidden {facts.hidden_size}, vocabulary {facts.vocab_size}"),
            ("Context", f"{facts.context_limit} tokens"),
            ("Device", f"{plan.backend.device_name} ({plan.backend.device}), MLX {plan.backend.mlx_version}{blas}"),
            ("Identity", plan.identity.digest()),
        ]
    )


def _choices(plan: Plan) -> Iterator[str]:
    chosen = {
        "Family": plan.family,
        "KV scheme": plan.kv_scheme,
        "Method": plan.method,
        "Proposer": plan.proposer,
        "Dtype": plan.dtype_choice,
        "Weight form": plan.weights_choice,
    }
    yield "Choices:"
    yield columns([(f"  {name}", choice.name, f"({_why(choice)})") for name, choice in chosen.items()])
    if plan.fills:
        yield f"  Fill {', '.join(plan.fills)}"
    yield f"  Route {plan.route}, prefill in chunks of {plan.identity.prefill_chunk} tokens"
    for name, choice in chosen.items():
        for other, why_not in choice.rejected:
            yield f"  {name}: not {other}: {why_not}"


def _strategies(plan: Plan, rows: int) -> Iterator[str]:
    if plan.route == "exact" or (plan.route == "auto" and rows == 1):
        yield f"Fast route: never taken ({'--route exact' if plan.route == 'exact' else '--batch 1'})"
        return
    table = plan.strategies.table
    measured = f"measured on {table.measured_on}" if table.measured_on else f"not measured on {plan.backend.device}"
    yield f"Fast route, {rows} rows ({table.source} table, {measured}):"
    chosen = typical_choices(plan.strategies, plan.facts, rows, plan.weights, plan.compiled_decode)
    yield columns(
        [(f"  {OPERATION_NAMES[operation]}", one.name, f"({one.reason})") for operation, one in chosen.items()]
    )


def _why(choice: Choice) -> str:
    return f"{choice.chosen_by}: {choice.reason}" if choice.reason else choice.chosen_by


def _layout(parts: Parts) -> Iterator[str]:
    rows = [("  LAYER", "KIND", "STORES", "SCHEME", "BYTES PER TOKEN")]
    for layer, scheme in zip(parts.plan.facts.layout, parts.schemes, strict=True):
        kind = f"{layer.kind} {layer.window}" if layer.window is not None else layer.kind
        planes = ", ".join(_plane(plane) for plane in layer.planes)
        stores = planes if layer.source is None else f"nothing; reads layer {layer.source}"
        size = _bytes_per_token(parts, layer.index) if layer.owns_state else 0.0
        rows.append((f"  {layer.index}", kind, stores, scheme.value.identity, f"{size:g}"))
    yield "Layout:"
    yield columns(rows)


def _memory(parts: Parts) -> Iterator[str]:
    layout = parts.plan.facts.layout
    growing = sum(_bytes_per_token(parts, layer.index) for layer in layout if layer.owns_state and layer.window is None)
    full = parts.plan.facts.context_limit
    bounded = sum(
        _bytes_per_token(parts, layer.index) * min(layer.window, full)
        for layer in layout
        if layer.owns_state and layer.window is not None
    )
    fixed = sum(plain_fixed_bytes(layer, parts.plan.dtype) for layer in layout)
    row = _size(growing * full + bounded + fixed)
    yield f"Cache: {growing:g} bytes per token{_fixed(fixed)}, {row} for a row of {full} tokens"
    yield from _context_bought(parts)


def _context_bought(parts: Parts) -> Iterator[str]:
    """What a scheme saves, in tokens: of a row that has the device's memory to itself, whatever the model's limit."""
    from phyla.assembly import fit_equation, usable_bytes

    fit, usable = fit_equation(parts), usable_bytes(parts.plan.backend)
    if 0 < fit.growth_bytes < fit.plain().growth_bytes:
        here, plain = (one.unlimited_context(usable) for one in (fit, fit.plain()))
        yield f"This device's memory holds a context of {here} tokens, of {plain} stored plain"


def _drafts(plan: Plan, chosen: DraftSettings, rows: int) -> Iterator[str]:
    facts = plan.draft_facts
    if facts is None:
        return
    lengths = "adaptive lengths" if chosen.adapts(rows) else "fixed length"
    most = plan.num_draft_tokens or facts.max_tokens
    yield f"Drafts: up to {most} tokens per round, {lengths}, {chosen.acceptance} acceptance"
    if facts.weight_bytes:
        growing = sum(plain_bytes_per_token(layer, plan.dtype) for layer in facts.layout if layer.window is None)
        fixed = sum(plain_fixed_bytes(layer, plan.dtype) for layer in facts.layout)
        cache = f", cache of {growing:g} bytes per token{_fixed(fixed)}" if facts.layout else ""
        yield f"Drafter: {_size(facts.weight_bytes)} of weights{cache}"


def _plane(plane: Plane) -> str:
    """Heads times width; the matrix of a state that doesn't grow has rows too."""
    if plane.per_token:
        return f"{plane.name} {plane.num_heads}x{plane.width}"
    return f"{plane.name} {plane.num_heads}x{plane.rows}x{plane.width}"


def _bytes_per_token(parts: Parts, index: int) -> float:
    return parts.schemes[index].value.bytes_per_token(parts.plan.facts.layout[index], parts.plan.dtype)


def _fixed(num_bytes: float) -> str:
    return f" and {_size(num_bytes)} of state that doesn't grow" if num_bytes else ""


def _size(num_bytes: float) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} bytes"


explain = SettingsCommand(
    "explain",
    _explain,
    arguments=[click.RichArgument(["model"], required=False, metavar="[MODEL]")],
    help="Say what would run a model and why, without loading its weights.\n\n"
    "Takes every flag of serve: --kv-scheme, --method, --route and the rest show their effect here first.",
)
