"""The fast route on a GPU: are its strategies right, are traced steps right, and what does each of them take.

    python -m benchmarks.cuda_suite --out suite.json

Writes after every part, so that a run that is cut short leaves what it has: `right` (each with `passed`), `table`, a
strategy table as `--strategy-table` takes it (also beside it, as `suite.table.json`), and `steps`, tokens per second of
whole decode steps. Runs on any device; `--quick` takes tiny sizes, to see that the script itself works.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.backend.blas import load_fast_blas
from phyla.backend.detect import detect
from phyla.backend.strategy import StrategyTable, shipped_table
from phyla.backend.strategy.user_table import measured_on
from phyla.cli.bench.kernels import KernelMatrix, KernelRuns, KernelShape, measure_kernels
from phyla.cli.bench.random_model import RandomModel
from phyla.plugins import discover
from phyla.selection import Parts, resolve, select
from phyla.settings import load_settings

from benchmarks.measurement import machine, versions

if TYPE_CHECKING:
    import mlx.core as mx
    from phyla.kv.rotation import Rotation


def matrices(*sizes: tuple[int, int]) -> tuple[KernelMatrix, ...]:
    """Of 4 bits."""
    return tuple(KernelMatrix(outputs, inputs) for outputs, inputs in sizes)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    equal: Sequence[tuple[str, str]]
    """(model, dtype) of the traced steps that are compared."""

    steps: Sequence[tuple[str, str, str]]
    """(model, weight form, forced strategies) of whole steps."""

    company: tuple[str, int, int]
    """(model, tokens of the long row, of the seven others)."""

    kernels: Sequence[KernelShape]
    kernel_rows: tuple[int, ...]
    product_rows: tuple[int, ...]
    rows: tuple[int, ...]
    stored: tuple[int, ...]
    num_calls: int
    num_runs: int


EIGHT_B = matrices((6144, 4096), (28672, 4096), (4096, 14336))
"""Of an 8B llama: the fused projections, and the way back."""

FULL = Sizes(
    equal=(("tiny", "float32"), ("tiny", "bfloat16"), ("llama-0.5b", "bfloat16")),
    steps=(
        ("llama-1b", "stored", "auto"),
        ("llama-8b@4", "stored", "qmm=streamed"),
        ("llama-8b@4", "stored", "qmm=whole"),
    ),
    company=("llama-1b", 16384, 200),
    kernels=(KernelShape(32, 8, 128, EIGHT_B),),
    kernel_rows=(1, 8, 32),
    product_rows=(),
    rows=(1, 8, 32),
    stored=(512, 4096),
    num_calls=16,
    num_runs=7,
)
QUICK = Sizes(
    equal=(("tiny", "float32"), ("tiny", "bfloat16")),
    steps=(("tiny", "stored", "auto"), ("tiny@4", "stored", "qmm=split16"), ("tiny@4", "dense", "auto")),
    company=("tiny", 1000, 20),
    kernels=(KernelShape(4, 2, 64, matrices((256, 128))),),
    kernel_rows=(1, 2),
    product_rows=(64,),
    rows=(1, 2),
    stored=(64,),
    num_calls=2,
    num_runs=2,
)
LENGTHS = (3, 30, 215, 224, 40)
"""Rows of the comparison: some cross the edge of a bay, and five of them leave seats dead."""

COMPARED_STEPS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--seconds", type=float, default=540, help="no part is begun after so many")
    arguments = parser.parse_args()
    load_fast_blas()
    import mlx.core as mx

    result: dict[str, Any] = {"command": "python -m benchmarks.cuda_suite --out suite.json", "machine": machine()}
    result["versions"] = versions("phyla", "mlx")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in parts_of(QUICK if arguments.quick else FULL, Path(scratch), result):
            if time.perf_counter() - began > arguments.seconds:
                result.setdefault("left_out", []).append(name)
                continue
            print(f"{time.perf_counter() - began:6.1f} s  {name}", flush=True)
            try:
                part()
            except Exception as error:
                result.setdefault("errors", []).append({"part": name, "error": f"{type(error).__name__}: {error}"})
                print(f"          {error}", flush=True)
            mx.clear_cache()
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            if "table" in result:
                arguments.out.with_suffix(".table.json").write_text(json.dumps(result["table"], indent=1) + "\n")
    wrong = [one for one in result.get("right", []) if not one["passed"]]
    print(f"{len(result.get('right', []))} comparisons, {len(wrong)} wrong, {len(result.get('errors', []))} errors")


def parts_of(sizes: Sizes, scratch: Path, result: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Everything that is done, cheapest first."""
    right: list[dict[str, Any]] = result.setdefault("right", [])
    yield "strategies against one row after the other", lambda: note(right, compared_kernels(sizes.kernels[0]))
    for geometry, dtype in sizes.equal:
        for force in ("auto", "attention=grouped,append=slices"):
            yield (
                f"traced steps, {geometry} {dtype} {force}",
                lambda one=(geometry, dtype, force): note(right, compared_steps(*one, scratch)),  # type: ignore[misc]
            )
    yield "kernels", lambda: result.update(table=measured_table(sizes).as_json())
    reference, long, short = sizes.company
    yield f"{long} and 7 times {short}", lambda: timed_company(reference, long, short, scratch, result)
    for model, weights, force in sizes.steps:
        yield (
            f"steps of {model}, {weights}, {force}",
            lambda one=(model, weights, force): timed_steps(*one, sizes, scratch, result),  # type: ignore[misc]
        )


