"""Two-model drafting by its flags, through discovery, selection and the engine, beside mlx-lm's own loop."""

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import phyla
import pytest
from phyla.errors import RefusedCombination, UnsupportedModel
from phyla.testing.oracle import MlxLmOracle
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

PROMPTS = ["The quick brown fox", "Paris is the capital of France, Madrid is"]
SAMPLINGS = [{}, {"temperature": 0.9, "seed": 7, "top_p": 0.9}, {"frequency_penalty": 0.5}, {"logprobs": True}]
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, one that is often of its opinion, a small one of another family, and some that can't be used."""
    models = tmp_path_factory.mktemp("models")
    padded = tiny_checkpoint(models / "padded", tiny_config("llama", vocab_size=544), seed=2)
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96}
    target = tiny_checkpoint(models / "target", tiny_config("llama"))
    shutil.copy(target / "tokenizer.json", padded / "tokenizer.json")
    return {
        "target": target,
        "padded": padded,
        "near": blurred(tiny_checkpoint(models / "near", tiny_config("llama")), 0.02),
        "drafter": tiny_checkpoint(models / "drafter", tiny_config("qwen3", **small), seed=1),
        "foreign": tiny_checkpoint(models / "foreign", tiny_config("llama", vocab_size=300, **small), seed=3),
        "head": tiny_checkpoint(
            models / "head", tiny_config("llama") | {"model_type": "llama_mtp"}, shapes={"fc.weight": (4, 4)}
        ),
    }


def blurred(folder: Path, amount: float) -> Path:
    """The same model with noise on its weights."""
    tensors = mx.load(str(folder / "model.safetensors"))
    keys = mx.random.split(mx.random.key(5), len(tensors))
    noisy = {
        name: one + amount * mx.random.normal(one.shape, key=key)
        for (name, one), key in zip(sorted(tensors.items()), keys, strict=True)
    }
    mx.save_safetensors(str(folder / "model.safetensors"), noisy, metadata={"format": "mlx"})
    return folder


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> Iterator[phyla.Model]:
    with phyla.load(str(folders["target"])) as model:
        yield model


@pytest.mark.parametrize("name", ["near", "drafter"])
@pytest.mark.parametrize("options", [{"batch": 1}, {"draft_adaptive": "off", "num_draft_tokens": 7}])
def test_tokens_are_those_of_plain_decoding(folders, plain, name, options):
    with phyla.load(str(folders["target"]), draft_model=str(folders[name]), **options) as drafting:
        assert drafting.plan.method.name == "two-model"
        for prompt in PROMPTS:
            for sampling in SAMPLINGS:
                want = plain.generate(prompt, max_tokens=NUM_TOKENS, **sampling)
                got = drafting.generate(prompt, max_tokens=NUM_TOKENS, **sampling)
                assert got.token_ids == want.token_ids
                assert got.usage.speculation["drafted"] > 0


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.0, "top_k": 5, "seed": 4},
        {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "frequency_context_size": 3},
        {"temperature": 1.0, "seed": 5, "presence_penalty": 1.5, "presence_context_size": 0},
        {"temperature": 1.0, "seed": 6, "logit_bias": dict.fromkeys(("70", "71", "72"), 6.0)},
    ],
)
def test_a_drafter_that_is_the_target_is_always_right(folders, sampling):
    target = str(folders["target"])
    with phyla.load(target, draft_model=target, draft_adaptive="off") as model:
        report = model.generate(PROMPTS[0], max_tokens=NUM_TOKENS, **sampling).usage.speculation

    assert report["rejected"] == 0
    assert report["acceptanceLengths"][3] == report["rounds"] == NUM_TOKENS // 4


def test_token_for_token_what_mlx_lms_loop_gives(folders):
    target, drafter = (MlxLmOracle(folders[name]).model for name in ("target", "near"))
    with phyla.load(str(folders["target"]), draft_model=str(folders["near"]), batch=1) as model:
        for prompt in PROMPTS:
            got = model.generate(prompt, max_tokens=NUM_TOKENS, ignore_eos=True)
            want = speculated(target, drafter, model.renderer.render_text(prompt).ids)
            assert list(got.token_ids) == [token for token, _ in want]
            # In its last round mlx-lm drafts one more: ours leaves the last token to the target.
            assert 0 <= sum(drafted for _, drafted in want) - got.usage.speculation["accepted"] <= 1


def speculated(target, drafter, ids):
    # The package's own `generate` hides the module.
    step = importlib.import_module("mlx_lm.generate").speculative_generate_step
    pairs = step(mx.array(ids), target, drafter, num_draft_tokens=3, max_tokens=NUM_TOKENS)
    return [(int(token), bool(from_draft)) for token, _, from_draft in pairs]


@pytest.mark.parametrize("options", [{"batch": 1}, {"draft_adaptive": "off"}])
def test_lengths_are_pinned_where_they_may_not_follow_the_clock(folders, options):
    """A drafter that is hardly ever right would soon be asked for nothing."""
    with phyla.load(str(folders["target"]), draft_model=str(folders["drafter"]), **options) as model:
        speculation = model.generate(PROMPTS[0], max_tokens=NUM_TOKENS, ignore_eos=True).usage.speculation
    assert speculation["accepted"] * 4 < speculation["drafted"]
    # The last three rounds have no room for three drafts and a token of the target's own.
    assert speculation["drafted"] >= 3 * (speculation["rounds"] - 3)


def test_another_vocabulary_size_is_noted_and_still_drafts(folders, plain):
    with phyla.load(str(folders["target"]), method="two-model", draft_model=str(folders["padded"])) as model:
        assert any("544 ids and the target for 512" in notice for notice in model.plan.notices)
        for sampling in SAMPLINGS[:2]:
            want = plain.generate(PROMPTS[0], max_tokens=NUM_TOKENS, **sampling)
            assert model.generate(PROMPTS[0], max_tokens=NUM_TOKENS, **sampling).token_ids == want.token_ids


def test_another_tokenizer_is_refused_before_anything_loads(folders):
    with pytest.raises(RefusedCombination, match="foreign has another tokenizer, which encodes"):
        phyla.load(str(folders["target"]), draft_model=str(folders["foreign"]))


def test_a_head_of_another_model_is_no_drafter_of_its_own(folders):
    with pytest.raises(RefusedCombination, match="No draft method recognises"):
        phyla.load(str(folders["target"]), draft_model=str(folders["head"]))
    with pytest.raises(UnsupportedModel, match="llama_mtp"):
        phyla.load(str(folders["target"]), draft_model=str(folders["head"]), draft_kind="two-model")


def test_without_a_drafter_it_is_refused(folders):
    with pytest.raises(RefusedCombination, match="'two-model' needs a drafter"):
        phyla.load(str(folders["target"]), method="two-model")
