"""Positions of three axes."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.model.step import StepInput
from phyla.testing.bits import assert_close
from phyla.testing.stepping import Stepper, load_options
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.qwen35 import qwen35_config
from phyla_qwen35 import Qwen35Family
from phyla_qwen35.positions import AxisRope
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding, apply_rotary_pos_emb


@pytest.mark.parametrize(("head_dim", "sections"), [(64, [3, 3, 2]), (256, [11, 11, 10]), (64, [8, 0, 0])])
def test_each_pair_follows_its_axis_as_in_transformers(head_dim, sections):
    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": sections,
        "mrope_interleaved": True,
    }
    config = Qwen3_5TextConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, rope_parameters=rope)
    positions = np.array([[0, 5, 5, 5, 5, 900], [0, 5, 5, 6, 6, 40], [0, 5, 6, 5, 6, 77]])
    heads = np.random.default_rng(0).standard_normal((1, 2, 6, head_dim)).astype(np.float32)
    cosines, sines = Qwen3_5TextRotaryEmbedding(config)(torch.tensor(heads), torch.tensor(positions)[:, None])
    want, _ = apply_rotary_pos_emb(torch.tensor(heads), torch.tensor(heads), cosines, sines)
    got = AxisRope(head_dim // 4, 1e7, tuple(sections))(mx.array(heads), mx.array(positions, dtype=mx.int32))
    assert_close(got, mx.array(want.numpy()), atol=1e-4, why="float32 angles of 900 radians")


def test_angles_are_float32_for_heads_in_bfloat16():
    heads = mx.random.normal((1, 2, 1, 64), key=mx.random.key(0)).astype(mx.bfloat16)
    positions = mx.array([[30001]] * 3, dtype=mx.int32)
    rope = AxisRope(16, 1e7, (3, 3, 2))
    want = rope(heads.astype(mx.float32), positions).astype(mx.bfloat16)
    assert mx.array_equal(rope(heads, positions), want)


def test_positions_that_are_equal_on_all_axes_are_text(tmp_path):
    config = qwen35_config(num_hidden_layers=4)
    checkpoint = FolderCheckpoint.open(tiny_checkpoint(tmp_path / "model", config, tokenizer=False))
    family = Qwen35Family()
    binding = family.bind(checkpoint, family.describe(checkpoint), load_options())
    tokens = [7, 300, 12, 45, 80]
    want = Stepper(binding).step([tokens])
    states = Stepper(binding).group.states()
    step = StepInput(
        ids=mx.array([tokens], dtype=mx.int32),
        num_real=(len(tokens),),
        offsets=(0,),
        positions=mx.broadcast_to(mx.arange(len(tokens), dtype=mx.int32), (3, len(tokens))),
    )
    got = binding.head(binding.forward(step, states).hidden)[0]
    assert_close(got, want, atol=2e-5, why="angles by another kernel")