def note(right: list[dict[str, Any]], comparisons: Iterator[dict[str, Any]]) -> None:
    """Take comparisons as they come. Each is named as it ends: a GPU's first use of a kernel can take seconds, and a
    run that is cut short should say where."""
    for one in comparisons:
        right.append(one)
        print(f"          {'right' if one['passed'] else 'WRONG'}: {one['what']}", flush=True)


def compared_kernels(shape: KernelShape) -> Iterator[dict[str, Any]]:
    """Every strategy against the plainest way in float32."""
    import mlx.core as mx
    from phyla.kv.group_append import APPENDS
    from phyla.kv.group_attention import ATTENTIONS, Scoring
    from phyla.kv.group_geometry import why_not_ragged, why_not_rotated
    from phyla.nn.form import QuantForm
    from phyla.nn.products import product_named
    from phyla.nn.streamed import streamed_gated
    from phyla.nn.weight import Weight

    def drawn(seed: int, *sizes: int) -> mx.array:
        return mx.random.normal(sizes, key=mx.random.key(seed)).astype(mx.bfloat16)

    def compared(name: str, got: mx.array, expected: mx.array, bound: float) -> dict[str, Any]:
        worst = float(mx.abs(got.astype(mx.float32) - expected.astype(mx.float32)).max().item())  # type: ignore[arg-type]
        scale = float(mx.abs(expected.astype(mx.float32)).max().item())  # type: ignore[arg-type]
        return {"what": name, "worst": worst, "scale": scale, "bound": bound, "passed": worst <= bound * scale}

    rows, stored = 8, 512
    queries = drawn(0, rows, shape.heads, 1, shape.head_dim)
    keys, values = (drawn(seed, rows, shape.kv_heads, stored, shape.head_dim) for seed in (1, 2))
    ends = [stored - 37 * row for row in range(rows)]
    visible = (mx.arange(stored)[None] < mx.array(ends)[:, None])[:, None, None]
    scoring = Scoring(shape.head_dim**-0.5)
    alone = mx.concatenate(
        [
            mx.fast.scaled_dot_product_attention(
                *(one[row : row + 1].astype(mx.float32) for one in (queries, keys[:, :, :end], values[:, :, :end])),
                scale=scoring.scale,
            )
            for row, end in enumerate(ends)
        ]
    )
    widths = (shape.head_dim, shape.head_dim)
    for name in ("grouped", "fused_mask", *(() if why_not_ragged(*widths) else ("ragged",))):
        yield compared(f"attention {name}", ATTENTIONS[name](queries, keys, values, visible, scoring), alone, 0.02)
    if not why_not_ragged(*widths):
        wide = drawn(11, rows, 4, shape.heads, shape.head_dim).transpose(0, 2, 1, 3)
        last = mx.array(ends)[:, None] - 4 + mx.arange(4)
        window = (mx.arange(stored) <= last[..., None])[:, None]
        expected = ATTENTIONS["grouped"](*(one.astype(mx.float32) for one in (wide, keys, values)), window, scoring)
        yield compared(
            "attention ragged, 4 positions", ATTENTIONS["ragged"](wide, keys, values, window, scoring), expected, 0.02
        )
    columns = mx.array([end % stored for end in ends], dtype=mx.int32)[:, None, None, None]
    fresh = drawn(3, rows, shape.kv_heads, 1, shape.head_dim)
    expected = mx.array(keys)
    for row, end in enumerate(ends):
        expected[row, :, end % stored] = fresh[row, :, 0]
    for name, append in APPENDS.items():
        yield compared(f"append {name}", append(mx.array(keys), columns, fresh), expected, 0.0)
    if why_not_rotated(*widths, wraps=False) is None:
        yield from compared_rotations(shape, drawn, compared)
    if mx.cuda.is_available():
        yield from compared_late_inputs()
        yield from compared_early_outputs()
    outputs, inputs = shape.matrices[0].outputs, shape.matrices[0].inputs
    matrix = drawn(4, outputs, inputs)
    weights = [Weight(matrix)]
    weights += [Weight(*mx.quantize(matrix, group_size=64, bits=bits), form=QuantForm(64, bits)) for bits in (4, 8)]
    for weight in weights:
        bits = 16 if weight.form is None else weight.form.bits
        for num_rows in (2, 8, 17, 32):
            x = drawn(5, 1, num_rows, inputs)
            exact = x.astype(mx.float32) @ weight.dense(mx.float32).data.T
            for name in ("whole", "streamed") if weight.form is None else ("whole", "streamed", "split8", "unpacked"):
                if name == "streamed" and (bits == 8 or not mx.cuda.is_available()):
                    continue
                got = product_named(name)(weight, x)
                # Wide: MLX's own kernel for CPUs adds up in bfloat16.
                yield compared(f"product {name}, {bits} bits, {num_rows} rows", got, exact, 0.04)
            if bits != 8 and mx.cuda.is_available():
                gate, up = mx.split(exact, 2, axis=-1)
                gated = streamed_gated(weight, x)
                yield compared(
                    f"gated product, {bits} bits, {num_rows} rows", gated, gate * mx.sigmoid(gate) * up, 0.04
                )


