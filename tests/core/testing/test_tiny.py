"""Tiny checkpoints are whole, seeded and readable by others."""

import json

import mlx.core as mx
import pytest
from phyla.errors import UnknownName
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint, tiny_config
from phyla.testing.toy import toy_config
from tokenizers import Tokenizer


@pytest.mark.parametrize(
    "config", [tiny_config("llama"), tiny_config("qwen2"), tiny_config("qwen3"), toy_config("FSRL")]
)
def test_a_checkpoint_has_the_tensors_of_its_table(tmp_path, config):
    folder = tiny_checkpoint(tmp_path / "model", config)
    written = mx.load(str(folder / "model.safetensors"))
    assert {name: tensor.shape for name, tensor in written.items()} == tensor_shapes(config)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    first, again, other = (
        mx.load(str(tiny_checkpoint(tmp_path / name, toy_config("F"), seed=seed) / "model.safetensors"))
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert all(mx.array_equal(first[name], again[name]) for name in first)
    assert not any(mx.array_equal(first[name], other[name]) for name in first)


def test_norm_weights_and_biases_are_never_at_their_initial_values(tmp_path):
    config = tiny_config("llama", attention_bias=True, mlp_bias=True)
    tensors = mx.load(str(tiny_checkpoint(tmp_path / "model", config) / "model.safetensors"))
    vectors = [tensor for tensor in tensors.values() if tensor.ndim == 1]
    assert vectors
    assert all(float(mx.var(vector).item()) > 1e-4 for vector in vectors)


def test_the_tokenizer_round_trips_text_within_the_vocabulary(tmp_path):
    folder = tiny_checkpoint(tmp_path / "model", toy_config("F"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("Zwölf Boxkämpfer 🙂 jagen<|im_end|>").ids
    assert max(ids) < 512
    assert ids[-1] == json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.decode(ids[:-1]) == "Zwölf Boxkämpfer 🙂 jagen"


def test_shards_and_their_index_hold_every_tensor_once(tmp_path):
    folder = tiny_checkpoint(tmp_path / "model", tiny_config("llama"), num_shards=3, tokenizer=False)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(tensor_shapes(tiny_config("llama")))
    assert all(name in mx.load(str(folder / file_name)) for name, file_name in index.items())
    assert len(set(index.values())) == 3


def test_quantised_configs_come_with_their_scales(tmp_path):
    section = {"group_size": 64, "bits": 4, "lm_head": False, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    folder = tiny_checkpoint(tmp_path / "model", tiny_config("llama", quantization=section), dtype="bfloat16")
    tensors = mx.load(str(folder / "model.safetensors"))
    assert "lm_head.scales" not in tensors
    assert tensors["model.embed_tokens.weight"].shape == (512, 128 * 8 // 32)
    assert tensors["model.embed_tokens.scales"].shape == (512, 128 // 32)
    assert tensors["model.layers.0.mlp.down_proj.scales"].dtype == mx.bfloat16


def test_an_unknown_model_type_names_those_there_are():
    with pytest.raises(UnknownName, match="llama"):
        tensor_shapes({"model_type": "lama"})
