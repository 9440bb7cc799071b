"""The draft head against its formulas through transformers' layer, and what fits it."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import torch
from phyla.backend.device import BackendFacts
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.draft.method import Drafter, DraftTarget
from phyla.kv.plain import create_plain
from phyla.model import LoadOptions, StepInput
from phyla.settings import load_settings
from phyla.testing.close import assert_close
from phyla.testing.engines import TOY_VOCAB
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.mtp import companion_config, head_shapes
from phyla.testing.tiny.qwen35 import qwen35_config
from phyla.testing.toy import ToyConfig, toy_binding, toy_config, toy_facts
from phyla.testing.weights import random_tensors
from phyla_mtp import MtpSettings, phyla_methods
from phyla_mtp.artifact import layout_of
from phyla_mtp.config import mtp_config
from phyla_mtp.head import load_head
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer

CPU = BackendFacts("cpu", "test", "test", memory_bytes=1 << 34, working_set_bytes=1 << 34)
OPTIONS = LoadOptions(CPU, "float32")
TOY = companion_config(qwen35_config(hidden_size=64, vocab_size=TOY_VOCAB))
FULL = companion_config(qwen35_config())
EXPERTS = companion_config(qwen35_config(with_experts=True))
EXPERT_SIZES = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
THEIRS = {False: (Qwen3_5TextConfig, Qwen3_5DecoderLayer), True: (Qwen3_5MoeTextConfig, Qwen3_5MoeDecoderLayer)}
METHOD = phyla_methods(load_settings([MtpSettings], env={}))[0]


def companion(folder, config=TOY, prefix="", **more) -> FolderCheckpoint:
    tiny_checkpoint(folder, config, shapes=head_shapes(config, prefix), tokenizer=False, **more)
    return FolderCheckpoint.open(str(folder))


@pytest.fixture
def target():
    return toy_binding("FF", 3, vocab_size=TOY_VOCAB)


@pytest.mark.parametrize("config", [FULL, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(("prefix", "is_shifted"), [("", False), ("mtp.", False), ("mtp.", True)])
def test_rows_are_those_of_the_formulas_through_transformers_layer(tmp_path, config, prefix, is_shifted):
    """Companion, converted and published spelling: the last one stores norms as their difference to one."""
    checkpoint = companion(tmp_path / "mtp", config, prefix)
    tensors = random_tensors(head_shapes(config, prefix))
    if is_shifted:
        stored = {name: one - 1 if one.ndim == 1 else one for name, one in tensors.items()}
        mx.save_safetensors(str(tmp_path / "mtp" / "model.safetensors"), stored, metadata={"format": "mlx"})
        checkpoint = FolderCheckpoint.open(str(tmp_path / "mtp"))
    head = load_head(checkpoint, OPTIONS)
    draw = np.random.default_rng(0)
    embedded, hidden = (draw.standard_normal((1, 7, 128)).astype(np.float32) for _ in range(2))

    published = as_published({name.removeprefix(prefix): np.array(one) for name, one in tensors.items()})
    want = by_transformers(config, published, embedded, hidden)

    cache = fresh(config)
    at_once = head(mx.array(embedded), mx.array(hidden), rows_at(0, 7), cache)
    assert_close(at_once, mx.array(want), atol=2e-5, why="float32, other kernels")
    cache = fresh(config)
    stepwise = [
        head(mx.array(embedded[:, i : i + 1]), mx.array(hidden[:, i : i + 1]), rows_at(i, 1), cache) for i in range(7)
    ]
    assert_close(mx.concatenate(stepwise, axis=1), mx.array(want), atol=2e-5, why="float32, other kernels")


def rows_at(offset, width):
    return StepInput(ids=mx.zeros((1, width), dtype=mx.int32), num_real=(width,), offsets=(offset,))


def fresh(config):
    """An empty state of the head's own layer."""
    return create_plain(layout_of(mtp_config(config))[0], CPU, "float32")


def as_published(tensors):
    """Experts that were taken apart, in one tensor again."""
    mlp = "layers.0.mlp"
    if f"{mlp}.switch_mlp.gate_proj.weight" not in tensors:
        return tensors
    gate, up, down = (tensors.pop(f"{mlp}.switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down"))
    return tensors | {
        f"{mlp}.experts.gate_up_proj": np.concatenate([gate, up], axis=1),
        f"{mlp}.experts.down_proj": down,
    }


