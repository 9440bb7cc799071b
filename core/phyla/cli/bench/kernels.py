"""`phyla bench kernels [MODEL]`: which strategies are fast on this device, as a table that plans then choose from."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from phyla.backend.private_folder import private_folder
from phyla.backend.strategy import (
    AppendGeometry,
    AttentionGeometry,
    Geometry,
    MatmulGeometry,
    Point,
    QmmGeometry,
    StrategyTable,
    shipped_table,
    user_table_path,
)
from phyla.backend.strategy.user_table import measured_on
from phyla.cli.columns import columns
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.errors import UsageError
from phyla.model.quantization import parse_quant_section
from phyla.nn.product_geometry import why_not_streamed

if TYPE_CHECKING:
    from phyla.backend import BackendFacts
    from phyla.checkpoint import Checkpoint
    from phyla.selection import Parts
    from phyla.settings import Settings

MOST_SHAPES = 3
"""Matrices of a model that are measured: those with the most bytes."""

STEPS_PER_RUN = 16
"""Whole steps that are timed together."""

WORKING_SHARE = 0.5
"""Of the working set, for one measurement."""


@dataclass(frozen=True)
class KernelMatrix:
    """A dense one, or a quantised one in groups of 64."""

    outputs: int
    inputs: int
    bits: int | None = 4


@dataclass(frozen=True)
class KernelShape:
    """The sizes of a model that its kernels see."""

    heads: int
    kv_heads: int
    head_dim: int
    matrices: tuple[KernelMatrix, ...]
    """None: products aren't measured."""


@dataclass(frozen=True)
class KernelRuns:
    """What is measured, and how often."""

    rows: tuple[int, ...]
    stored: tuple[int, ...]
    num_calls: int
    num_runs: int
    product_rows: tuple[int, ...] = ()
    """Of quantised products beside `rows`: a chunk of a prompt has hundreds."""

    progress: Callable[[str], None] = lambda line: None


def measure_kernels(shape: KernelShape, runs: KernelRuns, dtype: str, backend: BackendFacts) -> StrategyTable:
    """Time every strategy at every geometry; what doesn't fit into memory is left out, with a line.

    Args:
        shape: of a model.
        runs: what is measured.
        dtype: of activations.
        backend: the device in use.
    """
    import mlx.core as mx

    from phyla.cli.bench.kernel_timing import needed_bytes, timed

    geometries = list(_geometries(shape, runs))
    element: mx.Dtype = getattr(mx, dtype)
    points: list[Point] = []
    for number, geometry in enumerate(geometries, 1):
        needed = needed_bytes(geometry, element, runs.num_calls)
        line = f"{number} of {len(geometries)}: {geometry.operation}, {geometry}"
        if needed > backend.working_set_bytes * WORKING_SHARE:
            runs.progress(f"{line}: left out, it needs {needed / 1e9:.1f} GB")
            continue
        runs.progress(line)
        points.append(timed(geometry, element, runs.num_calls, runs.num_runs))
    shipped = shipped_table(backend.device)
    return StrategyTable(backend.device, measured_on(backend, dtype), shipped.defaults, tuple(points))


def shape_of(parts: Parts) -> KernelShape:
    """What a model's kernels see.

    Raises:
        UsageError: no layer attends to keys and values.
    """
    from phyla.kv.group_geometry import attention_geometry
    from phyla.kv.layer_spec import FULL, SLIDING

    facts = parts.plan.facts
    layer = next((one for one in facts.layout if one.owns_state and one.kind in (FULL, SLIDING)), None)
    if layer is None:
        raise UsageError(f"No layer of {parts.plan.model_id} attends to keys and values: there is nothing to choose.")
    sizes = attention_geometry(layer, rows=1, stored=1)
    return KernelShape(sizes.heads, sizes.kv_heads, sizes.head_dim, tuple(largest_matrices(parts.checkpoint)))


