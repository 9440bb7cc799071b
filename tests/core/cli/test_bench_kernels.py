"""`phyla bench kernels`: a table that plans take up, from a model's sizes or from given ones."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest
from phyla.backend.strategy import AppendGeometry, read_table
from phyla.checkpoint import TensorInfo
from phyla.cli.bench.kernel_timing import needed_bytes
from phyla.cli.bench.kernels import KernelMatrix, largest_matrices
from phyla.kv.group_append import APPENDS
from phyla.kv.group_attention import ATTENTIONS, Scoring
from phyla.kv.plain.attention import attend
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors

from tests.core.cli.conftest import RunPhyla
from tests.core.selection.conftest import ShelfCheckpoint

SMALL = ("--rows", "2", "--product-rows", "2", "--stored", "16", "--runs", "1", "--calls", "2")
SIZES = ("--heads", "4", "--kv-heads", "2", "--head-dim", "32")


def test_given_sizes_are_measured_and_written(phyla: RunPhyla, tmp_path: Path) -> None:
    written = tmp_path / "table.json"
    ran = phyla("bench", "kernels", *SIZES, *SMALL, "--matrix", "96x128", "--output", str(written))
    assert ran.status == 0, ran.err
    table = read_table(written)
    assert [(point.operation, set(point.microseconds)) for point in table.points] == [
        ("attention", {"fused", "fused_mask", "grouped", "loop"}),
        ("append", {"scatter", "slices"}),
        ("qmm", {"whole", "split8", "split16", "unpacked", "dense"}),
    ]
    assert table.points[2].sizes == {"rows": 2, "outputs": 96, "inputs": 128, "bits": 4}
    assert "3 of 3: qmm, 2 rows, 96 outputs, 128 inputs, 4 bits" in ran.err
    assert "append     rows=2 stored=16 kv_heads=2 head_dim=32" in ran.out


def test_a_models_own_sizes_are_measured_and_its_plan_takes_them_up(
    phyla: RunPhyla, toy_folder: Path, tmp_path: Path
) -> None:
    written = tmp_path / "table.json"
    assert phyla("bench", "kernels", str(toy_folder), *SMALL, "--output", str(written)).status == 0
    out = phyla("explain", str(toy_folder), "--batch", "2", "--strategy-table", str(written)).out
    assert f"Fast route, 2 rows ({written} table, measured on" in out
    assert "us measured at the nearest, 2 rows, 16 stored" in out


def test_whole_steps_are_timed_compiled_and_not(phyla: RunPhyla, toy_folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "table.json"
    ran = phyla("bench", "kernels", str(toy_folder), *SMALL, "--steps", "--output", str(written))
    assert ran.status == 0, ran.err
    point = read_table(written).points[-1]
    assert (point.operation, point.sizes["rows"], set(point.microseconds)) == ("decode", 2, {"eager", "compiled"})
    assert "step, 2 rows, 16 stored" in ran.err
    out = phyla("explain", str(toy_folder), "--batch", "2", "--strategy-table", str(written)).out
    assert "us measured at 2 rows" in next(line for line in out.splitlines() if "Decode step" in line)


def test_a_models_matrices_are_counted_in_their_own_bits() -> None:
    shapes = {"a": (64, 8), "b": (32, 8), "c": (16, 16), "d": (64, 4)}
    infos = {}
    for name, (outputs, packed) in shapes.items():
        infos[f"{name}.weight"] = TensorInfo(f"{name}.weight", (outputs, packed), "uint32", outputs * packed * 4, "x")
        infos[f"{name}.scales"] = TensorInfo(f"{name}.scales", (outputs, 1), "float16", outputs * 2, "x")
    infos["embedding.weight"] = TensorInfo("embedding.weight", (999, 64), "float16", 999 * 128, "x")
    infos["norm.weight"] = TensorInfo("norm.weight", (64,), "float16", 128, "x")
    section = {"bits": 4, "group_size": 64, "c": {"bits": 8, "group_size": 64}}
    checkpoint = ShelfCheckpoint("packed", {"quantization": section}, infos)
    assert largest_matrices(checkpoint) == [KernelMatrix(64, 64), KernelMatrix(32, 64), KernelMatrix(16, 64, 8)]


def test_a_model_that_is_not_quantised_has_dense_matrices() -> None:
    infos = {
        f"{name}.weight": TensorInfo(f"{name}.weight", (outputs, 64), "float16", outputs * 128, "x")
        for name, outputs in (("a", 32), ("b", 64))
    }
    checkpoint = ShelfCheckpoint("dense", {}, infos)
    assert largest_matrices(checkpoint) == [KernelMatrix(64, 64, None), KernelMatrix(32, 64, None)]


def test_without_output_it_is_left_where_plans_look(
    phyla: RunPhyla, toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = phyla("bench", "kernels", *SIZES, *SMALL)
    written = next((tmp_path / ".cache" / "phyla" / "strategies").glob("*.json"))
    assert f"Written to {written}" in ran.err
    assert (written.stat().st_mode & 0o777, written.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert f"({written} table, measured on" in phyla("explain", str(toy_folder)).out
    assert f"({written} table" not in phyla("explain", str(toy_folder), "--strategy-table", "none").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--heads is missing"),
        ((*SIZES, "--steps"), "name one"),
        ((*SIZES, "--rows", "0"), "--rows 0: '0' isn't"),
        ((*SIZES, "--stored", "8,many"), "--stored 8,many: 'many' isn't"),
        ((*SIZES, "--matrix", "96"), "--matrix 96: '' isn't"),
    ],
)
def test_sizes_that_are_none_are_refused(phyla: RunPhyla, arguments: tuple[str, ...], message: str) -> None:
    ran = phyla("bench", "kernels", *arguments)
    assert ran.status == 2
    assert message in ran.err


def test_what_memory_does_not_hold_is_left_out_with_a_line(phyla: RunPhyla, tmp_path: Path) -> None:
    written = tmp_path / "table.json"
    ran = phyla("bench", "kernels", *SIZES, *SMALL[:4], "--stored", "9000000", "--output", str(written))
    assert ran.status == 0, ran.err
    assert "left out, it needs" in ran.err
    assert json.loads(written.read_text())["points"] == []


def test_needed_memory_counts_the_planes() -> None:
    assert needed_bytes(AppendGeometry(32, 4096, 8, 128), mx.bfloat16, 1) == 4 * 32 * 4096 * 8 * 128 * 2


@pytest.mark.parametrize("num_queries", [1, 3])
@pytest.mark.parametrize("name", ["fused_mask", "grouped"])
def test_every_way_of_attending_gives_the_same_numbers(name: str, num_queries: int) -> None:
    tensors = random_tensors({"q": (3, 4, num_queries, 32), "k": (3, 2, 16, 32), "v": (3, 2, 16, 32), "s": (4,)})
    visible = (mx.arange(16)[None] < mx.array([16, 5, 9])[:, None])[:, None, None]
    visible = mx.broadcast_to(visible, (3, 1, num_queries, 16))
    got = ATTENTIONS[name](tensors["q"], tensors["k"], tensors["v"], visible, Scoring(0.2, sinks=tensors["s"]))
    alone = [
        attend(
            tensors["q"][row : row + 1],
            tensors["k"][row : row + 1, :, :end],
            tensors["v"][row : row + 1, :, :end],
            None,
            scale=0.2,
            sinks=tensors["s"],
        )
        for row, end in enumerate([16, 5, 9])
    ]
    assert_close(got, mx.concatenate(alone), atol=2e-6, why="float32, sums over padded columns")


@pytest.mark.parametrize("num_positions", [1, 3])
@pytest.mark.parametrize("name", list(APPENDS))
def test_every_way_of_appending_stores_the_same(name: str, num_positions: int) -> None:
    tensors = random_tensors({"plane": (2, 3, 8, 4), "rows": (2, 3, num_positions, 4)})
    # The second row wraps, as a ring does.
    columns = (mx.array([[2], [7]]) + mx.arange(num_positions)) % 8
    got = APPENDS[name](tensors["plane"][:], columns[:, None, :, None], tensors["rows"])
    expected = mx.array(tensors["plane"])
    for row, first in enumerate((2, 7)):
        for position in range(num_positions):
            expected[row, :, (first + position) % 8] = tensors["rows"][row, :, position]
    assert mx.array_equal(got, expected)
