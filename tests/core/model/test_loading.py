"""Strict loading: one error that lists everything, before anything is read."""

import mlx.core as mx
import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import WeightMismatch
from phyla.model.load_options import LoadOptions
from phyla.model.loading import load_weights
from phyla.testing.family import RecordingCheckpoint
from phyla.testing.stepping import TEST_BACKEND, load_options
from phyla.testing.tiny import tiny_checkpoint

SHAPES = {"a.weight": (96, 64), "a.bias": (96,), "b.weight": (32, 64), "b.bias": (32,), "norm.weight": (64,)}
FOUR_BITS = {"group_size": 64, "bits": 4}


def opened(folder, shapes=SHAPES, *, dtype="float32", **config):
    written = tiny_checkpoint(
        folder / "model", {"model_type": "x", **config}, tokenizer=False, shapes=shapes, dtype=dtype
    )
    return FolderCheckpoint.open(written)


def everything(load):
    a = load.linear("a", 64, 96, bias=True)
    b = load.linear("b", 64, 32, bias=True)
    return a, b, load.norm("norm", 64, 1e-6)


def test_all_problems_are_one_error(tmp_path):
    shapes = {**SHAPES, "b.weight": (32, 65), "c.weight": (8, 8)}
    del shapes["a.bias"]
    with pytest.raises(WeightMismatch) as caught:
        load_weights(opened(tmp_path, shapes), load_options(), everything)
    message = str(caught.value)
    assert "(3 problems)" in message
    assert "missing: a.bias (96,)" in message
    assert "shape: b.weight is (32, 65) in model.safetensors, the config says (32, 64)" in message
    assert "unused: c.weight (8, 8)" in message


def test_a_long_list_of_problems_is_cut_and_counted(tmp_path):
    checkpoint = opened(tmp_path, {f"t{index}.weight": (2, 2) for index in range(100)})
    with pytest.raises(WeightMismatch, match=r"100 problems[\s\S]*and 60 more"):
        load_weights(checkpoint, load_options(), lambda load: None)


def test_a_size_that_no_array_has_is_a_problem(tmp_path):
    with pytest.raises(WeightMismatch, match=r"embed\.weight is \(1000000000000, 8\)"):
        load_weights(opened(tmp_path), load_options(), lambda load: load.embedding("embed", 10**12, 8))


def test_ignored_tensors_may_be_there(tmp_path):
    checkpoint = opened(tmp_path, {**SHAPES, "rotary_emb.inv_freq": (8,)})
    load_weights(checkpoint, load_options(), everything, ignored=("*.inv_freq",))


def test_a_tensor_taken_twice_is_a_problem(tmp_path):
    with pytest.raises(WeightMismatch, match=r"used twice: norm\.weight"):
        load_weights(opened(tmp_path), load_options(), lambda load: (everything(load), load.norm("norm", 64, 1e-6)))


def test_weights_come_in_the_asked_dtype(tmp_path):
    modules = load_weights(opened(tmp_path, dtype="bfloat16"), load_options("float32"), everything)
    assert {array.dtype for module in modules for array in module.arrays} == {mx.float32}


def test_quantised_weights_stay_packed_and_their_scales_follow_the_dtype(tmp_path):
    checkpoint = opened(tmp_path, dtype="bfloat16", quantization=FOUR_BITS)
    a, _, _ = load_weights(checkpoint, load_options("float32"), everything)
    assert a.weight.data.dtype == mx.uint32
    assert a.weight.scales.dtype == mx.float32
    assert a.weight.num_columns == 64


def test_dense_form_unpacks_at_load(tmp_path):
    checkpoint = opened(tmp_path, quantization=FOUR_BITS)
    packed, _, _ = load_weights(checkpoint, load_options(), everything)
    unpacked, _, _ = load_weights(checkpoint, load_options(dense=True), everything)
    assert unpacked.weight.form is None
    assert mx.array_equal(unpacked.weight.data, packed.weight.dense(mx.float32).data)