def by_transformers(head_config, tensors, embedded, hidden):
    """fc over both norms, embedding first; their full-attention layer; the norm at the end."""
    make_config, make_layer = THEIRS["num_experts" in head_config["text_config"]]
    config = make_config(**head_config["text_config"], attn_implementation="eager")
    layer = make_layer(config, config.layer_types.index("full_attention")).eval()
    # Their norms add one to what they store.
    given = {name: torch.tensor(one - 1 if one.ndim == 1 else one) for name, one in tensors.items()}
    layer.load_state_dict({name.removeprefix("layers.0."): one for name, one in given.items() if "layers.0." in name})

    def norm(name, x):
        module = Qwen3_5RMSNorm(128, eps=1e-6)
        module.load_state_dict({"weight": given[f"{name}.weight"]})
        return module(x)

    with torch.no_grad():
        joined = torch.cat(
            [
                norm("pre_fc_norm_embedding", torch.tensor(embedded)),
                norm("pre_fc_norm_hidden", torch.tensor(hidden)),
            ],
            dim=-1,
        )
        x = joined @ given["fc.weight"].T
        positions = torch.arange(7)[None]
        angles = Qwen3_5TextRotaryEmbedding(config)(x, positions)
        mask = torch.full((7, 7), float("-inf")).triu(1)[None, None]
        out = layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
        out = out[0] if isinstance(out, tuple) else out
        return norm("norm", out).numpy()


def test_a_quantised_head_is_near_the_dense_one(tmp_path):
    quantised = FULL | {"quantization": {"group_size": 64, "bits": 8}}
    dense, packed = (
        load_head(companion(tmp_path / name, config, dtype="float32"), OPTIONS)
        for name, config in (("dense", FULL), ("packed", quantised))
    )
    row = mx.random.normal((1, 1, 128), key=mx.random.key(1))

    first = fresh(FULL)
    second = fresh(FULL)
    assert_close(
        packed(row, row, rows_at(0, 1), second), dense(row, row, rows_at(0, 1), first), atol=0.05, why="8-bit weights"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 128}, "hidden rows of 128 numbers and the model's have 64"),
        ({"mtp_num_hidden_layers": 2}, "'mtp_num_hidden_layers': 2"),
        ({"num_experts": 8}, "'num_experts_per_tok' of the draft head is None"),
        (EXPERT_SIZES, "missing: layers.0.mlp.gate.weight (8, 64)"),
        ({**EXPERT_SIZES, "num_experts": 1}, "more than 'num_experts' (1)"),
        ({"intermediate_size": 96}, "shape: layers.0.mlp.gate_proj.weight is"),
    ],
)
def test_what_does_not_fit_is_refused_from_headers(tmp_path, target, changes, said):
    checkpoint = companion(tmp_path / "mtp")
    config = {**checkpoint.config, "text_config": {**checkpoint.config["text_config"], **changes}}
    tiny_checkpoint(tmp_path / "other", config, shapes=head_shapes(TOY), tokenizer=False)
    drafter = Drafter(FolderCheckpoint.open(str(tmp_path / "other")))

    assert said in METHOD.supports(draft_target(target), drafter).reason


def test_half_an_artifact_is_refused(tmp_path, target):
    shapes = head_shapes(TOY)
    del shapes["layers.0.mlp.up_proj.weight"]
    tiny_checkpoint(tmp_path / "half", TOY, shapes=shapes, tokenizer=False)
    drafter = Drafter(FolderCheckpoint.open(str(tmp_path / "half")))

    assert "missing: layers.0.mlp.up_proj.weight" in METHOD.supports(draft_target(target), drafter).reason


def test_a_model_of_another_series_is_refused(tmp_path):
    facts = toy_facts(ToyConfig.from_dict(toy_config("FF")))
    drafter = Drafter(companion(tmp_path / "mtp"))
    assert "the model is a toy" in METHOD.supports(DraftTarget(drafter.checkpoint, facts), drafter).reason


def draft_target(target):
    return DraftTarget(None, replace(target.facts, architecture="qwen3_5"))


def test_depth_is_the_artifacts_unless_it_is_set(tmp_path, target):
    head = Drafter(companion(tmp_path / "mtp"))
    deeper = phyla_methods(load_settings([MtpSettings], env={}, flags={"--mtp-depth": "5"}))[0]

    assert METHOD.describe(draft_target(target), head).max_tokens == 2
    assert deeper.describe(draft_target(target), head).max_tokens == 5
