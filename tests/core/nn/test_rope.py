"""Rotary positions against the formulas in float64, and against mlx-lm's tables bit for bit."""

import math

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope
from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.nn.rope import Rope, rope_of
from phyla.nn.rope_form import RopeForm, rope_form
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SECTIONS = [
    None,
    {"type": "linear", "factor": 4.0},
    {**LLAMA3, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 16.0, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 7},
]


def heads(num_positions=9, head_dim=64):
    return random_tensors({"x": (1, 2, num_positions, head_dim)})["x"]


@pytest.mark.parametrize("offset", [0, 3, 4096])
@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_rotations_equal_mlx_lm_bit_for_bit(section, offset):
    config = {"rope_theta": 10000.0, "rope_scaling": section}
    theirs = initialize_rope(64, 10000.0, False, section, 4096)
    ours = rope_of(64, rope_form(config))
    assert mx.array_equal(ours(heads(), offset), theirs(heads(), offset=offset))


def test_a_position_turns_each_pair_by_its_own_angle():
    x = heads(num_positions=1)
    turned = Rope(64, base=10000.0)(x, 5)
    angles = 5 * 10000.0 ** (-np.arange(0, 64, 2) / 64)
    first, second = np.split(np.array(x, dtype=np.float64), 2, axis=-1)
    want = np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)], axis=-1
    )
    assert_close(turned, want, atol=1e-6, why="float32 angles")


def test_rows_start_at_their_own_positions():
    rope = Rope(64, base=10000.0)
    x = mx.concatenate([heads(), heads()])
    together = rope(x, mx.array([0, 7], dtype=mx.int32))
    assert_close(together[1:], rope(heads(), 7), atol=1e-6, why="the same angles by another kernel")


def test_only_the_first_numbers_of_a_partly_rotated_head_change():
    turned = Rope(16, base=10000.0)(heads(), 3)
    assert mx.array_equal(turned[..., 16:], heads()[..., 16:])
    assert not mx.array_equal(turned[..., :16], heads()[..., :16])


def test_yarn_scales_queries_and_keys_by_its_temperature():
    form = RopeForm(10000.0, "yarn", {"factor": 4.0})
    assert rope_of(64, form).input_scale == 0.1 * math.log(4.0) + 1.0


def test_an_unknown_type_is_refused_and_the_known_ones_are_named():
    with pytest.raises(UnsupportedModel, match=r"'spiral'.*default, linear, llama3, yarn"):
        rope_form({"rope_theta": 1e4, "rope_scaling": {"type": "spiral", "factor": 2.0}})


def test_a_base_may_come_from_the_nested_section():
    assert rope_form({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}) == RopeForm(
        5e5, "default", {"rope_theta": 5e5, "rope_type": "default"}
    )


@pytest.mark.parametrize("factor", [None, 0, "4", -1.0])
def test_a_stretching_needs_a_positive_factor(factor):
    with pytest.raises(DamagedCheckpoint, match="factor"):
        rope_form({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": factor}})