def compared_late_inputs() -> Iterator[dict[str, Any]]:
    """Numbers that are posted behind the dispatch, and those that never come."""
    import mlx.core as mx
    from phyla.engine.late_input import AwaitedInputs

    inputs = AwaitedInputs()
    otherwise, posted = list(range(500)), list(range(500, 1000))
    for is_posted in (True, False):
        late = inputs.open(otherwise)
        mx.async_eval(late.numbers)  # type: ignore[no-untyped-call]
        if is_posted:
            late.post(posted)
        is_right = late.numbers.tolist() == (posted if is_posted else otherwise) and late.was_late() != is_posted
        yield {"what": f"late input, {'posted' if is_posted else 'given up'}", "passed": is_right}
    inputs.close()


def compared_early_outputs() -> Iterator[dict[str, Any]]:
    """Tokens that the host reads where the device writes them, against those that it waits for."""
    import mlx.core as mx
    from phyla.engine.early_output import cuda_readouts
    from phyla.sampling.sampler import Chosen

    readouts = cuda_readouts()
    for num_draws, dtype in ((1, mx.float32), (4, mx.bfloat16), (500, mx.float32)):
        places = mx.arange(num_draws)
        # Lazily, as in a round: every third has no evidence.
        evidence = mx.where(places % 3 == 2, mx.inf, places.astype(mx.float32)).astype(dtype)[:, None]
        chosen = Chosen(places.astype(mx.uint32) * 250, mx.zeros((num_draws, 1)), evidence)
        readout = readouts.open(chosen)
        mx.async_eval(readout.arrays)  # type: ignore[no-untyped-call]
        is_right = readout.ids() == chosen.ids() and readout.was_seen
        yield {"what": f"early output, {num_draws} draws, {dtype}", "passed": is_right}
    readouts.close()


