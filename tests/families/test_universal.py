"""The universal decoder, one class per architecture and per branch of the table."""

from __future__ import annotations

import json

import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.model import Claim
from phyla.settings import Settings
from phyla.testing.engines import family_spec
from phyla.testing.family import FamilyContract
from phyla.testing.oracle import MlxLmOracle
from phyla.testing.parity import MlxLmParityContract
from phyla.testing.row_equality import RowEqualityContract
from phyla.testing.stepping import load_options
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint, tiny_config
from phyla_universal import UniversalFamily, phyla_families
from phyla_universal.config import decoder_config
from phyla_universal.describe import is_tied
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 4.0}
SLIDING = {"layer_types": [*["sliding_attention"] * 3, "full_attention"], "sliding_window": 8}

LLAMA = tiny_config("llama")
LLAMA_WITH_EVERYTHING = tiny_config("llama", attention_bias=True, mlp_bias=True, rope_scaling=LLAMA3)
LLAMA_SLIDING = tiny_config("llama", tie_word_embeddings=True, **SLIDING)
MISTRAL = {**tiny_config("llama"), "model_type": "mistral", "head_dim": 32}
QWEN2 = tiny_config("qwen2")
QWEN2_YARN = tiny_config("qwen2", rope_scaling=YARN)
QWEN3 = tiny_config("qwen3")
QWEN3_LINEAR = tiny_config("qwen3", rope_scaling=LINEAR, tie_word_embeddings=False)


class Universal:
    family = UniversalFamily()


class TestRows(RowEqualityContract):
    group = "stacked"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def folder(cls, tmp_path_factory):
        cls.made = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", LLAMA_SLIDING)

    def spec(self, settings):
        return family_spec(UniversalFamily(), self.made, settings)


class TestLlama(Universal, FamilyContract):
    config = LLAMA_WITH_EVERYTHING


class TestLlamaSliding(Universal, FamilyContract):
    config = LLAMA_SLIDING

    def reference(self, folder, tokens):
        """mlx-lm: transformers ignores `layer_types` of a llama."""
        return MlxLmOracle(folder).logits(tokens)


class TestMistral(Universal, FamilyContract):
    config = MISTRAL


class TestQwen2(Universal, FamilyContract):
    config = QWEN2_YARN


class TestQwen3(Universal, FamilyContract):
    config = QWEN3


class TestQwen3WithStretchedPositions(Universal, FamilyContract):
    config = QWEN3_LINEAR


class TestLlamaParity(Universal, MlxLmParityContract):
    config = LLAMA


class TestLlamaWithEverythingParity(Universal, MlxLmParityContract):
    config = LLAMA_WITH_EVERYTHING


class TestLlamaSlidingParity(Universal, MlxLmParityContract):
    config = LLAMA_SLIDING


class TestQwen2Parity(Universal, MlxLmParityContract):
    config = QWEN2


class TestQwen2YarnParity(Universal, MlxLmParityContract):
    config = QWEN2_YARN


class TestQwen3Parity(Universal, MlxLmParityContract):
    config = QWEN3


class TestQwen3LinearParity(Universal, MlxLmParityContract):
    config = QWEN3_LINEAR


class TestLlamaBfloat16Parity(Universal, MlxLmParityContract):
    config = LLAMA_WITH_EVERYTHING
    dtype = "bfloat16"


class TestQuantisedParity(Universal, MlxLmParityContract):
    config = tiny_config(
        "llama",
        tie_word_embeddings=True,
        quantization={
            "group_size": 64,
            "bits": 4,
            "model.embed_tokens": {"group_size": 32, "bits": 8},
            "model.layers.1.self_attn.k_proj": {"group_size": 32, "bits": 8},
            "model.layers.2.mlp.down_proj": False,
        },
    )
    dtype = "bfloat16"
    chunk = 256


class QuantisedWhole(Universal, MlxLmParityContract):
    """Every matrix in one form, embedding and head included."""

    dtype = "bfloat16"
    chunk = 256


class TestEightBitsParity(QuantisedWhole):
    config = tiny_config("qwen2", quantization={"group_size": 64, "bits": 8})


