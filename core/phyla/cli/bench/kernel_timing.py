"""Timing the strategies of an operation against each other on the device in use. Imports mlx."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx

from phyla.backend.strategy import AppendGeometry, AttentionGeometry, Geometry, MatmulGeometry, Point, QmmGeometry
from phyla.kv.group_append import APPENDS, GroupAppend
from phyla.kv.group_attention import ATTENTIONS, Scoring
from phyla.kv.group_geometry import why_not_ragged, why_not_rotated
from phyla.kv.rotated_append import rotate_and_store
from phyla.nn.form import QuantForm
from phyla.nn.product_geometry import why_not_streamed
from phyla.nn.products import product_named
from phyla.nn.rope import Rope
from phyla.nn.streamed import takes_form
from phyla.nn.weight import Weight

PRODUCTS = ("whole", "streamed", "split8", "split16", "unpacked", "dense")
GROUP_SIZE = 64
MOST_SECONDS = 2.0
"""Of one geometry, once each strategy had its fewest runs."""

FEWEST_RUNS = 3

Planes = list[mx.array]
"""Keys and values."""

Run = Callable[[], None]
"""One timed run of several calls, waited for."""


def timed(geometry: Geometry, dtype: mx.Dtype, num_calls: int, num_runs: int) -> Point:
    """How long each strategy takes at one geometry: the median of runs that take turns.

    Args:
        geometry: which operation, at which sizes.
        dtype: of activations and dense matrices.
        num_calls: calls that are dispatched together in a run, as a step's layers are.
        num_runs: of each strategy, one after the other in turns, so that a slow spell meets all of them; fewer where
            they take long.
    """
    runs = dict(_runs(geometry, dtype, num_calls))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # compiles, and fills the allocator's cache
    began = time.perf_counter()
    for number in range(num_runs):
        if number >= FEWEST_RUNS and time.perf_counter() - began > MOST_SECONDS:
            break
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    mx.clear_cache()
    return Point(
        geometry.operation,
        dict(geometry.sizes()),
        {name: round(statistics.median(taken) / num_calls * 1e6, 2) for name, taken in seconds.items()},
    )


def needed_bytes(geometry: Geometry, dtype: mx.Dtype, num_calls: int) -> int:
    """Of arrays that a measurement holds at once, roughly."""
    if isinstance(geometry, AttentionGeometry):
        plane = geometry.rows * geometry.stored * geometry.kv_heads * geometry.head_dim * dtype.size
        return 2 * plane + num_calls * 3 * 4 * geometry.rows * geometry.heads * geometry.stored
    if isinstance(geometry, AppendGeometry):
        return 4 * geometry.rows * geometry.stored * geometry.kv_heads * geometry.head_dim * dtype.size
    if isinstance(geometry, QmmGeometry | MatmulGeometry):
        products = num_calls * geometry.rows * geometry.outputs * dtype.size
        return products + (2 + num_calls) * geometry.outputs * geometry.inputs * dtype.size
    return 0


def _runs(geometry: Geometry, dtype: mx.Dtype, num_calls: int) -> Iterator[tuple[str, Run]]:
    if isinstance(geometry, AttentionGeometry):
        return _attentions(geometry, dtype, num_calls)
    if isinstance(geometry, AppendGeometry):
        return _appends(geometry, dtype, num_calls)
    if isinstance(geometry, MatmulGeometry):
        return _dense_products(geometry, dtype, num_calls)
    assert isinstance(geometry, QmmGeometry), "a whole step is timed by the engine"
    return _products(geometry, dtype, num_calls)


def _attentions(geometry: AttentionGeometry, dtype: mx.Dtype, num_calls: int) -> Iterator[tuple[str, Run]]:
    rows, stored = geometry.rows, geometry.stored
    queries = _random((rows, geometry.heads, 1, geometry.head_dim), dtype)
    keys, values = (_random((rows, geometry.kv_heads, stored, geometry.head_dim), dtype) for _ in range(2))
    # Rows of different lengths, none much shorter than the buffer.
    lengths = [stored - row % max(1, stored // 4) for row in range(rows)]
    visible = (mx.arange(stored)[None] < mx.array(lengths)[:, None])[:, None, None]
    scoring = Scoring(geometry.head_dim**-0.5)
    mx.eval(queries, keys, values, visible)

    cannot_run = {"ragged"} if why_not_ragged(geometry.head_dim, geometry.head_dim) else set()
    for name, attend in ATTENTIONS.items():
        if name in cannot_run:
            continue
        yield name, _repeated(partial(attend, queries, keys, values, visible, scoring), num_calls)

    def one_by_one() -> mx.array:
        attended = [
            mx.fast.scaled_dot_product_attention(
                queries[row : row + 1],
                keys[row : row + 1, :, :length],
                values[row : row + 1, :, :length],
                scale=scoring.scale,
            )
            for row, length in enumerate(lengths)
        ]
        return mx.concatenate(attended)

    yield "loop", _repeated(one_by_one, num_calls)


def _appends(geometry: AppendGeometry, dtype: mx.Dtype, num_calls: int) -> Iterator[tuple[str, Run]]:
    """Keys and values of a step, with the rotation of keys and of as many query heads: one strategy does it all."""
    rows, heads, width = geometry.rows, geometry.kv_heads, geometry.head_dim
    projected = _random((rows, 3 * heads * width), dtype)
    rope = Rope(width, base=10000.0)
    rotation = rope.rotation
    assert rotation is not None, "a plain rotation"
    starts = mx.array([row % geometry.stored for row in range(rows)], dtype=mx.int32)
    mx.eval(projected, starts, rotation.periods)

    def one_by_one(append: GroupAppend, planes: Planes) -> tuple[mx.array, Planes]:
        queries, keys, values = projected.reshape(rows, 3, heads, 1, width).swapaxes(0, 1)
        columns = starts[:, None, None, None]
        fresh = (rope(keys, starts), values)
        return rope(queries, starts), [append(plane, columns, one) for plane, one in zip(planes, fresh, strict=True)]

    ways: dict[str, Callable[[Planes], tuple[mx.array, Planes]]] = {
        name: partial(one_by_one, append) for name, append in APPENDS.items()
    }
    if why_not_rotated(width, width, wraps=False) is None:
        ways["rotated"] = lambda planes: rotate_and_store(projected, planes, rotation, starts, starts)
    for name, way in ways.items():
        held = [mx.zeros((rows, heads, geometry.stored, width), dtype=dtype) for _ in range(2)]
        mx.eval(held)

        def run(way: Callable[[Planes], tuple[mx.array, Planes]] = way, held: Planes = held) -> None:
            queries = []
            for _ in range(num_calls):
                # Taken out: an array that somebody else holds is copied instead of written in place.
                planes = [held.pop(), held.pop()]
                rotated, planes = way(planes)
                queries.append(rotated)
                held.extend(planes)
                planes.clear()
            mx.eval(queries, held)

        yield name, run


def _products(geometry: QmmGeometry, dtype: mx.Dtype, num_calls: int) -> Iterator[tuple[str, Run]]:
    form = QuantForm(GROUP_SIZE, geometry.bits)
    matrix = _random((geometry.outputs, geometry.inputs), dtype)
    weight = Weight(*mx.quantize(matrix, group_size=form.group_size, bits=form.bits), form=form)
    dense = Weight(matrix)
    x = _random((1, geometry.rows, geometry.inputs), dtype)
    mx.eval(weight.arrays, dense.arrays, x)
    cannot_run = {"streamed"} if why_not_streamed(geometry) or not takes_form(weight, dtype) else set()
    for name in PRODUCTS:
        if name in cannot_run:
            continue
        call = partial(dense.multiply, x) if name == "dense" else partial(product_named(name), weight, x)
        yield name, _repeated(call, num_calls)


def _dense_products(geometry: MatmulGeometry, dtype: mx.Dtype, num_calls: int) -> Iterator[tuple[str, Run]]:
    weight = Weight(_random((geometry.outputs, geometry.inputs), dtype))
    x = _random((1, geometry.rows, geometry.inputs), dtype)
    mx.eval(weight.arrays, x)
    for name in ("whole", "streamed"):
        if name == "whole" or takes_form(weight, dtype):
            yield name, _repeated(partial(product_named(name), weight, x), num_calls)


def _repeated(call: Callable[[], mx.array], num_calls: int) -> Run:
    def run() -> None:
        mx.eval([call() for _ in range(num_calls)])

    return run


def _random(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return (mx.random.normal(shape, key=mx.random.key(0)) * 0.1).astype(dtype)
