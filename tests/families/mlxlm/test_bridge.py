"""The bridge: mlx-lm's own classes, bit for bit, and what is refused by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import ClassVar

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ConcatenateKVCache, KVCache, RotatingKVCache
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import LayoutError, UnsupportedModel, WeightMismatch
from phyla.kv.state import StateArrays
from phyla.model import Claim
from phyla.testing.close import assert_close
from phyla.testing.family import FamilyContract, random_tokens
from phyla.testing.oracle import MlxLmOracle
from phyla.testing.parity import MlxLmParityContract
from phyla.testing.stepping import ORACLE_CHUNK, Stepper, load_options
from phyla.testing.tiny import tiny_checkpoint
from phyla_mlxlm import MlxLmFamily
from phyla_mlxlm.cache_state import CacheState
from phyla_mlxlm.caches import can_give_back, check_supported, flat, forget, rebuilt
from phyla_mlxlm.installed import InstalledMlxLm
from phyla_mlxlm.loading import load_model

from tests.families.mlxlm.bridged_models import bridged_config, bridged_shapes

BRIDGE = MlxLmFamily(InstalledMlxLm.find())


class Bridge:
    family = BRIDGE
    stepwise_bounds: ClassVar = {"mlxlm": 5e-5}
    chunk = 128
    num_extra_operations = 2  # The axis that mlx-lm's model has in front, taken off and put back.

    def reference(self, folder, tokens):
        return MlxLmOracle(folder).logits(tokens)


class Llama(Bridge):
    config = bridged_config("llama")
    shapes = bridged_shapes(config)


class Gemma2(Bridge):
    config = bridged_config("gemma2")
    shapes = bridged_shapes(config)


class Gemma3(Bridge):
    config = bridged_config("gemma3_text")
    shapes = bridged_shapes(config)


class Mamba2(Bridge):
    config = bridged_config("mamba2")
    shapes = bridged_shapes(config)
    reference_bound = 5e-5


class FalconH1(Bridge):
    """Composites: each layer attends and recurs."""

    config = bridged_config("falcon_h1")
    shapes = bridged_shapes(config)


class Qwen3Moe(Bridge):
    config = bridged_config("qwen3_moe")
    shapes = bridged_shapes(config)


class TestLlama(Llama, FamilyContract):
    pass


class TestMamba2(Mamba2, FamilyContract):
    pass


class TestQwen3Moe(Qwen3Moe, FamilyContract):
    pass


class TestLlamaParity(Llama, MlxLmParityContract):
    chunk = ORACLE_CHUNK


class TestGemma2Parity(Gemma2, MlxLmParityContract):
    pass


class TestGemma3Parity(Gemma3, MlxLmParityContract):
    pass


class TestMamba2Parity(Mamba2, MlxLmParityContract):
    pass


class TestFalconH1Parity(FalconH1, MlxLmParityContract):
    pass


class TestQwen3MoeParity(Qwen3Moe, MlxLmParityContract):
    pass


class TestQuantisedParity(Bridge, MlxLmParityContract):
    config = bridged_config("llama", quantization={"group_size": 32, "bits": 4})
    shapes = bridged_shapes(config)
    dtype = "bfloat16"


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "mamba2", "falcon_h1"])
def binding(request, tmp_path_factory):
    config = bridged_config(request.param)
    folder = tmp_path_factory.mktemp("models") / request.param
    return bound(tiny_checkpoint(folder, config, tokenizer=False, shapes=bridged_shapes(config)))


def bound(folder: Path):
    checkpoint = FolderCheckpoint.open(folder)
    return BRIDGE.bind(checkpoint, BRIDGE.describe(checkpoint), load_options())


def state_of(stepper: Stepper) -> CacheState:
    return stepper.group.rows[0].sets["target"][0]


@pytest.mark.parametrize("num_before", [0, 5, 40])
@pytest.mark.parametrize("num_kept", [0, 2, 4])
def test_tokens_taken_back_leave_what_the_others_would_have_left(binding, num_before, num_kept):
    tokens = random_tokens(num_before + 5, binding.facts.vocab_size)
    stepper, expected = Stepper(binding), Stepper(binding)
    for one in (stepper, expected):
        if num_before:
            one.step([tokens[:num_before]])
    row = stepper.group.rows[0]
    row.open_window(4)
    stepper.step([tokens[num_before : num_before + 4]])
    boundary = row.clone_at(num_kept)
    row.keep(num_kept)
    if num_kept:
        expected.step([tokens[num_before : num_before + num_kept]])
    assert row.num_tokens == boundary.num_tokens == num_before + num_kept
    want = expected.step([[7]])
    photographed = Stepper(binding, num_rows=0)
    photographed.group.seat(boundary)
    assert mx.abs(stepper.step([[7]]) - want).max() < 5e-5
    assert mx.abs(photographed.step([[7]]) - want).max() < 5e-5


@pytest.mark.parametrize("num_tokens", [3, 40, 300])
def test_arrays_restore_the_caches_bit_for_bit(binding, num_tokens):
    stepper = Stepper(binding)
    stepper.step([random_tokens(num_tokens, binding.facts.vocab_size)])
    stepper.step([[9]])
    restored = CacheState(binding.facts.layout[0])
    restored.adopt(state_of(stepper).arrays())
    model = binding._model
    got = [restored.advance(model, mx.array([[token]])) for token in (7, 8)]
    want = [stepper.step([[token]]) for token in (7, 8)]
    assert restored.num_tokens == num_tokens + 3
    assert all(mx.array_equal(one[:, -1], other) for one, other in zip(got, want, strict=True))


def test_neither_side_of_a_clone_sees_the_others_tokens(binding):
    tokens = random_tokens(30, binding.facts.vocab_size)
    stepper, expected = Stepper(binding), Stepper(binding)
    stepper.step([tokens])
    expected.step([tokens])
    copy = stepper.group.rows[0].clone()
    for token in (3, 4, 5):
        stepper.step([[token]])
    other = Stepper(binding, num_rows=0)
    other.group.seat(copy)
    assert mx.array_equal(other.step([[7]]), expected.step([[7]]))


def test_full_caches_go_back_anywhere_and_recurrent_ones_nowhere():
    full, arrays = KVCache(), ArraysCache(1)
    full.update_and_fetch(mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    arrays[0] = mx.ones((1, 2))
    assert can_give_back([full], 5, 5)
    assert not can_give_back([full, arrays], 5, 1)
    assert not can_give_back([CacheList(full, arrays)], 5, 1)


def test_a_cache_that_a_model_made_and_never_used_stands_in_nobodys_way():
    full = KVCache()
    full.update_and_fetch(mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    assert can_give_back([full, KVCache(), RotatingKVCache(max_size=2), ArraysCache(1)], 5, 3)
    assert not forget([full, KVCache()], 5)


def test_a_cache_with_one_column_for_several_tokens_is_not_counted_back():
    pooled = KVCache()
    pooled.update_and_fetch(mx.ones((1, 1, 2, 2)), mx.ones((1, 1, 2, 2)))
    assert not can_give_back([pooled], 8, 1)
    assert forget([pooled], 8)


def test_a_ring_goes_back_until_it_is_full():
    ring = RotatingKVCache(max_size=8)
    ring.update_and_fetch(mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    assert can_give_back([ring], 5, 5)
    ring.update_and_fetch(mx.ones((1, 1, 3, 2)), mx.ones((1, 1, 3, 2)))
    assert not can_give_back([ring], 8, 1)


def test_composites_are_laid_flat_and_rebuilt():
    full, arrays = KVCache(), ArraysCache(2)
    full.update_and_fetch(mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    arrays[0] = mx.full((1, 2), 3.0)
    again = rebuilt(*flat([CacheList(full, arrays)]))[0]
    assert again.caches[0].offset == 5
    assert again.caches[0].keys.shape == (1, 1, 5, 2)
    assert mx.array_equal(again.caches[1][0], arrays[0])
    assert again.caches[1][1] is None


def test_a_cache_nobody_knows_is_refused_by_its_name():
    with pytest.raises(UnsupportedModel, match="some_type keeps a ConcatenateKVCache"):
        check_supported([KVCache(), CacheList(ConcatenateKVCache())], "some_type")


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"num_tokens": 1}, "another layout"),
        ({"num_tokens": 1, "caches": [["Popen", []]]}, "Popen"),
        ({"num_tokens": 1, "caches": [["KVCache", [{"array": "0.0"}, {"array": "0.1"}, 1]]]}, "0.0"),
    ],
)
def test_arrays_of_something_else_are_refused(facts, what):
    state = CacheState(BRIDGE.describe(ModelOf(bridged_config("llama"))).layout[0])
    with pytest.raises(LayoutError, match=what):
        state.adopt(StateArrays({}, facts))


class ModelOf:
    """A checkpoint that is nothing but a config."""

    model_id = "tiny"
    generation_config: ClassVar = {}

    def __init__(self, config):
        self.config = config

    def tensor_infos(self):
        return {}


def test_what_mlx_lm_implements_is_claimed_last():
    for model_type in ("llama", "mistral", "gemma2", "mamba2", "falcon_mamba", "qwen3_moe"):
        assert BRIDGE.claim({"model_type": model_type}) is Claim.FALLBACK


@pytest.mark.parametrize("model_type", ["cache", "base", "switch_layers", "../utils", "", None, 5, ["llama"]])
def test_what_is_no_architecture_is_not_claimed(model_type):
    assert BRIDGE.claim({"model_type": model_type}) is Claim.NONE


def test_where_there_is_no_mlx_lm_none_is_found(monkeypatch):
    monkeypatch.setattr("phyla_mlxlm.installed.find_spec", lambda name: None)
    assert InstalledMlxLm.find() is None


def test_without_mlx_lm_nothing_is_claimed_and_the_remedy_named():
    absent = MlxLmFamily(None)
    assert absent.claim(bridged_config("llama")) is Claim.NONE
    assert "phyla[mlxlm]" in absent.why_not(bridged_config("llama"))


def test_code_from_a_checkpoint_is_never_run():
    with pytest.raises(UnsupportedModel, match="model_file"):
        BRIDGE.describe(ModelOf(bridged_config("llama", model_file="model.py")))


def test_a_config_that_mlx_lm_cannot_take_is_refused_with_its_words(tmp_path):
    config = bridged_config("gemma2")
    folder = tiny_checkpoint(tmp_path / "model", config, tokenizer=False, shapes=bridged_shapes(config))
    checkpoint = FolderCheckpoint.open(folder)
    facts = BRIDGE.describe(checkpoint)
    checkpoint.config = {key: value for key, value in config.items() if key != "head_dim"}
    with pytest.raises(UnsupportedModel, match="head_dim"):
        BRIDGE.bind(checkpoint, facts, load_options())


def test_tensors_that_do_not_fit_are_one_error(tmp_path):
    config = bridged_config("gemma2")
    folder = tiny_checkpoint(tmp_path / "model", config, tokenizer=False, shapes=bridged_shapes(config))
    tensors = dict(mx.load(str(folder / "model.safetensors")))
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(mx.int32)
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"][:8]
    tensors["audio_tower.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    checkpoint = FolderCheckpoint.open(folder)
    with pytest.raises(WeightMismatch) as caught:
        BRIDGE.bind(checkpoint, BRIDGE.describe(checkpoint), load_options())
    for problem in (
        "missing: model.layers.0.mlp.up_proj.weight",
        "unused: audio_tower.weight",
        "shape: model.layers.1.mlp.up_proj.weight",
        "dtype: model.norm.weight is int32",
    ):
        assert problem in str(caught.value)


def test_weights_multiplied_out_at_load_compute_the_same(tmp_path):
    config = bridged_config("qwen3_moe", quantization={"group_size": 32, "bits": 8})
    folder = tiny_checkpoint(tmp_path / "model", config, tokenizer=False, shapes=bridged_shapes(config))
    checkpoint = FolderCheckpoint.open(folder)
    facts = BRIDGE.describe(checkpoint)
    packed, dense = (BRIDGE.bind(checkpoint, facts, load_options(dense=is_dense)) for is_dense in (False, True))
    tokens = random_tokens(9, facts.vocab_size)
    assert_close(
        Stepper(dense).step([tokens]), Stepper(packed).step([tokens]), atol=1e-4, why="other kernels, same numbers"
    )


def test_numbers_kept_in_another_dtype_for_precision_stay_so(tmp_path):
    config = bridged_config("mamba2")
    folder = tiny_checkpoint(
        tmp_path / "model", config, tokenizer=False, shapes=bridged_shapes(config), dtype="bfloat16"
    )
    precise = dict(mx.load(str(folder / "model.safetensors")))
    precise["backbone.layers.0.mixer.A_log"] = precise["backbone.layers.0.mixer.A_log"].astype(mx.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), precise)
    checkpoint = FolderCheckpoint.open(folder)
    facts = BRIDGE.describe(checkpoint)
    weights = load_model(importlib.import_module("mlx_lm.models.mamba2"), checkpoint, facts, load_options("float16"))
    first, second = (weights.backbone.layers[index].mixer for index in (0, 1))
    assert (first.A_log.dtype, second.A_log.dtype) == (mx.float32, mx.float16)


def test_the_facts_say_what_works_and_what_is_guessed():
    llama = BRIDGE.describe(ModelOf(bridged_config("llama")))
    mamba = BRIDGE.describe(ModelOf(bridged_config("mamba2")))
    assert not llama.can_cut_forward
    assert sum(plane.num_heads * plane.width for plane in llama.layout[0].planes) == 2 * 2 * 32
    assert mamba.layout[0].planes == ()
    assert any(note.startswith("works: ") for note in llama.notes)
    assert any("no longest context" in note for note in mamba.notes)
