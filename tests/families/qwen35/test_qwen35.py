"""Qwen3.5, dense and with experts, against both oracles."""

from __future__ import annotations

import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import UnsupportedModel
from phyla.model import Claim
from phyla.settings import Settings
from phyla.testing.family import FamilyContract
from phyla.testing.parity import MlxLmParityContract
from phyla.testing.stepping import load_options
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.qwen35 import converted_shapes, qwen35_config
from phyla_qwen35 import Qwen35Family, phyla_families

DENSE = qwen35_config()
EXPERTS = qwen35_config(with_experts=True)
WIDE = qwen35_config(
    num_hidden_layers=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    tie_word_embeddings=True,
    attention_bias=True,
)
AS_MANY_KEYS = qwen35_config(num_hidden_layers=4, linear_num_key_heads=4)


class Qwen35:
    family = Qwen35Family()
    reference_bound = 2e-5


class TestDense(Qwen35, FamilyContract):
    config = DENSE


class TestExperts(Qwen35, FamilyContract):
    config = EXPERTS


class TestHeadsOf128(Qwen35, FamilyContract):
    config = WIDE


class TestAsManyKeyHeadsAsValueHeads(Qwen35, FamilyContract):
    config = AS_MANY_KEYS


class TestFlatConfig(Qwen35, FamilyContract):
    """A text model on its own: no `text_config`, and names without `language_model`."""

    config = DENSE["text_config"]


class TestDenseParity(Qwen35, MlxLmParityContract):
    config = DENSE


class TestExpertsParity(Qwen35, MlxLmParityContract):
    config = EXPERTS


class ShortChunks(Qwen35, MlxLmParityContract):
    """A position at a time takes long on a CPU; the models above run a whole chunk."""

    chunk = 256


class TestConvertedParity(ShortChunks):
    config = EXPERTS
    shapes = converted_shapes(EXPERTS)


class TestHeadsOf128Parity(ShortChunks):
    config = WIDE


class TestAsManyKeyHeadsAsValueHeadsParity(ShortChunks):
    config = AS_MANY_KEYS


class TestBfloat16Parity(ShortChunks):
    config = DENSE
    dtype = "bfloat16"


BODY = "language_model.model"
DENSE_QUANTISED = qwen35_config(
    quantization={
        "group_size": 64,
        "bits": 4,
        f"{BODY}.embed_tokens": {"group_size": 32, "bits": 8},
        f"{BODY}.layers.0.linear_attn.in_proj_qkv": {"group_size": 32, "bits": 8},
        f"{BODY}.layers.1.linear_attn.in_proj_z": {"group_size": 64, "bits": 2},
        f"{BODY}.layers.3.self_attn.q_proj": {"group_size": 64, "bits": 3},
        f"{BODY}.layers.4.mlp.down_proj": {"group_size": 64, "bits": 6},
        f"{BODY}.layers.5.mlp.down_proj": {"group_size": 64, "bits": 5},
        f"{BODY}.layers.6.linear_attn.out_proj": False,
        "language_model.lm_head": False,
    }
)
EXPERTS_QUANTISED = qwen35_config(
    with_experts=True,
    num_hidden_layers=4,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    quantization={
        "group_size": 64,
        "bits": 4,
        f"{BODY}.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
        f"{BODY}.layers.0.mlp.shared_expert_gate": {"group_size": 64, "bits": 8},
        f"{BODY}.layers.1.mlp.switch_mlp.down_proj": {"group_size": 32, "bits": 8},
        f"{BODY}.layers.2.mlp.switch_mlp.up_proj": False,
    },
)


def on_top(config):
    """The section where mlx-lm looks for it."""
    text = {key: value for key, value in config["text_config"].items() if key != "quantization"}
    return {**config, "text_config": text, "quantization": config["text_config"]["quantization"]}


class TestQuantisedDenseParity(ShortChunks):
    dtype = "bfloat16"
    num_extra_operations = 12  # What the recurrence takes is given an axis of rows: two views in each of its layers.
    config = on_top(DENSE_QUANTISED)
    shapes = converted_shapes(DENSE_QUANTISED)


class TestQuantisedExpertsParity(ShortChunks):
    """In float32: MLX has no other product of experts in full precision on a CPU."""

    config = on_top(EXPERTS_QUANTISED)
    shapes = converted_shapes(EXPERTS_QUANTISED)


class TestMxfp4Parity(ShortChunks):
    dtype = "bfloat16"
    config = on_top(
        qwen35_config(
            with_experts=True, num_hidden_layers=4, quantization={"group_size": 32, "bits": 4, "mode": "mxfp4"}
        )
    )
    shapes = converted_shapes(qwen35_config(with_experts=True, num_hidden_layers=4))


def test_the_plugin_gives_its_family():
    assert [family.name for family in phyla_families(Settings())] == ["qwen35"]


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"])
def test_the_models_of_the_series_are_claimed(name):
    assert Qwen35Family().claim({"model_type": name}) is Claim.EXACT


def test_experts_in_bfloat16_are_refused_on_a_cpu_before_weights_are_read(tmp_path):
    checkpoint = FolderCheckpoint.open(tiny_checkpoint(tmp_path / "model", EXPERTS, tokenizer=False))
    with pytest.raises(UnsupportedModel, match="--dtype float32"):
        Qwen35Family().bind(checkpoint, Qwen35Family().describe(checkpoint), load_options("bfloat16"))


def test_a_draft_head_is_no_model():
    assert Qwen35Family().claim({"model_type": "qwen3_5_mtp"}) is Claim.NONE