class TestOddBitsParity(QuantisedWhole):
    config = tiny_config(
        "llama",
        quantization={
            "group_size": 64,
            "bits": 3,
            "model.layers.0.self_attn.q_proj": {"group_size": 32, "bits": 2},
            "model.layers.1.mlp.up_proj": {"group_size": 128, "bits": 5},
            "model.layers.2.self_attn.o_proj": {"group_size": 64, "bits": 6},
            "lm_head": False,
        },
    )


class TestMxfp4Parity(QuantisedWhole):
    config = tiny_config("qwen3", quantization={"group_size": 32, "bits": 4, "mode": "mxfp4"})


class TestMxfp8Parity(QuantisedWhole):
    config = tiny_config("llama", quantization={"group_size": 32, "bits": 8, "mode": "mxfp8"})


class TestNvfp4Parity(QuantisedWhole):
    config = tiny_config("llama", quantization={"group_size": 16, "bits": 4, "mode": "nvfp4"})


def test_the_plugin_gives_its_family():
    assert [family.name for family in phyla_families(Settings())] == ["universal"]


@pytest.mark.parametrize("name", ["llama", "mistral", "iquestcoder", "xverse", "qwen2", "qwen3"])
def test_known_architectures_are_claimed_as_known(name):
    assert UniversalFamily().claim({"model_type": name}) is Claim.CLOSE


def test_a_config_that_does_not_say_is_tied_if_there_is_no_head(tmp_path):
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    with_head = tensor_shapes(LLAMA)
    without = {name: shape for name, shape in with_head.items() if name != "lm_head.weight"}
    for name, shapes, expected in (("untied", with_head, False), ("tied", without, True)):
        folder = tiny_checkpoint(tmp_path / name, silent, tokenizer=False, shapes=shapes)
        assert is_tied(FolderCheckpoint.open(folder)) is expected


def test_a_tied_model_ignores_a_head_that_is_there(tmp_path):
    shapes = tensor_shapes(LLAMA)
    folder = tiny_checkpoint(tmp_path / "model", {**LLAMA, "tie_word_embeddings": True}, tokenizer=False, shapes=shapes)
    checkpoint = FolderCheckpoint.open(folder)
    facts = UniversalFamily().describe(checkpoint)
    UniversalFamily().bind(checkpoint, facts, load_options())
    assert facts.notes == ("tie_word_embeddings is true: lm_head.weight is there and isn't used, as in mlx-lm",)
    assert facts.weight_bytes.total == sum(
        info.num_bytes for name, info in checkpoint.tensor_infos().items() if name != "lm_head.weight"
    )


@pytest.mark.parametrize(
    ("config", "is_noted"),
    [
        (tiny_config("qwen2", sliding_window=4096, use_sliding_window=False), False),
        (tiny_config("qwen2", sliding_window=4096, use_sliding_window=True), True),
        ({**MISTRAL, "sliding_window": 4096}, True),
        (LLAMA_SLIDING, False),
        (LLAMA, False),
    ],
)
def test_a_window_that_is_not_applied_is_noted(tmp_path, config, is_noted):
    checkpoint = FolderCheckpoint.open(tiny_checkpoint(tmp_path / "model", config, tokenizer=False))
    notes = UniversalFamily().describe(checkpoint).notes
    assert any("sliding_window" in note for note in notes) is is_noted


def test_sliding_layers_are_laid_out_with_their_window(tmp_path):
    checkpoint = FolderCheckpoint.open(tiny_checkpoint(tmp_path / "model", LLAMA_SLIDING, tokenizer=False))
    layout = UniversalFamily().describe(checkpoint).layout
    assert [(layer.kind, layer.window) for layer in layout] == [*[("sliding", 8)] * 3, ("full", None)]


def test_newer_configs_nest_the_base_and_the_stretching_together():
    flat = decoder_config(tiny_config("qwen3", rope_theta=5e5, rope_scaling=LLAMA3))
    nested = decoder_config({**tiny_config("qwen3", rope_theta=None), "rope_parameters": {**LLAMA3, "rope_theta": 5e5}})
    assert nested.rope.base == flat.rope.base == 5e5
    assert nested.rope.kind == flat.rope.kind == "llama3"


