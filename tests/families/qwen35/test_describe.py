"""What is read from a config and tensor headers, and what is refused there."""

from __future__ import annotations

import json

import mlx.core as mx
import pytest
from mlx_lm.models.qwen3_5_moe import Model, ModelArgs
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import DamagedCheckpoint, UnsupportedModel, WeightMismatch
from phyla.model.step import StepInput, Tap
from phyla.testing.stepping import Stepper, load_options
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.qwen35 import converted_shapes, published_shapes, qwen35_config
from phyla_qwen35 import Qwen35Family
from phyla_qwen35.config import qwen35_config as read_config
from phyla_qwen35.names import BODIES, Names

DENSE = qwen35_config(num_hidden_layers=4)
EXPERTS = qwen35_config(with_experts=True, num_hidden_layers=4)
TOKENS = [[5, 300, 41, 7]]


def opened(folder, config, **options):
    return FolderCheckpoint.open(tiny_checkpoint(folder, config, **{"tokenizer": False, **options}))


def logits(checkpoint):
    family = Qwen35Family()
    return Stepper(family.bind(checkpoint, family.describe(checkpoint), load_options())).step(TOKENS)


def test_every_fourth_layer_is_full_and_the_others_fold_their_past(tmp_path):
    facts = Qwen35Family().describe(opened(tmp_path / "model", qwen35_config()))
    assert [layer.kind for layer in facts.layout] == [*["recurrent"] * 3, "full"] * 2
    recurrent, full = facts.layout[0], facts.layout[3]
    assert [(plane.name, plane.num_heads, plane.rows, plane.width) for plane in recurrent.planes] == [
        ("conv", 1, 3, 384),
        ("state", 4, 32, 64),
    ]
    assert recurrent.plane("state").dtype == "float32"
    assert [(plane.name, plane.num_heads, plane.width) for plane in full.planes] == [("keys", 2, 64), ("values", 2, 64)]


def test_what_templates_answers_and_drafters_need_is_named(tmp_path):
    facts = Qwen35Family().describe(opened(tmp_path / "model", DENSE))
    assert facts.output_parser == "qwen"
    assert facts.reasoning is not None
    assert (facts.reasoning.start, facts.reasoning.end) == ("<think>", "</think>")
    assert facts.default_thinking is None
    assert facts.heads == ("embedding",)
    assert {Tap(3), Tap(3, "post")} <= set(facts.taps)
    assert facts.position_axes == 3


def test_a_drafter_can_build_on_the_last_hidden_row_and_on_both_ends(tmp_path):
    """What a draft head needs: embeddings as they are, hidden rows before the final norm, the head without it."""
    checkpoint = opened(tmp_path / "model", DENSE)
    family = Qwen35Family()
    binding = family.bind(checkpoint, family.describe(checkpoint), load_options())
    last, normed = Tap(3), Tap(3, "post")
    step = StepInput(mx.array(TOKENS, dtype=mx.int32), num_real=(4,), offsets=(0,), taps=(last, normed))
    output = binding.forward(step, Stepper(binding).group.states())
    tapped = output.taps[last]
    assert mx.array_equal(tapped[:, -1:], output.hidden)
    assert mx.array_equal(binding.final_norm(tapped), output.taps[normed])
    assert mx.array_equal(binding.project(output.taps[normed]), binding.head(tapped))
    assert mx.array_equal(binding.embed_ids(step.ids)[0], binding.embed(step))


def test_layer_types_count_where_they_are_given(tmp_path):
    kinds = ["full_attention", "linear_attention", "full_attention", "linear_attention"]
    facts = Qwen35Family().describe(opened(tmp_path / "model", qwen35_config(num_hidden_layers=4, layer_types=kinds)))
    assert [layer.kind for layer in facts.layout] == ["full", "recurrent", "full", "recurrent"]
    assert any("layer_types" in note for note in facts.notes)