def test_overrides_give_single_modules_another_form_or_none(tmp_path):
    section = {**FOUR_BITS, "a": {"group_size": 32, "bits": 8}, "b": False}
    a, b, _ = load_weights(opened(tmp_path, quantization=section), load_options(), everything)
    assert (a.weight.form.group_size, a.weight.form.bits) == (32, 8)
    assert b.weight.form is None


def test_a_module_listed_without_scales_is_in_full_precision(tmp_path):
    checkpoint = opened(tmp_path)
    checkpoint.config = {**checkpoint.config, "quantization": {**FOUR_BITS, "a": {"group_size": 32, "bits": 8}}}
    a, _, _ = load_weights(checkpoint, load_options(), everything)
    assert a.weight.form is None


def test_scales_where_the_config_says_full_precision_are_a_problem(tmp_path):
    checkpoint = opened(tmp_path, quantization=FOUR_BITS)
    checkpoint.config = {**checkpoint.config, "quantization": {**FOUR_BITS, "a": False}}
    with pytest.raises(WeightMismatch, match="full precision: a"):
        load_weights(checkpoint, load_options(), everything)


def test_widths_that_contradict_the_stated_bits_are_a_problem(tmp_path):
    checkpoint = opened(tmp_path, quantization=FOUR_BITS)
    checkpoint.config = {**checkpoint.config, "quantization": {"group_size": 64, "bits": 8}}
    with pytest.raises(WeightMismatch, match=r"shape: a\.weight"):
        load_weights(checkpoint, load_options(), everything)


def test_progress_counts_to_the_stored_bytes(tmp_path):
    reports = []
    options = LoadOptions(TEST_BACKEND, "float32", progress=lambda *report: reports.append(report))
    checkpoint = opened(tmp_path)

    def build(load):
        with load.group("first"):
            load.linear("a", 64, 96, bias=True)
        with load.group("second"):
            load.linear("b", 64, 32, bias=True)
            load.norm("norm", 64, 1e-6)

    load_weights(checkpoint, options, build)
    total = sum(info.num_bytes for info in checkpoint.tensor_infos().values())
    assert reports[:2] == [("first", 96 * 65 * 4, total), ("second", total, total)]


def test_loading_peaks_at_little_more_than_what_stays(tmp_path):
    shapes = {f"{index}.{part}.weight": (256, 256) for index in range(24) for part in "abc"}
    checkpoint = opened(tmp_path, shapes, dtype="bfloat16")
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    def build(load):
        layers = []
        for index in range(24):
            with load.group(f"layer {index}"):
                layers.append(load.fused([f"{index}.{part}" for part in "abc"], 256, (256,) * 3))
        return layers

    held = load_weights(checkpoint, load_options("float32"), build)
    resident = mx.get_active_memory() - before
    assert resident <= 1.02 * 24 * 3 * 256 * 256 * 4
    assert mx.get_peak_memory() - before <= 1.1 * resident
    assert len(held) == 24


def test_nothing_is_read_where_something_is_wrong(tmp_path):
    checkpoint = RecordingCheckpoint(opened(tmp_path, {**SHAPES, "c.weight": (8, 8)}))
    with pytest.raises(WeightMismatch):
        load_weights(checkpoint, load_options(), everything)
    assert checkpoint.loaded == []


def test_a_group_is_read_in_one_call(tmp_path):
    checkpoint = RecordingCheckpoint(opened(tmp_path))

    def build(load):
        with load.group("first"):
            load.linear("b", 64, 32, bias=True)
        load.linear("a", 64, 96, bias=True)
        with load.group("last"):
            load.norm("norm", 64, 1e-6)

    load_weights(checkpoint, load_options(), build)
    assert checkpoint.calls == [["b.weight", "b.bias"], ["a.weight", "a.bias"], ["norm.weight"]]