def test_a_null_rope_type_means_the_default():
    assert decoder_config(tiny_config("llama", rope_scaling={"rope_type": None})).rope.kind == "default"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (tiny_config("llama", hidden_act="gelu"), "hidden_act"),
        (tiny_config("llama", partial_rotary_factor=0.5), "partial_rotary_factor"),
        (tiny_config("llama", rope_scaling={"rope_type": "longrope", "factor": 2.0}), "longrope"),
        (tiny_config("llama", num_local_experts=8), "num_local_experts"),
        (tiny_config("qwen3", attention_bias=True), "attention_bias"),
        (tiny_config("qwen2", mlp_bias=True), "mlp_bias"),
        (tiny_config("qwen2", head_dim=32), "head_dim"),
        (tiny_config("llama", layer_types=["chunked_attention"] * 4), "layer_types"),
    ],
)
def test_what_the_table_cannot_say_is_refused_by_its_key(config, key):
    with pytest.raises(UnsupportedModel, match=key):
        decoder_config(config)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (tiny_config("llama", hidden_size=None), "hidden_size"),
        (tiny_config("llama", num_hidden_layers=0), "num_hidden_layers"),
        (tiny_config("llama", num_hidden_layers=10**9), "num_hidden_layers"),
        (tiny_config("llama", num_attention_heads="2"), "num_attention_heads"),
        (tiny_config("llama", rope_scaling="linear"), "rope_scaling"),
        (tiny_config("llama", layer_types=4), "layer_types"),
        (tiny_config("llama", num_attention_heads=3, num_key_value_heads=2), "num_key_value_heads"),
        (tiny_config("qwen2", hidden_size=129), "hidden_size"),
        (tiny_config("qwen3", head_dim=None), "head_dim"),
        (tiny_config("qwen3", rope_theta=None), "rope_theta"),
        (tiny_config("llama", rope_scaling={"rope_type": "linear"}), "factor"),
        (tiny_config("llama", layer_types=["full_attention"]), "layer_types"),
        (tiny_config("llama", layer_types=["sliding_attention"] * 4), "sliding_window"),
    ],
)
def test_a_config_that_contradicts_itself_is_damaged_and_names_the_key(config, key):
    with pytest.raises(DamagedCheckpoint, match=key):
        decoder_config(config)


def test_everything_that_is_wrong_with_a_config_is_one_error():
    wrong = {
        "hidden_size": None,
        "num_attention_heads": 3,
        "num_key_value_heads": 2,
        "attention_bias": "no",
        "hidden_act": "gelu",
        "layer_types": ["full_attention", "chunked_attention"],
        "residual_scale": 2.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0, "extra_factor": 1.5},
        "vision_config": {"depth": 2},
        "quantization": {"group_size": 64, "bits": 4, "mode": "trellis"},
    }
    with pytest.raises(DamagedCheckpoint, match="The config of this llama has 8 problems") as caught:
        decoder_config(tiny_config("llama", **wrong))
    for words in (*wrong, "extra_factor", "trellis"):
        assert words.removesuffix("tion") in str(caught.value)


@pytest.mark.parametrize("key", ["residual_scale", "audio_config", "model_file", "num_attention_sinks"])
def test_a_key_that_nothing_knows_is_refused_by_name(key):
    with pytest.raises(UnsupportedModel, match=f"Nothing here knows the config's '{key}'"):
        decoder_config(tiny_config("qwen3", **{key: {"a": 1} if key == "audio_config" else "some"}))


PUBLISHED = {
    "SmolLM2-135M-Instruct": """{
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
      "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
      "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
      "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
      "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "transformers_version": "4.42.3",
      "use_cache": true, "vocab_size": 49152}""",
    "Llama-3.2-1B-Instruct": """{
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
      "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
      "vocab_size": 128256, "unsloth_fixed": true}""",
    "Mistral-7B-Instruct-v0.2": """{
      "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0", "use_cache": true,
      "vocab_size": 32000}""",
    "Qwen2.5-0.5B-Instruct": """{
      "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
      "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
      "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
      "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.43.1",
      "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936}""",
    "Qwen3-0.6B": """{
      "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
      "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
      "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 151936, "quantization": {"group_size": 64, "bits": 4}}""",
}
"""As they are in use, with what conversions and other tools add."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_hold_nothing_that_is_refused(name):
    assert decoder_config(json.loads(PUBLISHED[name])).num_layers > 0


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_what_transformers_writes_holds_nothing_that_is_refused(config_class):
    decoder_config(config_class(num_hidden_layers=2).to_dict())
