"""GGUF files as checkpoints: values, names and tokenizer against the `gguf` package, MLX and transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from phyla.checkpoint import FolderCheckpoint
from phyla.errors import CheckpointNotFound, TokenizerError, UnsupportedModel, WeightMismatch
from phyla_gguf.gguf_checkpoint import GGUFCheckpoint
from phyla_gguf.llama import original_rows
from phyla_gguf.opener import opener
from phyla_gguf.vocabulary import PRE_TOKENIZERS
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.core.tokenizer import small_tokenizers
from tests.plugins.gguf.gguf_files import TINY, export_float32, tiny_tensors, write_tiny

KINDS = [Kind.F32, Kind.F16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]
QUANTISED = [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]


def opened(path: Path) -> GGUFCheckpoint:
    return GGUFCheckpoint(path, str(path))


def reference_values(path: Path, name: str) -> np.ndarray[Any, Any]:
    """What the `gguf` package itself makes of a tensor."""
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    return gguf.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "exported"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
    ],
)
def test_values_are_exactly_those_of_the_gguf_package(tmp_path: Path, kind: Kind, name: str, exported: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", kind)
    folder = export_float32(opened(path), tmp_path / "dense")
    got = np.array(FolderCheckpoint.open(folder).load([exported])[exported])
    np.testing.assert_array_equal(got, reference_values(path, name).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "exported", "heads"),
    [("attn_q", "q_proj", TINY.heads), ("attn_k", "k_proj", TINY.kv_heads)],
)
def test_query_and_key_rows_are_put_back_in_order(
    tmp_path: Path, kind: Kind, name: str, exported: str, heads: int
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", kind)
    folder = export_float32(opened(path), tmp_path / "dense")
    full_name = f"model.layers.0.self_attn.{exported}.weight"
    got = np.array(FolderCheckpoint.open(folder).load([full_name])[full_name])
    stored = reference_values(path, f"blk.0.{name}.weight").astype(np.float32)
    head_dim = len(stored) // heads
    expected = [
        stored[head * head_dim + 2 * (row % (head_dim // 2)) + row // (head_dim // 2)]
        for head in range(heads)
        for row in range(head_dim)
    ]
    np.testing.assert_array_equal(got, np.stack(expected))


def test_reordering_rows_undoes_the_converters_own() -> None:
    rows = np.arange(32 * 3).reshape(32, 3)
    stored = rows.reshape(2, 2, 8, 3).swapaxes(1, 2).reshape(rows.shape)
    np.testing.assert_array_equal(original_rows(stored, num_heads=2), rows)


@pytest.mark.parametrize("kind", QUANTISED)
def test_triples_are_the_ones_that_mlx_makes_itself(tmp_path: Path, kind: Kind) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", kind)
    theirs = mx.load(str(path))
    assert isinstance(theirs, dict)
    ours = opened(path).load([f"model.embed_tokens.{plane}" for plane in ("weight", "scales", "biases")])
    for plane in ("weight", "scales", "biases"):
        assert mx.array_equal(ours[f"model.embed_tokens.{plane}"], theirs[f"token_embd.{plane}"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_described_is_what_is_loaded(tmp_path: Path, kind: Kind, tied: bool) -> None:
    checkpoint = opened(write_tiny(tmp_path / "tiny.gguf", kind, tied=tied))
    infos = checkpoint.tensor_infos()
    arrays = checkpoint.load(infos)
    described = {name: (info.shape, info.dtype, info.num_bytes) for name, info in infos.items()}
    loaded = {
        name: (array.shape, str(array.dtype).removeprefix("mlx.core."), array.nbytes) for name, array in arrays.items()
    }
    assert described == loaded
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in infos) is not tied


def test_transformers_reads_the_export_and_its_tokenizer(tmp_path: Path) -> None:
    checkpoint = opened(write_tiny(tmp_path / "tiny.gguf", Kind.Q4_1))
    folder = export_float32(checkpoint, tmp_path / "dense")
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.num_key_value_heads == TINY.kv_heads
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>user\nDas Wetter in Zürich, 2024?<|im_end|>"
    assert checkpoint.tokenizer().encode(text) == theirs.encode(text, add_special_tokens=False)


def test_the_config_names_widths_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "mixed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    source = gguf.GGUFReader(write_tiny(tmp_path / "tiny.gguf", Kind.Q4_1))
    for key, value in _fields(source).items():
        writer.add_key_value(key, *value)
    tensors = tiny_tensors()
    embedding = tensors.pop("token_embd.weight")
    writer.add_tensor("token_embd.weight", gguf.quantize(embedding, Kind.Q8_0), raw_dtype=Kind.Q8_0)
    for name, array in tensors.items():
        kind = Kind.Q4_1 if array.ndim == 2 else Kind.F32
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert opened(path).config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
    }


def _fields(reader: gguf.GGUFReader) -> dict[str, tuple[Any, ...]]:
    kept = {key: field for key, field in reader.fields.items() if not key.startswith(("GGUF.", "general."))}
    return {
        key: (field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
        for key, field in kept.items()
    }


def test_an_unquantised_file_has_no_quantisation(tmp_path: Path) -> None:
    assert "quantization" not in opened(write_tiny(tmp_path / "tiny.gguf", Kind.F16)).config


def test_the_norm_epsilon_is_the_decimal_that_was_meant(tmp_path: Path) -> None:
    assert opened(write_tiny(tmp_path / "tiny.gguf")).config["rms_norm_eps"] == 1e-05


def test_ids_that_end_an_answer_come_from_the_metadata(tmp_path: Path) -> None:
    checkpoint = opened(write_tiny(tmp_path / "tiny.gguf"))
    spellings = checkpoint.tokenizer().special_spellings
    expected = sorted([spellings["<|im_end|>"], spellings["<|endoftext|>"]])
    assert checkpoint.generation_config["eos_token_id"] == expected
    assert checkpoint.tokenizer().eos_ids == frozenset([spellings["<|im_end|>"]])
    assert checkpoint.chat_template is not None


def test_a_template_beside_the_file_goes_before_the_one_in_it(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert opened(path).chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    "text", ["The capital of France", "123 4567 ab12", "it's IT'S  we'll\n\n x", "e\u0301 北京 Grüße"]
)
def test_ids_are_those_of_the_tokenizer_it_was_made_from(tmp_path: Path, text: str) -> None:
    ours = opened(write_tiny(tmp_path / "tiny.gguf")).tokenizer()
    assert ours.encode(text) == small_tokenizers.byte_level().encode(text).ids


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_encodes_and_decodes(tmp_path: Path, pre: str) -> None:
    tokenizer = opened(write_tiny(tmp_path / "tiny.gguf", **{"tokenizer.ggml.pre": pre})).tokenizer()
    text = "It's 12345 words,\n\n  and Grüße 北京!"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_smollm_takes_digits_one_by_one(tmp_path: Path) -> None:
    tokenizer = opened(write_tiny(tmp_path / "tiny.gguf", **{"tokenizer.ggml.pre": "smollm"})).tokenizer()
    assert [tokenizer.piece(token_id) for token_id in tokenizer.encode("1234")] == ["1", "2", "3", "4"]


BAD_TOKENIZERS: dict[str, dict[str, Any]] = {
    "an unknown pre-tokenizer": {"tokenizer.ggml.pre": "martian"},
    "no pre-tokenizer": {"tokenizer.ggml.pre": None},
    "another kind": {"tokenizer.ggml.model": "bert"},
    "no tokens": {"tokenizer.ggml.tokens": None, "llama.vocab_size": 485},
    "no merges": {"tokenizer.ggml.merges": None},
    "types of other tokens": {"tokenizer.ggml.token_type": [1, 2, 3]},
    "a merge of one piece": {"tokenizer.ggml.merges": ["ab"]},
    "a merge of unknown pieces": {"tokenizer.ggml.merges": ["qqq zzz"]},
}


@pytest.mark.parametrize("kind", BAD_TOKENIZERS)
def test_a_tokenizer_that_cannot_be_used_is_an_error_only_when_asked_for(tmp_path: Path, kind: str) -> None:
    checkpoint = opened(write_tiny(tmp_path / "tiny.gguf", **BAD_TOKENIZERS[kind]))
    with pytest.raises(TokenizerError):
        checkpoint.tokenizer().encode("text")


@pytest.mark.parametrize("kind", ["llama", None])
def test_a_tokenizer_that_is_not_read_leaves_token_ids(tmp_path: Path, kind: str | None) -> None:
    checkpoint = opened(write_tiny(tmp_path / "tiny.gguf", **{"tokenizer.ggml.model": kind}))
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.vocab_size == checkpoint.config["vocab_size"]
    with pytest.raises(TokenizerError, match=r"(of kind 'llama'|has no tokenizer).*safetensors form.*token ids"):
        tokenizer.encode("text")


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"llama.expert_count": 8}, "has experts"),
    "a part of several": ({"split.count": 3}, "one of 3 parts"),
    "an unknown rope": ({"llama.rope.scaling.type": "spiral"}, "'spiral'"),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_what_is_not_a_plain_llama_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    changes, words = UNSUPPORTED[kind]
    with pytest.raises(UnsupportedModel, match=words):
        opened(write_tiny(tmp_path / "tiny.gguf", **changes))


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("a", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="'mamba'"):
        opened(path)


def test_llama_3_scaling_is_found_from_its_stored_factors(tmp_path: Path) -> None:
    from phyla_gguf.llama import _llama3_factors, with_rope_factors

    config = {"rope_theta": 500000.0, "head_dim": 64}
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    factors = _llama3_factors(scaling, 500000.0, 64).astype(np.float32).tolist()
    assert with_rope_factors(config, factors, "tiny")["rope_scaling"] == scaling
    with pytest.raises(UnsupportedModel, match="aren't llama 3's"):
        with_rope_factors(config, [1.0] * 31 + [3.0], "tiny")


def test_names_that_the_file_lacks_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightMismatch, match="no tensor nope"):
        opened(write_tiny(tmp_path / "tiny.gguf")).load(["nope"])


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        GGUFCheckpoint(tmp_path / "nowhere.gguf", "nowhere.gguf")


def test_different_weights_have_different_fingerprints(tmp_path: Path) -> None:
    first = opened(write_tiny(tmp_path / "a.gguf"))
    again = opened(write_tiny(tmp_path / "b.gguf"))
    other = opened(write_tiny(tmp_path / "c.gguf", Kind.Q4_0))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


def test_the_opener_knows_files_by_their_first_bytes(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    bare = tmp_path / "without-ending"
    bare.write_bytes(path.read_bytes())
    wrong = tmp_path / "folder" / "wrong.gguf"
    wrong.parent.mkdir()
    wrong.write_text("hello")
    ranks = [opener().rank(str(reference)) for reference in (path, bare, wrong, tmp_path / "none.gguf", "org/name")]
    assert ranks == [100, 100, 50, 0, 0]


def test_a_folder_whose_only_model_is_a_file_opens_it(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf")
    assert opener().rank(str(tmp_path)) == 100
    assert opener().open(str(tmp_path)).model_id == "tiny"


def test_a_folder_with_a_config_is_left_to_others(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf")
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert opener().rank(str(tmp_path)) == 0
