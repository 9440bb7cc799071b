"""The fit equation and what admission makes of it."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest
from phyla.engine.admission import Admission
from phyla.engine.memory import WORKSPACE_BYTES_PER_TOKEN, FitEquation
from phyla.errors import OverBudget
from phyla.kv.group import LoopGroup
from phyla.kv.layer_spec import LayerSpec, Plane
from phyla.kv.plain import plain_bytes_per_token
from phyla.kv.row_state import RowState
from phyla.model.step import StepInput
from phyla.request import Rendered, Request
from phyla.testing.engines import plain_state, running, toy_spec
from phyla.testing.toy import toy_binding

KEYS_AND_VALUES = (Plane("keys", 2, 8), Plane("values", 2, 8))
FULL = LayerSpec(0, "full", KEYS_AND_VALUES)
SLIDING = LayerSpec(1, "sliding", KEYS_AND_VALUES, window=10)
RECURRENT = LayerSpec(2, "recurrent", (Plane("state", 4, 16, per_token=False, rows=3, dtype="float32"),))
BORROWING = LayerSpec(3, "full", KEYS_AND_VALUES, source=0)
PER_TOKEN = 2 * 2 * 8 * 2


def fit(*layout: LayerSpec, weight_bytes: int = 0, chunk_tokens: int = 16) -> FitEquation:
    return FitEquation(layout, lambda layer: plain_bytes_per_token(layer, "bfloat16"), weight_bytes, chunk_tokens)


def admission(usable: int, **changes: object) -> Admission:
    values = {"vocab_size": 100, "context_limit": 1000, "fit": fit(FULL), "usable_bytes": usable, **changes}
    return Admission(**values)  # type: ignore[arg-type]


def request(num_prompt: int, max_tokens: int | None = None, num_samples: int = 1) -> Request:
    return Request("a", Rendered((1,) * num_prompt), max_tokens=max_tokens, num_samples=num_samples)


def test_full_layers_grow_sliding_ones_stop_and_recurrent_ones_are_fixed() -> None:
    assert fit(FULL).row_bytes(100) == 100 * PER_TOKEN
    assert fit(SLIDING).row_bytes(5) == 5 * PER_TOKEN
    assert fit(SLIDING).row_bytes(100) == 10 * PER_TOKEN
    assert fit(RECURRENT).row_bytes(1) == fit(RECURRENT).row_bytes(100) == 4 * 3 * 16 * 4
    assert fit(FULL, BORROWING).row_bytes(7) == fit(FULL).row_bytes(7)


@pytest.mark.parametrize("layers", ["F", "S", "R", "L", "FSRL"])
@pytest.mark.parametrize("num_tokens", [256, 1024])
def test_a_row_stores_what_was_billed(layers: str, num_tokens: int) -> None:
    binding = toy_binding(layers)
    row = RowState.fresh(binding.facts.layout, plain_state)
    group = LoopGroup(binding.facts.layout)
    group.seat(row)
    # A ring holds a whole chunk until the first token after it is decoded: that is the chunk's workspace.
    for start, count in ((0, num_tokens - 1), (num_tokens - 1, 1)):
        ids = mx.zeros((1, count), dtype=mx.int32)
        mx.eval(binding.forward(StepInput(ids=ids, num_real=(count,), offsets=(start,)), group.states()).hidden)
    group.stand(row)
    billed = toy_spec(layers).admission.fit.row_bytes(num_tokens)
    assert row.owned_bytes == billed


def test_the_longest_context_that_fits_is_found() -> None:
    equation = fit(FULL, SLIDING, weight_bytes=1000)
    usable = equation.total_bytes(57)
    assert equation.max_safe_context(usable, 1000) == 57
    assert equation.max_safe_context(usable - 1, 1000) == 56
    assert equation.max_safe_context(usable, 20) == 20
    assert equation.max_safe_context(999, 1000) == 0


def test_workspace_grows_to_the_chunk() -> None:
    assert fit(FULL).workspace_bytes(4) == 4 * WORKSPACE_BYTES_PER_TOKEN
    assert fit(FULL).workspace_bytes(400) == 16 * WORKSPACE_BYTES_PER_TOKEN


def test_without_a_budget_memory_refuses_nobody() -> None:
    assert admission(usable=1).checked(request(10)).max_tokens == 990


def test_with_a_budget_the_cap_shrinks_to_what_fits() -> None:
    usable = fit(FULL).total_bytes(50)
    limited = admission(usable, memory_budget_bytes=usable)
    assert limited.checked(request(10, 500)).max_tokens == 40
    with pytest.raises(OverBudget, match="memory budget allows a context of 50"):
        limited.checked(request(50))


def test_a_request_over_the_kv_budget_alone_is_refused_with_the_remedy() -> None:
    limited = admission(usable=1, kv_budget_bytes=20 * PER_TOKEN)
    assert limited.checked(request(10, 10)).max_tokens == 10
    with pytest.raises(OverBudget, match="smaller max_tokens"):
        limited.checked(request(10, 11))
    with pytest.raises(OverBudget, match="State max_tokens"):
        limited.checked(request(10))
    with pytest.raises(OverBudget):
        limited.checked(request(10, 10, num_samples=2))


def test_the_servers_cap_applies_where_the_request_names_none() -> None:
    limited = admission(usable=1, default_max_tokens=30)
    assert limited.checked(request(10)).max_tokens == 30
    assert limited.checked(request(10, 50)).max_tokens == 50


def test_a_drafters_weights_and_rows_count_too() -> None:
    target, drafter = fit(FULL, weight_bytes=1000), fit(SLIDING, weight_bytes=70)
    both = replace(target, draft=drafter)

    assert both.row_bytes(100) == target.row_bytes(100) + drafter.row_bytes(100)
    assert both.total_bytes(100) == target.total_bytes(100) + 70 + drafter.row_bytes(100)
    assert both.growth_bytes == target.growth_bytes


def test_a_memory_budget_is_the_allocators_limit_while_the_engine_runs() -> None:
    before = mx.set_memory_limit(1 << 33)
    try:
        with running(toy_spec("F", {"memory_budget": 4})):
            while_running = mx.set_memory_limit(1 << 32)
    finally:
        afterwards = mx.set_memory_limit(before)
    assert (while_running, afterwards) == (4_000_000_000, 1 << 33)