def test_the_end_of_a_turn_ends_an_answer_though_the_config_leaves_it_out(tmp_path):
    folder = tiny_checkpoint(tmp_path / "model", {**DENSE, "eos_token_id": 0})
    added = {"2": {"content": "<|im_end|>"}, "0": {"content": "<|endoftext|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert Qwen35Family().describe(FolderCheckpoint.open(folder)).eos_ids == (0, 2)


def test_released_sizes_know_the_end_of_a_turn_without_a_tokenizer(tmp_path):
    released = qwen35_config(num_hidden_layers=1, vocab_size=248320, hidden_size=8, eos_token_id=248044)
    released["text_config"] |= {"intermediate_size": 8, "layer_types": ["linear_attention"]}
    facts = Qwen35Family().describe(opened(tmp_path / "model", released))
    assert facts.eos_ids == (248044, 248046)


@pytest.mark.parametrize("config", [DENSE, EXPERTS])
def test_published_weights_and_their_conversion_are_the_same_model(tmp_path, config):
    published = opened(tmp_path / "published", config)
    stored = published.load(published.tensor_infos())
    converted = Model(ModelArgs.from_dict(dict(published.config))).sanitize(stored)
    folder = tmp_path / "converted"
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), converted, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(published.config))
    assert mx.array_equal(logits(FolderCheckpoint.open(folder)), logits(published))


def test_a_draft_head_that_was_kept_does_not_make_converted_weights_published(tmp_path):
    plain = logits(opened(tmp_path / "plain", DENSE, shapes=converted_shapes(DENSE)))
    with_head = {**converted_shapes(DENSE), "mtp.norm.weight": (128,), "mtp.fc.weight": (128, 256)}
    assert mx.array_equal(logits(opened(tmp_path / "kept", DENSE, shapes=with_head)), plain)


def test_what_is_not_loaded_is_named(tmp_path):
    more = {"model.visual.patch_embed.proj.weight": (64, 3, 2, 16, 16), "mtp.fc.weight": (128, 256)}
    facts = Qwen35Family().describe(opened(tmp_path / "model", DENSE, shapes={**published_shapes(DENSE), **more}))
    assert facts.notes == (
        "text only: the vision tower in the checkpoint (0.4 MB) isn't loaded",
        "a draft head rides along (mtp, 0.1 MB); the model itself doesn't use it",
    )


@pytest.mark.parametrize(
    "config",
    [
        qwen35_config(num_hidden_layers=4, num_attention_sinks=4, use_cache=True, residual_scale=None),
        {**DENSE, "num_attention_sinks": 4},
    ],
    ids=["among the language keys", "beside them"],
)
def test_keys_that_nothing_reads_are_refused_by_name(tmp_path, config):
    with pytest.raises(UnsupportedModel, match="Nothing here knows the config's 'num_attention_sinks'"):
        Qwen35Family().describe(opened(tmp_path / "model", config))


def test_everything_that_is_wrong_with_a_config_is_one_error(tmp_path):
    config = qwen35_config(num_hidden_layers=4)
    wrong = {
        "num_attention_heads": 3,
        "vocab_size": "512",
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
        "layer_types": ["full_attention"],
        "residual_scale": 2.0,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "extra_factor": 2.0},
    }
    broken = {
        **config,
        "text_config": {**config["text_config"], **wrong},
        "audio_config": {"depth": 2},
        "quantization": {"group_size": 64, "bits": 7},
    }
    folder = tiny_checkpoint(tmp_path / "model", DENSE, tokenizer=False)
    (folder / "config.json").write_text(json.dumps(broken))
    with pytest.raises(DamagedCheckpoint, match="has 8 problems") as caught:
        Qwen35Family().describe(FolderCheckpoint.open(folder))
    for words in (*wrong, "extra_factor", "audio_config", "7 bits"):
        assert words.removesuffix("_parameters") in str(caught.value)


def test_a_tower_that_is_not_declared_is_refused_by_name(tmp_path):
    more = {"audio_tower.conv.weight": (64, 3, 16)}
    with pytest.raises(WeightMismatch, match="unused: audio_tower.conv.weight"):
        logits(opened(tmp_path / "model", DENSE, shapes={**published_shapes(DENSE), **more}))


def test_a_tensor_of_whole_numbers_is_refused_by_name(tmp_path):
    folder = tiny_checkpoint(tmp_path / "model", DENSE, tokenizer=False)
    tensors = mx.load(str(folder / "model.safetensors"))
    name = "model.language_model.layers.1.linear_attn.norm.weight"
    tensors[name] = tensors[name].astype(mx.int32)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    with pytest.raises(WeightMismatch, match=f"dtype: {name} is int32, it has to be float32 or float16 or bfloat16"):
        logits(FolderCheckpoint.open(folder))


def test_shards_of_two_revisions_are_one_error_that_lists_what_does_not_fit(tmp_path):
    older, newer = published_shapes(DENSE), published_shapes(qwen35_config(num_hidden_layers=4, hidden_size=64))
    mixed = {name: newer[name] if ".layers.2." in name else shape for name, shape in older.items()}
    with pytest.raises(WeightMismatch) as caught:
        logits(opened(tmp_path / "model", DENSE, shapes=mixed, num_shards=2))
    assert "layers.2.linear_attn.in_proj_qkv.weight is (384, 64)" in str(caught.value)
    assert "layers.2.mlp.down_proj.weight is (64, 192)" in str(caught.value)
    assert "layers.1." not in str(caught.value)


