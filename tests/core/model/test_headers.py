"""What families read alike from configs and tensor headers."""

import json

import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.model.facts import WeightBytes
from phyla.model.headers import eos_ids, sampling_defaults, stored_dtype, weight_bytes
from phyla.testing.tiny import tiny_checkpoint

SHAPES = {"a.weight": (8, 64), "experts.0.weight": (4, 64), "rotary.inv_freq": (16,)}


@pytest.fixture
def checkpoint(tmp_path):
    def make(generation=None, dtype="float32", **config):
        folder = tiny_checkpoint(tmp_path / "model", config, tokenizer=False, shapes=SHAPES, dtype=dtype)
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        return FolderCheckpoint.open(folder)

    return make


def test_bytes_are_counted_by_part_and_ignored_tensors_are_not(checkpoint):
    counted = weight_bytes(checkpoint(), ignored=("*.inv_freq",), expert_patterns=("experts.*",))
    assert counted == WeightBytes(resident=8 * 64 * 4, experts=4 * 64 * 4)


def test_the_stored_dtype_is_that_of_most_floating_tensors(checkpoint):
    assert stored_dtype(checkpoint(dtype="bfloat16", quantization={"group_size": 64, "bits": 4})) == "bfloat16"


def test_end_of_sequence_is_the_union_of_all_that_name_it(checkpoint):
    made = checkpoint({"eos_token_id": [7, 2]}, eos_token_id=2, text_config={"eos_token_id": [5]})
    assert eos_ids(made) == (2, 5, 7)


def test_ends_that_are_no_ids_are_left_out(checkpoint):
    assert eos_ids(checkpoint({"eos_token_id": ["</s>", None, 3]}, eos_token_id="</s>")) == (3,)


def test_a_checkpoint_that_names_no_end_has_none(checkpoint):
    assert eos_ids(checkpoint(eos_token_id=None)) == ()


def test_sampling_defaults_come_from_the_generation_config(checkpoint):
    made = checkpoint({"temperature": 0.6, "top_k": 20, "do_sample": True, "max_length": 20, "top_p": None})
    assert sampling_defaults(made) == {"temperature": 0.6, "top_k": 20.0}


def test_a_generation_config_that_does_not_sample_is_greedy(checkpoint):
    assert sampling_defaults(checkpoint({"do_sample": False, "temperature": 0.6})) == {"temperature": 0.0}
