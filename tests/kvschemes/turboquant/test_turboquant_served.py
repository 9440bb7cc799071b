"""TurboQuant by its flag, through discovery, selection and the engine."""

from pathlib import Path

import phyla
import pytest
from phyla.errors import UnsupportedScheme
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

PROMPTS = ["abc abc abc abc", "one two one two one"]
SHAPE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", num_hidden_layers=2, **SHAPE)
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", config)


def test_an_engine_that_batches_says_what_a_strict_one_says(folder: Path) -> None:
    with phyla.load(str(folder), kv_quant="turbo", batch=1) as model:
        alone = [model.generate(prompt, max_tokens=24).token_ids for prompt in PROMPTS]
        assert model.plan.layer_schemes == ("turboquant:k8v3", "turboquant:k8v3")
    with phyla.load(str(folder), kv_quant="turbo:k8v3", batch=4) as model:
        answers = [model.generate(prompt, max_tokens=24).token_ids for prompt in PROMPTS]
    assert answers == alone


def test_drafts_are_verified_on_encoded_storage(folder: Path) -> None:
    with phyla.load(str(folder), kv_quant="turbo:k8v8") as model:
        plain = [model.generate(prompt, max_tokens=40).token_ids for prompt in PROMPTS]
    with phyla.load(str(folder), kv_quant="turbo:k8v8", method="ngram", draft_adaptive="off") as model:
        drafted = [model.generate(prompt, max_tokens=40) for prompt in PROMPTS]
    assert [answer.token_ids for answer in drafted] == plain
    assert all(answer.usage.speculation["method"] == "ngram" for answer in drafted)


def test_another_head_size_is_refused_before_anything_loads(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama", head_dim=32))
    with pytest.raises(UnsupportedScheme, match="keys are 32 wide, and turboquant stores heads of 64, 128, 256, 512"):
        phyla.load(str(folder), kv_scheme="turbo")
