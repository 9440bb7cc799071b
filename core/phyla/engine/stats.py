"""The engine's part of `/stats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.engine.ahead import AheadCounts
    from phyla.engine.compiled_step import CompiledCounts
    from phyla.engine.counters import Counters
    from phyla.engine.engine import EngineSpec


@dataclass(frozen=True)
class Counted:
    """What the engine's parts counted."""

    counters: Counters
    compiled: CompiledCounts
    ahead: AheadCounts
    num_waiting: int


def engine_stats(
    spec: EngineSpec, counted: Counted, prompt_cache: Mapping[str, Any], proposing: str | None
) -> Mapping[str, Any]:
    """JSON values; `speculation` is None where nothing proposes. Bytes under `batch` are what running rows may come to
    store, not what they store now."""
    settings, admission, counters = spec.settings, spec.admission, counted.counters
    is_batched = settings.batch > 1
    return {
        "batch": {
            "configured": settings.batch,
            "mode": "batch" if is_batched else "off",
            "batched": is_batched,
            "active_rows": counters.active_rows,
            "pending_rows": counted.num_waiting,
            "submitted_rows": counters.num_submitted,
            "kv_bytes": counters.projected_bytes,
            "kv_budget_bytes": settings.kv_budget,
        },
        "kv": {
            "bytes_per_token": admission.fit.growth_bytes,
            "plain_bytes_per_token": admission.fit.plain().growth_bytes,
            "context_tokens": admission.fit.unlimited_context(admission.usable_bytes),
            "plain_context_tokens": admission.fit.plain().unlimited_context(admission.usable_bytes),
        },
        "admission": {
            "max_safe_context": admission.max_safe_context,
            "context_limit": admission.context_limit,
            "enforced_context_tokens": _enforced_context(spec),
            "memory_budget_bytes": admission.memory_budget_bytes,
            "usable_bytes": admission.usable_bytes,
            "weights_bytes": spec.facts.weight_bytes.total,
        },
        "requests": {
            "submitted": counters.num_submitted,
            "finished": counters.num_finished,
            "failed": counters.num_failed,
            "cancelled": counters.num_cancelled,
        },
        "tokens": {
            "prompt": counters.num_prompt_tokens,
            "cached": counters.num_cached_tokens,
            "prefilled": counters.num_prefilled_tokens,
            "emitted": counters.num_emitted_tokens,
        },
        "fast_route": None
        if spec.fast is None
        else spec.fast.stats(spec.facts, settings.batch, counted.compiled, counted.ahead),
        "steps": {
            "decode": counters.num_steps,
            "shared": counters.num_shared_steps,
            "stacked": counters.num_stacked_steps,
        },
        "prompt_cache": dict(prompt_cache),
        "speculation": None if proposing is None else _speculation(proposing, counters),
    }


def _enforced_context(spec: EngineSpec) -> int | None:
    """Where the operator's budget or limit ends prompts before the model would."""
    admission = spec.admission
    tokens = admission.context_limit if admission.memory_budget_bytes is None else admission.max_safe_context
    return tokens if tokens < spec.facts.context_limit else None


def _speculation(method: str, counters: Counters) -> dict[str, Any]:
    """Of rows that have ended. Rates are 0 until something was drafted."""
    drafted, accepted, rounds = counters.num_drafted, counters.num_drafts_accepted, counters.num_draft_rounds
    return {
        "method": method,
        "drafted": drafted,
        "accepted": accepted,
        "rejected": drafted - accepted,
        "target_calls": rounds,
        "acceptance": accepted / drafted if drafted else 0.0,
        "tokens_per_forward": counters.num_draft_tokens / rounds if rounds else 0.0,
        "undrafted_rows": counters.num_undrafted_rows,
    }