def largest_matrices(checkpoint: Checkpoint) -> list[KernelMatrix]:
    """Those that hold the most bytes, each in its own form: quantised ones, or dense ones of a model without."""
    section = parse_quant_section(checkpoint.config)
    infos = checkpoint.tensor_infos()
    held: dict[KernelMatrix, int] = {}
    for name, info in infos.items():
        path = name.removesuffix(".weight")
        form = section.form_of(path)
        if len(info.shape) != 2 or path == name:
            continue
        if form is None or f"{path}.scales" not in infos:
            matrix = KernelMatrix(info.shape[0], info.shape[1], None)
        else:
            matrix = KernelMatrix(info.shape[0], info.shape[1] * 32 // form.bits, form.bits)
        held[matrix] = held.get(matrix, 0) + info.num_bytes
    quantised = [matrix for matrix in held if matrix.bits is not None]
    return sorted(quantised or held, key=held.__getitem__, reverse=True)[:MOST_SHAPES]


def _geometries(shape: KernelShape, runs: KernelRuns) -> Iterator[Geometry]:
    for rows in runs.rows:
        for stored in runs.stored:
            yield AttentionGeometry(rows, stored, shape.heads, shape.kv_heads, shape.head_dim)
            yield AppendGeometry(rows, stored, shape.kv_heads, shape.head_dim)
    for rows in sorted({*runs.rows, *runs.product_rows}):
        for one in shape.matrices:
            if one.bits is not None:
                yield QmmGeometry(rows, one.outputs, one.inputs, one.bits)
            dense = MatmulGeometry(rows, one.outputs, one.inputs)
            if why_not_streamed(dense) is None:  # otherwise there is nothing to choose
                yield dense


def table_lines(table: StrategyTable) -> str:
    """The table for people: a line per point, the fastest first."""
    lines: list[tuple[str, ...]] = [("OPERATION", "SIZES", "MICROSECONDS, FASTEST FIRST")]
    for point in table.points:
        sizes = " ".join(f"{name}={size}" for name, size in point.sizes.items())
        ordered = sorted(point.microseconds.items(), key=lambda one: one[1])
        lines.append((point.operation, sizes, ", ".join(f"{name} {time:g}" for name, time in ordered)))
    return columns(lines)


def write_table(table: StrategyTable, path: Path) -> None:
    """Write it whole or not at all, for this user alone."""
    descriptor, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(table.as_json(), indent=2) + "\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _kernels(
    session: Session,
    settings: Settings,
    model: str | None,
    rows: str,
    product_rows: str,
    stored: str,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    matrix: tuple[str, ...],
    bits: str,
    runs: int,
    calls: int,
    steps: bool,
    output: Path | None,
) -> None:
    from phyla.backend.detect import detect
    from phyla.backend.dtypes import resolve_dtype
    from phyla.backend.settings import BackendSettings
    from phyla.selection.settings import SelectionSettings

    computing = settings.section(BackendSettings)
    backend = detect(computing.blas, computing.blas_threads)
    parts: Parts | None = None
    if model is not None:
        parts = _parts_of(session, settings, model, backend)
        shape, dtype = shape_of(parts), parts.plan.dtype
    elif steps:
        raise UsageError("--steps times whole steps of a model: name one.")
    else:
        shape = KernelShape(
            _needed(heads, "--heads"),
            _needed(kv_heads, "--kv-heads"),
            _needed(head_dim, "--head-dim"),
            tuple(_matrix(one, int(bits)) for one in matrix),
        )
        dtype = resolve_dtype(settings.section(SelectionSettings).dtype, "bfloat16", backend).value

    measured = KernelRuns(
        rows=_sizes(rows, "--rows"),
        stored=_sizes(stored, "--stored"),
        num_calls=calls,
        num_runs=runs,
        product_rows=_sizes(product_rows, "--product-rows"),
        progress=lambda line: click.echo(line, err=True),
    )
    table = measure_kernels(shape, measured, dtype, backend)
    if steps:
        table = replace(table, points=(*table.points, *_timed_steps(parts, measured)))
    click.echo(f"Measured on {table.measured_on}")
    click.echo(table_lines(table))
    if output is None:
        output = user_table_path(backend)
        private_folder(output.parent.name, output.parent.parent)
    write_table(table, output)
    click.echo(f"Written to {output}", err=True)


