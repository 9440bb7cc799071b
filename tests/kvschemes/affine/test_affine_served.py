"""Affine storage by its flag, through discovery, selection and the engine."""

import json
from pathlib import Path

import phyla
import pytest
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
def test_rows_together_say_what_each_says_alone(folder: Path, spec: str) -> None:
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
    with phyla.load(str(folder), kv_quant="8", method="ngram") as model:
        drafted = [model.generate(prompt, max_tokens=40) for prompt in PROMPTS]
    assert [answer.token_ids for answer in drafted] == plain
    assert all(answer.usage.speculation["method"] == "ngram" for answer in drafted)
