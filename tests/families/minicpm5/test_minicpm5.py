"""MiniCPM5: told by its shape, computed as mlx-lm's llama, and spoken to in its own template."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import phyla
import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import DamagedCheckpoint, UnsupportedModel, WeightMismatch
from phyla.model import Claim
from phyla.settings import Settings
from phyla.testing.engines import family_spec
from phyla.testing.family import FamilyContract
from phyla.testing.parity import MlxLmParityContract
from phyla.testing.row_equality import RowEqualityContract
from phyla.testing.stepping import load_options
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint, tiny_config
from phyla_minicpm5 import MiniCPM5Family, phyla_families
from phyla_minicpm5.shape import RELEASED, shape_of

TINY = tiny_config("llama", head_dim=128, rope_theta=5e6)
NESTED = {
    **{key: value for key, value in TINY.items() if key != "rope_theta"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6},
}
RELEASED_CONFIG = MappingProxyType({**TINY, **RELEASED, "intermediate_size": 4608, "max_position_embeddings": 131072})
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
QUESTION = [{"role": "user", "content": "What is 2 + 2?"}]


class MiniCPM5:
    family = MiniCPM5Family()
    config = TINY


class TestRows(RowEqualityContract):
    group = "stacked"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def folder(cls, tmp_path_factory):
        cls.made = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", TINY)

    def spec(self, settings):
        return family_spec(MiniCPM5Family(), self.made, settings)


class TestMiniCPM5(MiniCPM5, FamilyContract):
    pass


class TestParity(MiniCPM5, MlxLmParityContract):
    pass


class TestANestedBase(MiniCPM5, FamilyContract):
    """Against transformers only: mlx-lm's llama doesn't read the newer section and takes a base of 10,000."""

    config = NESTED


class TestBfloat16Parity(MiniCPM5, MlxLmParityContract):
    dtype = "bfloat16"


class TestQuantisedParity(MiniCPM5, MlxLmParityContract):
    config = tiny_config(
        "llama",
        head_dim=128,
        rope_theta=5e6,
        quantization={
            "group_size": 64,
            "bits": 4,
            "lm_head": {"group_size": 32, "bits": 8},
            "model.layers.1.mlp.down_proj": False,
        },
    )
    dtype = "bfloat16"
    chunk = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with MiniCPM5's kind of template, and an end of sequence that only generation_config.json knows."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", {**TINY, "eos_token_id": 1})
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text("utf-8"), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 130]}), "utf-8")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    with phyla.load(str(folder), family="minicpm5") as model:
        yield model


def test_the_plugin_gives_its_family():
    assert [family.name for family in phyla_families(Settings())] == ["minicpm5"]


def test_the_released_model_is_its_own():
    assert MiniCPM5Family().claim(RELEASED_CONFIG) is Claim.EXACT


@pytest.mark.parametrize("key", sorted(RELEASED))
def test_another_size_is_run_only_where_it_is_asked_for(key):
    assert MiniCPM5Family().claim({**RELEASED_CONFIG, key: 2 * RELEASED[key]}) is Claim.ALIKE


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"tie_word_embeddings": True},
        {"rope_theta": 1e4},
        {"rope_theta": "5e6"},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 5e6}},
        {"rope_parameters": [5e6]},
        {"head_dim": None},
        {"head_dim": 96},
    ],
    ids=str,
)
def test_other_llamas_are_not_claimed_and_refused_by_the_key(change):
    config = {**RELEASED_CONFIG, **change}
    assert MiniCPM5Family().claim(config) is Claim.NONE
    why_not = MiniCPM5Family().why_not(config)
    assert why_not is None if "model_type" in change else repr(next(iter(change))) in why_not
    with pytest.raises(UnsupportedModel, match=next(iter(change))):
        shape_of(config)


def test_everything_that_is_wrong_with_a_config_is_one_error():
    config = {
        **RELEASED_CONFIG,
        "num_attention_heads": "16",
        "intermediate_size": None,
        "mlp_bias": True,
        "residual_scale": 2.0,
        "quantization": {"bits": 4, "group_size": 64, "mode": "trellis"},
    }
    assert MiniCPM5Family().claim(config) is Claim.NONE
    with pytest.raises(DamagedCheckpoint) as caught:
        shape_of(config)
    for key in ("num_attention_heads", "intermediate_size", "mlp_bias", "residual_scale", "trellis"):
        assert key in str(caught.value)


def test_without_the_universal_decoder_it_goes_before_the_bridge(folder):
    with phyla.load(str(folder), disable=["universal"]) as model:
        assert model.plan.family.name == "minicpm5"
        assert ("mlxlm", "claims it less well (fallback)") in model.plan.family.rejected


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 3}, "num_key_value_heads"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings"),
    ],
)
def test_sizes_that_cannot_be_are_damage_and_named(change, key):
    with pytest.raises(DamagedCheckpoint, match=key):
        shape_of({**RELEASED_CONFIG, **change})


def test_a_head_that_is_missing_is_named(tmp_path):
    shapes = {name: shape for name, shape in tensor_shapes(TINY).items() if name != "lm_head.weight"}
    checkpoint = FolderCheckpoint.open(tiny_checkpoint(tmp_path / "model", TINY, tokenizer=False, shapes=shapes))
    facts = MiniCPM5Family().describe(checkpoint)
    with pytest.raises(WeightMismatch, match=r"lm_head\.weight"):
        MiniCPM5Family().bind(checkpoint, facts, load_options())


def test_a_plain_llama_of_this_kind_is_left_to_who_knows_it_closely(folder):
    with phyla.load(str(folder)) as model:
        assert model.plan.family.name == "universal"


def test_every_end_of_sequence_counts(model):
    assert model.facts.eos_ids == (1, 130)


def test_an_answer_does_not_reason_unless_it_is_asked_to(model):
    quiet = model.renderer.render_chat(QUESTION)
    asked = model.renderer.render_chat(QUESTION, template_args={"enable_thinking": True})
    assert quiet.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not quiet.starts_in_reasoning
    assert asked.text.endswith("<|im_start|>assistant\n<think>\n")
    assert asked.starts_in_reasoning


def test_its_calls_are_read_in_its_own_dialect(model):
    assert model.facts.output_parser == "minicpm"
    assert (model.facts.reasoning.start, model.facts.reasoning.end) == ("<think>", "</think>")


def test_tools_and_their_results_are_shown_as_it_learnt_them(model):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"first": 2, "second": 2}'}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    conversation = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    text = model.renderer.render_chat(conversation, [tool]).text
    assert '<tools>\n{"type": "function"' in text
    assert '<function name="add"><param name="first">2</param><param name="second">2</param></function>' in text
    assert "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>" in text