def test_a_tied_model_with_a_head_of_its_own_is_refused(tmp_path):
    tied = qwen35_config(num_hidden_layers=4, tie_word_embeddings=True)
    with pytest.raises(DamagedCheckpoint, match="'tie_word_embeddings' is true, and lm_head.weight is there"):
        Qwen35Family().describe(opened(tmp_path / "model", tied, shapes=published_shapes(DENSE)))


def test_an_untied_model_without_a_head_misses_it(tmp_path):
    shapes = {name: shape for name, shape in published_shapes(DENSE).items() if name != "lm_head.weight"}
    with pytest.raises(WeightMismatch, match="missing: lm_head.weight"):
        logits(opened(tmp_path / "model", DENSE, shapes=shapes))


def test_a_config_that_does_not_say_is_tied_if_there_is_no_head(tmp_path):
    tied = qwen35_config(num_hidden_layers=4, tie_word_embeddings=True)
    silent = {**tied, "text_config": {**tied["text_config"]}}
    del silent["text_config"]["tie_word_embeddings"]
    said, unsaid = (
        opened(tmp_path / name, one, shapes=published_shapes(tied))
        for name, one in (("said", tied), ("silent", silent))
    )
    assert mx.array_equal(logits(said), logits(unsaid))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("spelling", BODIES)
def test_a_module_is_found_under_any_spelling(body, spelling):
    names = Names(body, BODIES[body], is_published=False)
    assert names.respelt(f"{spelling}layers.3.mlp.gate") == f"{body}layers.3.mlp.gate"
    assert names.respelt(BODIES[spelling]) == BODIES[body]


def test_forms_of_modules_follow_weights_that_were_renamed(tmp_path):
    """A conversion exported under the published prefix keeps the overrides that it was converted with."""
    forms = {
        "group_size": 64,
        "bits": 4,
        "language_model.model.layers.0.linear_attn.out_proj": {"group_size": 32, "bits": 8},
        "language_model.lm_head": False,
    }
    converted = {**DENSE, "quantization": forms}
    written = opened(tmp_path / "converted", converted, shapes=converted_shapes(DENSE))
    stored = written.load(written.tensor_infos())
    renamed = {
        name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head"): one
        for name, one in stored.items()
    }
    folder = tmp_path / "renamed"
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), renamed, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(converted))
    assert mx.array_equal(logits(FolderCheckpoint.open(folder)), logits(written))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["sliding_attention"] * 8}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e7}}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": [3, 3, 2], "mrope_interleaved": False}}, "mrope_int"),
    ],
)
def test_another_model_is_refused_by_its_key(changes, key):
    with pytest.raises(UnsupportedModel, match=key):
        read_config(qwen35_config(**changes))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "512"}, "vocab_size"),
        ({"num_attention_heads": 3}, "num_key_value_heads"),
        ({"linear_num_value_heads": 3}, "linear_num_key_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim"),
        ({"head_dim": None, "hidden_size": 130}, "hidden_size"),
        ({"rms_norm_eps": True}, "rms_norm_eps"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"full_attention_interval": None}, "full_attention_interval"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": 4}, "layer_types"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 2, "num_experts_per_tok": 4}, "num_experts_per_tok"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 2.0}}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": [11, 11, 10]}}, "mrope_section"),
        ({"rope_parameters": {}}, "rope_theta"),
    ],
)
def test_a_config_that_contradicts_itself_is_damaged_and_names_the_key(changes, key):
    with pytest.raises(DamagedCheckpoint, match=key):
        read_config(qwen35_config(**changes))


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"group_size": 64, "bits": 4, "mode": "trellis"}, "trellis"),
        ({"group_size": 64, "bits": 7}, "7 bits"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
    ],
)
def test_quantisation_that_is_not_known_is_refused_by_name(tmp_path, form, words):
    checkpoint = opened(tmp_path / "model", DENSE)
    (tmp_path / "model" / "config.json").write_text(json.dumps({**DENSE, "quantization": form}))
    checkpoint = FolderCheckpoint.open(tmp_path / "model")
    with pytest.raises((UnsupportedModel, DamagedCheckpoint), match=words):
        Qwen35Family().describe(checkpoint)