def _parts_of(session: Session, settings: Settings, model: str, backend: BackendFacts) -> Parts:
    from phyla.cli.chosen_model import chosen_model
    from phyla.selection import resolve, select

    plan = select(chosen_model(session, settings, model), session.manager, settings, backend)
    return resolve(plan, session.manager, settings)


def _timed_steps(parts: Parts | None, runs: KernelRuns) -> Iterator[Point]:
    """Whole steps, compiled and not."""
    assert parts is not None, "the command refuses --steps without a model"
    from phyla.cli.bench.step_timing import StepBench
    from phyla.engine.forwarding import check_can_compile
    from phyla.kv.row_state import RowState

    layout = parts.plan.facts.layout
    check_can_compile("on", layout, RowState.fresh(layout, parts.new_state))
    runs.progress(f"loading {parts.plan.model_id}")
    room = parts.plan.backend.working_set_bytes
    bench = StepBench(parts.bind(), parts.new_state, parts.plan.strategies, room)
    for rows in runs.rows:
        for stored in runs.stored:
            runs.progress(f"step, {rows} rows, {stored} stored")
            yield bench.point(rows, stored, STEPS_PER_RUN, max(1, runs.num_runs // 4))


def _needed(size: int | None, flag: str) -> int:
    if size is None:
        raise UsageError(f"Name a model, or its sizes: {flag} is missing.")
    return size


def _matrix(text: str, bits: int) -> KernelMatrix:
    outputs, _, inputs = text.partition("x")
    return KernelMatrix(_size(outputs, f"--matrix {text}"), _size(inputs, f"--matrix {text}"), bits)


def _sizes(text: str, flag: str) -> tuple[int, ...]:
    return tuple(_size(part, f"{flag} {text}") for part in text.split(","))


def _size(text: str, where: str) -> int:
    if not text.strip().isdecimal() or not 0 < int(text) < 10**7:
        raise UsageError(f"{where}: '{text}' isn't a number of something.")
    return int(text)


_SIZE = click.IntRange(min=1)

kernels = SettingsCommand(
    "kernels",
    _kernels,
    arguments=[
        click.RichArgument(["model"], required=False, metavar="[MODEL]"),
        click.RichOption(["--rows"], default="1,8,32", metavar="N,N,...", help="Rows of a step.", show_default=True),
        click.RichOption(
            ["--product-rows"],
            default="16,64,512",
            metavar="N,N,...",
            help="Rows of quantised products, beside --rows: a chunk of a prompt has hundreds.",
            show_default=True,
        ),
        click.RichOption(
            ["--stored"], default="512,4096", metavar="N,N,...", help="Columns that each row stores.", show_default=True
        ),
        click.RichOption(["--heads"], type=_SIZE, help="Query heads, without a model."),
        click.RichOption(["--kv-heads"], type=_SIZE, help="Key and value heads, without a model."),
        click.RichOption(["--head-dim"], type=_SIZE, help="Numbers of a head, without a model."),
        click.RichOption(
            ["--matrix"], multiple=True, metavar="OUTxIN", help="A quantised matrix, without a model; may be repeated."
        ),
        click.RichOption(
            ["--bits"],
            type=click.Choice(["2", "3", "4", "6", "8"]),
            default="4",
            help="Of those matrices.",
            show_default=True,
        ),
        click.RichOption(["--runs"], type=_SIZE, default=20, help="Of each strategy, in turns.", show_default=True),
        click.RichOption(["--calls"], type=_SIZE, default=16, help="Dispatched together in a run.", show_default=True),
        click.RichOption(
            ["--steps"], is_flag=True, help="Also load the model and time its whole step, compiled and not."
        ),
        click.RichOption(
            ["--output"],
            type=click.Path(path_type=Path),
            help="Write the table here, for --strategy-table; by default where it is used by itself on this device.",
        ),
    ],
    help="Time the strategies of the fast route on this device, for a model's sizes or given ones.\n\n"
    "Writes a table that takes the place of the shipped one. `phyla explain` shows what it leads to.",
)
