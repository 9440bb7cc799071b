"""`phyla bench engine` on random weights of the smallest shape, for real and beside mlx-lm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phyla.cli.bench.random_model import GEOMETRIES, RandomModel
from phyla.cli.main import main
from phyla.errors import UsageError
from phyla.testing.oracle import MlxLmOracle

QUICK = ("--tokens", "3", "--pairs", "2")
Bench = Callable[..., Any]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture
def bench(weights: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`bench(model, *arguments)`: the JSON that was printed."""

    def run(model: str, *arguments: str) -> Any:
        words = ["bench", "engine", model, "--weights-folder", str(weights), *QUICK, *arguments]
        assert main(words, env={}) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_both_sides_are_measured_on_every_route(bench: Bench) -> None:
    cases = ("exact:tg@1x9", "fast:tg@3x9", "fast:tg@1x30+2x5", "fast:pp@2x9")
    got = bench("random:tiny", "--against", "mlx-lm", "--bandwidth", "20", *(f"--case={case}" for case in cases))
    assert [one["case"] for one in got["cases"]] == list(cases)
    assert [one["plan"]["route"] for one in got["cases"]] == ["exact", "fast", "fast", "fast"]
    assert set(got["versions"]) == {"python", "phyla", "mlx", "mlx-lm"}
    for one in got["cases"]:
        low, high = one["ratio_interval_95"]
        assert set(one["sides"]) == {"phyla", "mlx-lm"}
        assert all(side["tokens_per_second"] > 0 and side["peak_bytes"] > 0 for side in one["sides"].values())
        assert low <= one["ratio"] <= high
        assert len(one["samples"]) == one["pairs"] == 2
        assert ("bandwidth_share" in one["sides"]["phyla"]) == (one["kind"] == "tg")


def test_a_draft_methods_acceptance_is_told(bench: Bench, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four " * 20, "utf-8")
    got = bench(
        "random:tiny", "--case=tg@1x60", "--method=ngram", "--draft-adaptive=off", "--tokens=40", f"--text={text}"
    )
    assert got["model"]["method"] == "ngram"
    assert got["cases"][0]["sides"]["phyla"]["speculation"]["method"] == "ngram"
    assert got["cases"][0]["sides"]["phyla"]["speculation"]["drafted"] > 0


def test_weights_in_four_bits_take_less(bench: Bench) -> None:
    got = bench("random:tiny@4", "--stored=9", "--rows=1", "--weights=stored", "--dtype=bfloat16")
    whole = bench("random:tiny", "--stored=9", "--rows=1", "--dtype=bfloat16")
    assert got["model"]["weight_bytes"] < whole["model"]["weight_bytes"] / 3
    assert [one["case"] for one in got["cases"]] == ["tg@1x9"]


def test_the_file_names_the_command_without_folders(bench: Bench, weights: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    words = ["bench", "engine", str(RandomModel("tiny").write(weights)), "--case=pp@1x9", *QUICK]
    assert main([*words, f"--output={output}"], env={}) == 0
    result = json.loads(output.read_text("utf-8"))
    assert result["command"].startswith("phyla bench engine")
    assert str(weights) not in output.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("random:tinny",), "Did you mean 'tiny'?"),
        (("random:tiny@3",), "@4 or @8 bits"),
        (("random:tiny", "--case", "tg@8"), "isn't a case"),
        (("random:tiny", "--rows", "4"), "give both, or --case"),
        (("random:tiny", "--stored", "a,b"), "isn't a list of numbers"),
        (("random:tiny", "--stored", "0"), "below 1"),
        (("random:tiny", "--case", "tg@1x40000"), "comes to 40007 tokens in a row"),
        (("random:tiny", "--case", "tg@4x9", "--batch", "2"), "--batch 2 can't run 4 rows together"),
        (("random:tiny", "--against", "mlxlm"), "Did you mean 'mlx-lm'?"),
        (("random:tiny", "--text", "absent.txt"), "can't be read"),
        (("random:tiny", "--output", "absent/result.json"), "name a file in a folder that exists"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    weights: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    words = ["bench", "engine", *arguments, "--weights-folder", str(weights), *QUICK]
    assert main(words, env={}) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_random_weights_are_the_same_every_time_and_whole_for_mlx_lm(tmp_path: Path) -> None:
    first = MlxLmOracle(RandomModel("tiny").write(tmp_path / "a")).greedy([5, 6, 7], 4)
    again = MlxLmOracle(RandomModel("tiny").write(tmp_path / "b")).greedy([5, 6, 7], 4)
    assert first.tokens == again.tokens


def test_every_geometry_has_a_name_of_its_own() -> None:
    assert RandomModel.parse("random:llama-8b@4").name == "llama-8b-4bit"
    assert [RandomModel.parse(f"random:{name}").name for name in GEOMETRIES] == list(GEOMETRIES)


def test_weights_that_cannot_be_written_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        RandomModel("tiny").write(tmp_path / "file")
