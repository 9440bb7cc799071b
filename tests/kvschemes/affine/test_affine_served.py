"""Affine storage by its flag, through discovery, selection and the engine."""

import json
import re
from pathlib import Path

import phyla
import pytest
from phyla.cli.main import main
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

PROMPTS = ["abc abc abc abc", "one two one two one"]
SHAPE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", num_hidden_layers=2, **SHAPE)
    made = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", config)
    forms = [{"layer_idx": index, "bits": bits, "group_size": 64} for index, bits in enumerate((8, 4))]
    (made / "kv_config.json").write_text(json.dumps(forms))
    return made


@pytest.mark.parametrize("spec", ["8", "4", "config"])
def test_an_engine_that_batches_says_what_a_strict_one_says(folder: Path, spec: str) -> None:
    with phyla.load(str(folder), kv_quant=spec, batch=1) as model:
        alone = [model.generate(prompt, max_tokens=24).token_ids for prompt in PROMPTS]
    with phyla.load(str(folder), kv_quant=spec, batch=4) as model:
        answers = [model.generate(prompt, max_tokens=24).token_ids for prompt in PROMPTS]
        again = [model.generate(prompt, max_tokens=24).token_ids for prompt in PROMPTS]
    assert answers == alone
    assert again == alone


def test_drafts_are_verified_on_quantised_storage(folder: Path) -> None:
    with phyla.load(str(folder), kv_quant="8") as model:
        plain = [model.generate(prompt, max_tokens=40).token_ids for prompt in PROMPTS]
    with phyla.load(str(folder), kv_quant="8", method="ngram", draft_adaptive="off") as model:
        drafted = [model.generate(prompt, max_tokens=40) for prompt in PROMPTS]
    assert [answer.token_ids for answer in drafted] == plain
    assert all(answer.usage.speculation["method"] == "ngram" for answer in drafted)


@pytest.mark.parametrize("scheme", ["affine:4", "turboquant:k4v2"])
def test_drafts_around_a_delayed_start_change_no_token(folder: Path, scheme: str) -> None:
    prompts = [word * times for word in ("abc ", "hello there ", "x") for times in (3, 5, 8)]
    delayed = {"kv_scheme": scheme, "quantized_kv_start": 40}
    with phyla.load(str(folder), **delayed) as model:
        plain = [model.generate(prompt, max_tokens=40).token_ids for prompt in prompts]
    with phyla.load(str(folder), **delayed, method="ngram", draft_adaptive="off") as model:
        drafted = [model.generate(prompt, max_tokens=40) for prompt in prompts]
    assert [answer.token_ids for answer in drafted] == plain
    assert sum(answer.usage.speculation["accepted"] for answer in drafted) > 0


def test_explain_and_stats_say_what_a_token_takes_and_buys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Two layers; keys and values of 64 float32 numbers each, or 64 bytes of codes and two float32 numbers.
    main(["explain", str(folder), "--kv-quant", "8"])
    said = capsys.readouterr().out
    assert "Cache: 288 bytes per token" in said
    found = re.search(r"holds a context of (\d+) tokens, of (\d+) stored plain", said)
    assert found is not None
    assert int(found[1]) / int(found[2]) == pytest.approx(1024 / 288, rel=0.01)
    with phyla.load(str(folder), kv_quant="8") as model:
        assert model.engine.stats()["kv"] == {
            "bytes_per_token": 288.0,
            "plain_bytes_per_token": 1024.0,
            "context_tokens": int(found[1]),
            "plain_context_tokens": int(found[2]),
        }


def test_plain_storage_buys_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", str(folder)])
    assert "stored plain" not in capsys.readouterr().out
