"""The draft head by its flags, beside a tiny Qwen3.5."""

from pathlib import Path

import phyla
import pytest
from phyla.errors import RefusedCombination
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla.testing.tiny.mtp import companion_config, head_shapes
from phyla.testing.tiny.qwen35 import published_shapes, qwen35_config

CONFIG = qwen35_config()
SAMPLINGS = [{}, {"temperature": 0.9, "seed": 7, "top_p": 0.9}, {"repetition_penalty": 1.3}, {"logprobs": True}]
PROMPT = "The quick brown fox jumps over the lazy dog"
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = tmp_path_factory.mktemp("models")
    head = companion_config(CONFIG)
    bundle = tiny_checkpoint(models / "bundle", CONFIG)
    tiny_checkpoint(bundle / "mtp", head, shapes=head_shapes(head), tokenizer=False)
    return {
        "plain": tiny_checkpoint(models / "plain", CONFIG),
        "head": tiny_checkpoint(models / "head", head, shapes=head_shapes(head), tokenizer=False),
        "bundle": bundle,
        "riding": tiny_checkpoint(
            models / "riding", CONFIG, shapes=tensor_shapes(CONFIG) | head_shapes(CONFIG, "mtp.")
        ),
        "llama": tiny_checkpoint(models / "llama", tiny_config("llama")),
    }


@pytest.fixture(scope="module")
def answers(folders):
    with phyla.load(str(folders["plain"])) as model:
        return [model.generate(PROMPT, max_tokens=NUM_TOKENS, **one).token_ids for one in SAMPLINGS]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {"draft_model": "head", "draft_adaptive": "off"}),
        ("plain", {"draft_model": "head", "batch": 1, "num_draft_tokens": 5}),
        ("bundle", {"method": "mtp", "draft_adaptive": "off"}),
        ("riding", {"draft_kind": "mtp", "draft_adaptive": "off"}),
    ],
)
def test_tokens_are_those_of_plain_decoding(folders, answers, name, options):
    if "draft_model" in options:
        options = options | {"draft_model": str(folders["head"])}
    with phyla.load(str(folders[name]), **options) as model:
        assert model.plan.method.name == "mtp"
        for sampling, want in zip(SAMPLINGS, answers, strict=True):
            got = model.generate(PROMPT, max_tokens=NUM_TOKENS, **sampling)
            assert got.token_ids == want
            assert got.usage.speculation["drafted"] > 0


def test_a_head_with_experts_drafts_for_a_model_with_experts(tmp_path):
    config = qwen35_config(with_experts=True, num_hidden_layers=4)
    shapes = published_shapes(config) | head_shapes(config, "mtp.")
    folder = str(tiny_checkpoint(tmp_path / "published", config, shapes=shapes))
    with phyla.load(folder) as model:
        want = model.generate(PROMPT, max_tokens=NUM_TOKENS)
    with phyla.load(folder, method="mtp", draft_adaptive="off") as model:
        got = model.generate(PROMPT, max_tokens=NUM_TOKENS)
    assert got.token_ids == want.token_ids
    assert got.usage.speculation["drafted"] > 0


def test_nobody_gets_it_without_asking(folders):
    with phyla.load(str(folders["bundle"])) as model:
        assert model.plan.method.name == "none"


def test_a_model_without_a_head_is_refused(folders):
    with pytest.raises(RefusedCombination, match="'mtp' needs a drafter, and plain carries none"):
        phyla.load(str(folders["plain"]), method="mtp")


def test_another_series_is_refused(folders):
    with pytest.raises(RefusedCombination, match="head for Qwen3.5, and the model is a llama"):
        phyla.load(str(folders["llama"]), draft_model=str(folders["head"]))
