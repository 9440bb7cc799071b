"""Strategy tables: what is nearest, what may run, what a user's file may say, and what the identity sees."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from phyla.backend import BackendFacts
from phyla.backend.strategy import (
    AppendGeometry,
    AttentionGeometry,
    DecodeGeometry,
    MatmulGeometry,
    QmmGeometry,
    Strategies,
    StrategySettings,
    load_strategies,
    parse_forced,
    read_table,
    shipped_table,
    user_table_path,
)
from phyla.errors import SettingsError, UnknownName, UsageError

CUDA = Strategies(shipped_table("cuda"))
H200 = BackendFacts("cuda", "NVIDIA H200", "0.32.4", 10**11, 10**11)
MASKED = ("fused_mask", "grouped", "loop")


def attention(rows: int, stored: int) -> AttentionGeometry:
    return AttentionGeometry(rows, stored, heads=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(("rows", "stored"), [(8, 512), (32, 512), (32, 4096), (16, 2000)])
def test_cuda_keeps_an_array_mask_away_from_the_fused_kernel(rows: int, stored: int) -> None:
    assert CUDA.choose(attention(rows, stored), MASKED).name == "grouped"


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_cuda_takes_the_kernel_that_skips_what_nobody_sees(rows: int) -> None:
    assert CUDA.choose(attention(rows, 512), ("fused_mask", "grouped", "ragged")).name == "ragged"


def test_rows_of_one_length_need_no_mask() -> None:
    assert CUDA.choose(attention(32, 4096), ("fused", *MASKED)).name == "fused"


def test_only_what_can_run_is_chosen() -> None:
    assert CUDA.choose(attention(8, 4096), ("fused_mask", "loop")).name == "loop"


def test_cuda_appends_with_one_scatter() -> None:
    assert CUDA.choose(AppendGeometry(32, 512, 8, 128), ("scatter", "slices")).name == "scatter"


@pytest.mark.parametrize(("rows", "name"), [(1, "whole"), (8, "whole"), (32, "split16")])
def test_cuda_splits_quantised_products_where_the_kernel_falls_off_a_cliff(rows: int, name: str) -> None:
    stored = CUDA.product_names() - {"dense", "streamed"}
    assert CUDA.choose(QmmGeometry(rows, 4096, 4096, 4), stored).name == name


@pytest.mark.parametrize(("rows", "name"), [(1, "dense"), (2, "streamed"), (8, "streamed"), (32, "dense")])
def test_cuda_streams_packed_weights_of_a_few_rows_and_unpacks_those_of_many(rows: int, name: str) -> None:
    assert CUDA.choose(QmmGeometry(rows, 4096, 4096, 4), CUDA.product_names()).name == name


@pytest.mark.parametrize(
    ("rows", "name"), [(1, "whole"), (4, "streamed"), (8, "streamed"), (16, "streamed"), (32, "whole"), (512, "whole")]
)
def test_cuda_streams_dense_weights_of_a_few_rows(rows: int, name: str) -> None:
    usable = {"whole", "streamed"} if rows <= 32 else {"whole"}
    assert CUDA.choose(MatmulGeometry(rows, 4096, 4096), usable).name == name


def test_the_reason_says_where_it_was_measured() -> None:
    assert CUDA.choose(attention(32, 4096), MASKED).reason == (
        "210.48 us measured at 32 rows, 4096 stored, 32 heads, 8 kv heads, 128 head dim"
    )
    assert CUDA.choose(attention(31, 4096), MASKED).reason.startswith("210.48 us measured at the nearest, 32 rows")


def test_a_point_says_nothing_about_many_more_rows() -> None:
    chosen = CUDA.choose(QmmGeometry(2048, 4096, 4096, 4), CUDA.product_names() - {"dense", "streamed"})
    assert (chosen.name, chosen.reason) == (
        "whole",
        "not measured on cuda for 2048 rows, 4096 outputs, 4096 inputs, 4 bits",
    )


def test_metal_is_not_measured_and_says_so() -> None:
    metal = Strategies(shipped_table("metal"))
    assert metal.table.measured_on == ""
    assert metal.choose(DecodeGeometry(8, 2048, 16), ("compiled", "eager")).reason.startswith("not measured on metal")


@pytest.mark.parametrize("device", ["metal", "cuda", "cpu"])
def test_shipped_tables_can_be_read_and_sent_to_another_process(device: Any) -> None:
    strategies = Strategies(shipped_table(device), parse_forced("qmm=split8"))
    sent = pickle.loads(pickle.dumps(strategies))
    assert sent.digest() == strategies.digest()


def test_a_forced_strategy_wins_over_the_table_where_it_can_run() -> None:
    forced = Strategies(CUDA.table, parse_forced("attention=loop"))
    assert forced.choose(attention(32, 512), MASKED).name == "loop"
    assert forced.choose(attention(32, 512), ("grouped",)).name == "grouped"
    assert forced.digest() != CUDA.digest()


def test_several_are_forced_at_once() -> None:
    assert parse_forced("attention=grouped, qmm=split16,append=auto") == {"attention": "grouped", "qmm": "split16"}
    assert parse_forced("auto") == {}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("grouped", SettingsError, "isn't KIND=NAME"),
        ("attention=", SettingsError, "isn't KIND=NAME"),
        ("attention=gruped", UnknownName, "Did you mean 'grouped'"),
        ("atention=grouped", UnknownName, "Did you mean 'attention'"),
        ("qmm=split0", UnknownName, "strategy for qmm 'split0'"),
        ("decode=eager", SettingsError, "--compiled-decode"),
        ("qmm=whole,qmm=dense", SettingsError, "named twice"),
    ],
)
def test_what_cannot_be_forced_is_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_forced(text)


def written(folder: Path, **changes: Any) -> Path:
    """The CUDA table with one measurement turned round, as a bench on an H200 would leave it."""
    point = {
        "operation": "attention",
        "sizes": {"rows": 8, "stored": 512, "heads": 32, "kv_heads": 8, "head_dim": 128},
        "microseconds": {"fused_mask": 10, "grouped": 20, "loop": 30},
    }
    here = "NVIDIA H200, MLX 0.32.4, bfloat16"
    table = shipped_table("cuda").as_json() | {"points": [point], "measured_on": here} | changes
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "cuda.json"
    path.write_text(json.dumps(table))
    return path


def test_a_named_table_takes_the_place_of_what_it_measured_and_nothing_else(tmp_path: Path) -> None:
    loaded = load_strategies(StrategySettings(table=str(written(tmp_path))), H200).strategies
    assert loaded.choose(attention(32, 512), MASKED).name == "fused_mask"
    assert loaded.choose(AppendGeometry(32, 512, 8, 128), ("scatter", "slices")).reason.startswith("7280 us")
    assert loaded.digest() != CUDA.digest()


def test_a_table_that_was_written_can_be_read(tmp_path: Path) -> None:
    table = read_table(written(tmp_path))
    again = tmp_path / "again.json"
    again.write_text(json.dumps(table.as_json()))
    assert read_table(again).digest() == table.digest()


def test_a_named_table_of_another_device_is_refused(tmp_path: Path) -> None:
    cpu = BackendFacts("cpu", "x", "0.32.4", 10**9, 10**9)
    with pytest.raises(UsageError, match="measured on cuda, this device is cpu"):
        load_strategies(StrategySettings(table=str(written(tmp_path))), cpu)


def test_the_cached_table_is_taken_by_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "cache")
    assert user_table_path(H200, tmp_path / "cache") == path
    loaded = load_strategies(StrategySettings(), H200, tmp_path / "cache")
    assert loaded.strategies.table.source == str(path)
    assert (
        load_strategies(StrategySettings(table="none"), H200, tmp_path / "cache").strategies.digest() == CUDA.digest()
    )


@pytest.mark.parametrize(
    ("changes", "mode", "notice"),
    [
        ({"measured_on": "NVIDIA H200, MLX 0.31.0, bfloat16"}, 0o600, "Measure again"),
        ({"format": 2}, 0o600, "its format is 2"),
        ({}, 0o666, "can be written by others"),
    ],
)
def test_a_cached_table_that_does_not_fit_is_left_with_a_notice(
    tmp_path: Path, changes: dict[str, Any], mode: int, notice: str
) -> None:
    written(tmp_path / "cache", **changes).chmod(mode)
    loaded = load_strategies(StrategySettings(), H200, tmp_path / "cache")
    assert loaded.strategies.digest() == CUDA.digest()
    assert notice in loaded.notices[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "its device is 'tpu'"),
        ({"points": {}}, "'points' has to be a list"),
        ({"points": [{"operation": "fly"}]}, "operation is 'fly'"),
        ({"points": [{"operation": "qmm", "sizes": {"rows": 0}, "microseconds": {}}]}, "rows is 0"),
        ({"points": [{"operation": "qmm", "sizes": {"rows": 1.5}, "microseconds": {}}]}, "rows is 1.5"),
        ({"points": [{"operation": "qmm", "sizes": {"cows": 1}, "microseconds": {}}]}, "qmm has no cows"),
        ({"points": [{"operation": "qmm", "sizes": {}, "microseconds": {"whole": -1}}]}, "whole is -1"),
        ({"points": [{"operation": "qmm", "sizes": {}, "microseconds": {"hole": 1}}]}, "Did you mean 'whole'"),
        ({"points": [[]]}, "a point has to be an object"),
        ({"defaults": {"attention": ["grouped"]}}, "no list for append"),
    ],
)
def test_a_damaged_table_says_what_is_wrong_with_it(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_table(written(tmp_path, **changes))


@pytest.mark.parametrize("text", ["", "{", "[" * 10_000, "\0"])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="can't be read as a strategy table"):
        read_table(path)


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        read_table(tmp_path / "nowhere.json")
