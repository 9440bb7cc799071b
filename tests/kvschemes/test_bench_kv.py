"""`phyla bench kv` on a tiny model: its numbers against an independent reading, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from phyla.checkpoint import FolderCheckpoint
from phyla.cli.main import main
from phyla.testing.oracle import MlxLmOracle
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

TEXT = "Keys and values are what a long session runs out of memory for. A scheme stores them in fewer bytes. " * 3
Bench = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("bench") / "tiny", tiny_config("llama"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def bench(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`bench(*arguments)`: the JSON that was printed."""

    def run(*arguments: str) -> Any:
        assert main(["bench", "kv", str(folder), "--text", str(text), *arguments], env={}) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_perplexity_is_that_of_mlx_lms_model(bench: Bench, folder: Path) -> None:
    ids = FolderCheckpoint.open(folder).tokenizer().encode(TEXT)
    got = bench("--scheme", "affine:8", "--window", "4096", "--chunk", "16")
    logits = MlxLmOracle(folder).logits(ids).astype(np.float64)[:-1]
    surprise = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    assert got["num_predicted"] == len(ids) - 1
    assert math.isclose(got["schemes"]["plain"]["perplexity"], math.exp(surprise.mean()), rel_tol=1e-5)


def test_each_window_predicts_all_but_its_first_token(bench: Bench) -> None:
    got = bench("--scheme", "affine:8", "--tokens", "50", "--window", "20", "--chunk", "7")
    assert (got["num_tokens"], got["num_predicted"]) == (50, 47)


def test_a_last_window_of_one_token_predicts_nothing(bench: Bench) -> None:
    assert bench("--scheme", "affine:8", "--tokens", "21", "--window", "20")["num_predicted"] == 19


def test_fewer_bits_are_further_from_plain(bench: Bench) -> None:
    schemes = bench("--scheme", "affine:8", "--scheme", "affine:4", "--chunk", "16")["schemes"]
    assert list(schemes) == ["plain", "affine:8", "affine:4"]
    assert 0 < schemes["affine:8"]["mean_kl_nats"] < schemes["affine:4"]["mean_kl_nats"]
    assert schemes["affine:8"]["times_smaller"] == 1.882
    assert schemes["affine:4"]["times_smaller"] == 3.556


def test_plain_storage_does_not_differ_from_itself(bench: Bench) -> None:
    one = bench("--scheme", "affine:8")["schemes"]["plain"]
    assert (one["perplexity_change_percent"], one["mean_kl_nats"], one["same_choice_percent"]) == (0.0, 0.0, 100.0)


def test_the_scheme_of_the_settings_is_compared_where_none_is_named(bench: Bench) -> None:
    assert list(bench("--kv-quant", "4")["schemes"]) == ["plain", "affine:4"]


def test_the_result_can_go_to_a_file(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"
    assert main(["bench", "kv", str(folder), f"--text={text}", "--scheme=affine:8", f"--output={output}"], env={}) == 0
    assert capsys.readouterr().out == ""
    assert "affine:8" in json.loads(output.read_text("utf-8"))["schemes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to compare with plain storage: name a scheme"),
        (("--scheme", "afine:8"), "affine"),
        (("--scheme", "affine:3"), "affine storage has 4 and 8"),
        (("--scheme", "affine:8", "--window", "5000"), "this model's context has 4096 tokens"),
        (("--scheme", "affine:8", "--text", "absent.txt"), "can't be read"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["bench", "kv", str(folder), "--text", str(text), *arguments], env={}) == 2
    assert message in capsys.readouterr().err


def test_a_text_of_one_token_is_refused(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text.write_text("")
    assert main(["bench", "kv", str(folder), "--text", str(text), "--scheme", "affine:8"], env={}) == 2
    assert "fewer than two tokens" in capsys.readouterr().err


def test_an_unknown_measurement_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kw"], env={}) == 2
    assert "Known: engine" in capsys.readouterr().err