def compared_rotations(
    shape: KernelShape, drawn: Callable[..., mx.array], compared: Callable[..., dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Normed, rotated and stored at once, against one after the other in float32."""
    import mlx.core as mx
    from phyla.kv.rotated_append import rotate_and_store
    from phyla.kv.rotation import HeadNorms, Rotation

    rows, stored, D = 8, 512, shape.head_dim
    weights = [1 + 0.1 * drawn(seed, D) for seed in (6, 7)]
    for width, normed, num_dims in ((1, False, D), (4, False, D), (4, True, D // 2)):
        periods = 10000.0 ** (mx.arange(0, num_dims, 2, dtype=mx.float32) / num_dims)
        norms, wide_norms = (
            HeadNorms(*(one.astype(dtype) for one in weights), 1e-5) for dtype in (mx.bfloat16, mx.float32)
        )
        projected = drawn(8, rows * width, (shape.heads + 2 * shape.kv_heads) * D)
        planes = [drawn(seed, rows, shape.kv_heads, stored, D) for seed in (9, 10)]
        starts = mx.array([stored - width - 37 * row for row in range(rows)], dtype=mx.int32)
        expected, expected_planes = rotated_plainly(
            projected.astype(mx.float32),
            [plane.astype(mx.float32) for plane in planes],
            Rotation(num_dims, periods, wide_norms if normed else None),
            starts + 70_000,
            starts,
        )
        mx.eval(expected, expected_planes)
        rotation = Rotation(num_dims, periods, norms if normed else None)
        queries, got = rotate_and_store(projected, planes, rotation, starts + 70_000, starts)
        label = f"{width} positions{', normed' if normed else ''}"
        names = ("queries", "keys", "values")
        for name, one, other in zip(names, [queries, *got], [expected, *expected_planes], strict=True):
            yield compared(f"rotated {name}, {label}", one, other, 0.01)


def rotated_plainly(
    projected: mx.array, planes: Sequence[mx.array], rotation: Rotation, offsets: mx.array, starts: mx.array
) -> tuple[mx.array, list[mx.array]]:
    """`phyla.kv.rotated_append.rotate_and_store` of MLX's own operations."""
    import mlx.core as mx
    from phyla.kv.group_append import APPENDS

    rows, key_heads, columns, head_dim = planes[0].shape
    width = projected.shape[0] // rows
    num_heads = projected.shape[1] // head_dim - 2 * key_heads
    cuts = [num_heads * head_dim, (num_heads + key_heads) * head_dim]
    parts = [part.reshape(rows, width, -1, head_dim) for part in mx.split(projected, cuts, axis=-1)]
    if rotation.norms is not None:
        weights = (rotation.norms.queries, rotation.norms.keys)
        parts[:2] = [
            mx.fast.rms_norm(part, weight, rotation.norms.eps) for part, weight in zip(parts[:2], weights, strict=True)
        ]
    queries, keys, values = (part.transpose(0, 2, 1, 3) for part in parts)
    queries, keys = (
        mx.fast.rope(
            one, rotation.num_dims, traditional=False, base=None, scale=1.0, offset=offsets, freqs=rotation.periods
        )
        for one in (queries, keys)
    )
    places = ((starts[:, None] + mx.arange(width)) % columns)[:, None, :, None]
    scatter = APPENDS["scatter"]
    return queries, [scatter(plane, places, fresh) for plane, fresh in zip(planes, (keys, values), strict=True)]


def compared_steps(geometry: str, dtype: str, force: str, scratch: Path) -> Iterator[dict[str, Any]]:
    """The same tokens through rows of their own, common buffers, and traced steps over them."""
    import mlx.core as mx
    from phyla.cli.bench.step_timing import StepBench

    parts = chosen_parts(geometry, scratch, dtype=dtype, strategy=force)
    bench = StepBench(parts.bind(), parts.new_state, parts.plan.strategies, 1 << 60)
    looped, stacked, traced = bench.looped(LENGTHS), bench.stacked(LENGTHS), bench.stacked(LENGTHS)
    steps = bench.compiled()
    worst = {"stacked": 0.0, "traced": 0.0}
    unlike = {"stacked": 0, "traced": 0}
    scale = apart = 0.0
    mine_by_name: dict[str, mx.array] = {}
    tokens = [7] * len(LENGTHS)
    for number in range(COMPARED_STEPS):
        if number == COMPARED_STEPS // 2:
            for group in (looped, stacked, traced):
                group.stand(next(row for row in group.seats if row is not None and row.num_tokens == LENGTHS[1]))
            del tokens[1]
        expected = bench.logits(looped, mx.array(tokens, dtype=mx.int32)[:, None]).astype(mx.float32)
        order = [row.num_tokens for row in looped.seats if row is not None]
        chosen = mx.argmax(expected, axis=-1)
        scale = max(scale, float(mx.abs(expected).max().item()))  # type: ignore[arg-type]
        for name, group, traces in (("stacked", stacked, None), ("traced", traced, steps)):
            group.prepare(1)
            held = [None if row is None else row.num_tokens for row in group.seats]
            given = [0 if length is None else tokens[order.index(length)] for length in held]
            logits = bench.logits(group, mx.array(given, dtype=mx.int32)[:, None], traces).astype(mx.float32)
            mine = logits[mx.array([held.index(length) for length in order])]
            worst[name] = max(worst[name], float(mx.abs(mine - expected).max().item()))  # type: ignore[arg-type]
            unlike[name] += int((mx.argmax(mine, axis=-1) != chosen).sum().item())  # type: ignore[arg-type]
            mine_by_name[name] = mine
        apart = max(apart, float(mx.abs(mine_by_name["traced"] - mine_by_name["stacked"]).max().item()))  # type: ignore[arg-type]
        tokens = [int(token) for token in chosen.tolist()]  # type: ignore[union-attr]
    # Not tighter in float32: a GPU may multiply it in fewer bits.
    bound = 0.01 if dtype == "float32" else 0.05
    for name in worst:
        counts = steps.counts
        is_traced_once = name == "stacked" or (counts.traces == counts.shapes and counts.failures == 0 < counts.steps)
        yield {
            "what": f"{name} steps, {geometry} {dtype} {force}",
            "worst": worst[name],
            "scale": scale,
            "bound": bound,
            "worst_traced_to_stacked": apart,
            "other_choices": unlike[name],
            "choices": COMPARED_STEPS * len(LENGTHS) - COMPARED_STEPS // 2,
            "counts": None if name == "stacked" else {**vars(counts)},
            "passed": worst[name] <= bound * scale and is_traced_once,
        }


def measured_table(sizes: Sizes) -> StrategyTable:
    """Every strategy at every size."""
    backend = detect()
    dtype = "float32" if backend.device == "cpu" else "bfloat16"

    def progress(line: str) -> None:
        print(f"          {line}", flush=True)

    runs = KernelRuns(sizes.kernel_rows, sizes.stored, sizes.num_calls, sizes.num_runs, sizes.product_rows, progress)
    tables = [measure_kernels(shape, runs, dtype, backend) for shape in sizes.kernels]
    return replace(tables[0], points=tuple(point for table in tables for point in table.points))


def timed_steps(reference: str, weights: str, force: str, sizes: Sizes, scratch: Path, result: dict[str, Any]) -> None:
    """Whole steps, compiled and not; steps of weights in the checkpoint's own form also go into the table."""
    import mlx.core as mx
    from phyla.cli.bench.step_timing import StepBench

    parts = chosen_parts(reference, scratch, weights=weights, strategy=force)
    bench = StepBench(parts.bind(), parts.new_state, parts.plan.strategies, parts.plan.backend.working_set_bytes)
    for rows in sizes.rows:
        for stored in sizes.stored:
            mx.reset_peak_memory()
            point = bench.point(rows, stored, num_steps=16, num_runs=5)
            taken = dict(point.microseconds)
            line = {
                "model": reference,
                "weights": weights,
                "strategy": force,
                "rows": rows,
                "stored": stored,
                "microseconds": taken,
                "tokens_per_second": {name: round(rows * 1e6 / time, 1) for name, time in taken.items()},
                "peak_bytes": mx.get_peak_memory(),
            }
            result.setdefault("steps", []).append(line)
            print(f"          {rows} rows, {stored} stored: {line['tokens_per_second']}", flush=True)
            if "@" not in reference and stored == sizes.stored[0]:
                table = result.setdefault("table", _no_table().as_json())
                table["points"].append(point.as_json())


def timed_company(reference: str, long: int, short: int, scratch: Path, result: dict[str, Any]) -> None:
    """Eight rows of which one is long, beside eight short ones."""
    from phyla.cli.bench.step_timing import StepBench

    parts = chosen_parts(reference, scratch)
    bench = StepBench(parts.bind(), parts.new_state, parts.plan.strategies, parts.plan.backend.working_set_bytes)
    mixed, alike = ([long, *[short] * 7], [short] * 8)
    taken = {name: bench.timings(lengths, 16, 5) for name, lengths in (("mixed", mixed), ("alike", alike))}
    times_as_long = {name: round(taken["mixed"][name] / taken["alike"][name], 3) for name in taken["mixed"]}
    result["company"] = {"model": reference, "lengths": mixed, "microseconds": taken, "times_as_long": times_as_long}
    print(f"          {times_as_long}", flush=True)


def _no_table() -> StrategyTable:
    backend = detect()
    return replace(shipped_table(backend.device), points=(), measured_on=measured_on(backend, "bfloat16"))


def chosen_parts(reference: str, scratch: Path, **flags: str) -> Parts:
    """A random model as plans see it."""
    manager = discover()
    settings = load_settings(
        manager.settings_sections(),
        flags={f"--{name}": value for name, value in flags.items()} | {"--strategy-table": "none"},
        env={},
    )
    folder = RandomModel.parse(reference).write(scratch)
    plan = select(str(folder), manager, settings, detect())
    return resolve(plan, manager, settings)


if __name__ == "__main__":
    main()
