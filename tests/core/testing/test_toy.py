"""The toy family holds the contract it is meant to test others with."""

import mlx.core as mx
import numpy as np
import pytest
from phyla.errors import UnsupportedModel
from phyla.testing.close import assert_close
from phyla.testing.family import FamilyContract
from phyla.testing.stepping import Stepper
from phyla.testing.toy import ToyConfig, ToyFamily, toy_binding, toy_config
from phyla.testing.weights import random_tensors


class ToyContract(FamilyContract):
    family = ToyFamily()

    def reference(self, folder, tokens):
        return toy_in_numpy(ToyConfig.from_dict(self.config), tokens)


class TestFullToy(ToyContract):
    config = toy_config("FF")


class TestSlidingToy(ToyContract):
    config = toy_config("SSF")


class TestRecurrentToy(ToyContract):
    config = toy_config("RFR")


class TestLatentToy(ToyContract):
    config = toy_config("LL")


class TestMixedToy(ToyContract):
    config = toy_config("FSRL")


def test_a_binding_without_a_checkpoint_is_the_same_for_the_same_seed():
    tokens = [[9, 10, 11, 12]]
    first, again, other = (Stepper(toy_binding("FSRL", seed=seed)).step(tokens) for seed in (3, 3, 4))
    assert mx.array_equal(first, again)
    assert not mx.array_equal(first, other)


def test_a_letter_that_is_no_kind_is_refused():
    with pytest.raises(UnsupportedModel, match="'X'"):
        toy_binding("FX")


def test_close_arrays_pass_and_distant_or_undefined_ones_do_not():
    assert_close(mx.array([1.0]), np.array([1.0 + 1e-7]), atol=1e-6, why="rounding")
    with pytest.raises(AssertionError, match="rounding"):
        assert_close(mx.array([1.0]), mx.array([1.1]), atol=1e-6, why="rounding")
    with pytest.raises(AssertionError):
        assert_close(mx.array([float("nan")]), mx.array([1.0]), atol=1e-6, why="rounding")


def toy_in_numpy(config, tokens):
    """(L, V) logits of a toy in float64, one layer kind after the other, written from the formulas."""
    from phyla.testing.toy import toy_shapes

    weights = {name: np.array(array, np.float64) for name, array in random_tensors(toy_shapes(config)).items()}
    hidden = weights["embed.weight"][tokens]
    for index, letter in enumerate(config.layers):
        own = {
            name.removeprefix(f"layers.{index}.").removesuffix(".weight"): value
            for name, value in weights.items()
            if name.startswith(f"layers.{index}.")
        }
        mixer = {"F": _attend, "S": _attend, "R": _recur, "L": _attend_latents}[letter]
        window = config.sliding_window if letter == "S" else len(tokens)
        hidden = hidden + mixer(_norm(hidden, own["input_norm"], config), own, config, window)
        normed = _norm(hidden, own["mlp_norm"], config)
        gate = normed @ own["gate"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (normed @ own["up"].T)) @ own["down"].T
    return _norm(hidden, weights["norm.weight"], config) @ weights["head.weight"].T


def _norm(x, weight, config):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.rms_norm_eps) * weight


def _attend(x, own, config, window):
    queries = _rotate(_heads(x @ own["q"].T, config.head_dim), config)
    keys = _rotate(_heads(x @ own["k"].T, config.head_dim), config)
    values = _heads(x @ own["v"].T, config.head_dim)
    repeats = config.num_attention_heads // config.num_key_value_heads
    mixed = _softmax_attend(queries, keys.repeat(repeats, 0), values.repeat(repeats, 0), config.head_dim, window)
    return _joined(mixed) @ own["o"].T


def _attend_latents(x, own, config, window):
    width = config.latent_size + config.rope_size
    queries = _heads(x @ own["q"].T, width)
    content, positional = queries[..., : config.latent_size], queries[..., config.latent_size :]
    queries = np.concatenate([content, _rotate(positional, config)], axis=-1)
    latent = _heads(x @ own["latent"].T, config.latent_size)
    keys = np.concatenate([latent, _rotate(_heads(x @ own["k_rope"].T, config.rope_size), config)], axis=-1)
    repeats = config.num_attention_heads
    return (
        _joined(_softmax_attend(queries, keys.repeat(repeats, 0), latent.repeat(repeats, 0), width, window))
        @ own["o"].T
    )


def _recur(x, own, config, window):
    decay, update = _sigmoid(x @ own["decay"].T), x @ own["update"].T
    held, outputs = np.zeros(config.hidden_size), []
    for position in range(len(x)):
        held = decay[position] * held + (1 - decay[position]) * update[position]
        outputs.append(held)
    return (np.stack(outputs) * _sigmoid(x @ own["output_gate"].T)) @ own["o"].T


def _softmax_attend(queries, keys, values, width, window):
    scores = queries @ keys.swapaxes(-1, -2) / np.sqrt(width)
    positions = np.arange(scores.shape[-1])
    distance = positions[:, None] - positions[None]
    scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


def _rotate(heads, config):
    half = heads.shape[-1] // 2
    angles = np.arange(heads.shape[1])[:, None] * config.rope_theta ** (-np.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    turned = [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)]
    return np.concatenate(turned, axis=-1)


def _heads(x, width):
    return x.reshape(len(x), -1, width).swapaxes(0, 1)


def _joined(heads):
    return heads.swapaxes(0, 1).reshape(heads.shape[1], -1)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
