"""Drafters that can't draft are refused from headers: nobody reads a weight, neither the drafter's nor the target's."""

import json

import phyla
import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.cli.main import main
from phyla.errors import PhylaError, RefusedCombination, WeightMismatch
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla.testing.tiny.mtp import companion_config, head_shapes
from phyla.testing.tiny.qwen35 import qwen35_config

LLAMA = tiny_config("llama", num_hidden_layers=2)
QWEN35 = qwen35_config(num_hidden_layers=4)
HEAD = companion_config(QWEN35)
PACKED = {"quantization": {"bits": 4, "group_size": 32}}


def without(shapes, name):
    return {one: shape for one, shape in shapes.items() if one != name}


def changed(config, **text):
    return {**config, "text_config": {**config["text_config"], **text}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    small, whole = tensor_shapes(LLAMA), head_shapes(HEAD)
    query = "model.layers.1.self_attn.q_proj.weight"
    model = {"llama": (LLAMA, small), "qwen35": (QWEN35, None)}
    drafters = {
        "misshapen model": (LLAMA, {**small, query: (8, 8)}),
        "half a model": (LLAMA, without(small, query)),
    }
    heads = {
        "head": (HEAD, whole),
        "misshapen head": (HEAD, {**whole, "fc.weight": (8, 8)}),
        "half a head": (HEAD, without(whole, "norm.weight")),
        "another size": (changed(HEAD, hidden_size=64), head_shapes(changed(HEAD, hidden_size=64))),
        "two layers": (changed(HEAD, mtp_num_hidden_layers=2), whole),
        "a tensor too many": (HEAD, {**whole, "surprise.weight": (4, 4)}),
        "embeddings of its own": (changed(HEAD, mtp_use_dedicated_embeddings=True), whole),
    }
    # By what the config says of tensors that were written as another one says.
    unlike = {
        "awq head": (HEAD, HEAD | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}),
        "wider groups": (HEAD | PACKED, HEAD | {"quantization": {"bits": 4, "group_size": 64}}),
        "packed without a section": (HEAD | PACKED, HEAD),
    }
    riding = tensor_shapes(QWEN35) | head_shapes(QWEN35, "mtp.")
    model |= {"half of it rides along": (QWEN35, without(riding, "mtp.fc.weight"))}
    made = {name: tiny_checkpoint(models / name, config, shapes=shapes) for name, (config, shapes) in model.items()}
    made |= {name: tiny_checkpoint(models / name, config, shapes=shapes) for name, (config, shapes) in drafters.items()}
    for name, (written, said) in unlike.items():
        made[name] = tiny_checkpoint(models / name, written, shapes=whole, tokenizer=False)
        (made[name] / "config.json").write_text(json.dumps(said))
    made["bundle without a config"] = tiny_checkpoint(models / "bundle", QWEN35)
    (tiny_checkpoint(models / "bundle" / "mtp", HEAD, shapes=whole, tokenizer=False) / "config.json").unlink()
    return made | {
        name: tiny_checkpoint(models / name, config, shapes=shapes, tokenizer=False)
        for name, (config, shapes) in heads.items()
    }


@pytest.fixture
def unread(monkeypatch):
    """Checkpoints whose weights can't be had."""

    def load(checkpoint, names):
        raise AssertionError(f"weights of {checkpoint.model_id} were read")

    monkeypatch.setattr(FolderCheckpoint, "load", load)


@pytest.mark.parametrize(
    ("target", "drafter", "options", "said"),
    [
        ("llama", "misshapen model", {}, "q_proj"),
        ("llama", "half a model", {}, "q_proj"),
        ("llama", "llama", {"method": "ngram"}, "works without a drafter"),
        ("llama", None, {"method": "ngram", "ngram_min": 4, "ngram_max": 2}, "--ngram-min 4 is above --ngram-max 2"),
        ("llama", None, {"method": "ngram", "num_draft_tokens": 0}, "num-draft-tokens"),
        ("llama", None, {"method": "two-model"}, "'two-model' needs a drafter"),
        ("llama", "head", {"method": "two-model"}, "qwen3_5_mtp"),
        ("llama", "head", {}, "head for Qwen3.5, and the model is a llama"),
        ("qwen35", None, {"method": "mtp"}, "'mtp' needs a drafter"),
        ("qwen35", "llama", {"method": "mtp"}, "llama"),
        ("qwen35", "misshapen head", {}, "shape: fc.weight is (8, 8)"),
        ("qwen35", "half a head", {}, "(1 problem):\n  missing: norm.weight (128,)\n"),
        ("qwen35", "a tensor too many", {}, "unused: surprise.weight (4, 4)"),
        ("qwen35", "awq head", {}, "of the form 'awq', which isn't read here"),
        ("qwen35", "wider groups", {}, "shape: fc.scales is (128, 8) in model.safetensors, the config says (128, 4)"),
        ("qwen35", "packed without a section", {}, "quantised, but the config says full precision: fc"),
        ("half of it rides along", None, {"method": "mtp"}, "(1 problem):\n  missing: mtp.fc.weight (128, 256)\n"),
        ("bundle without a config", None, {"method": "mtp"}, "mtp' has no config.json"),
        ("qwen35", "another size", {}, "hidden rows of 64 numbers and the model's have 128"),
        ("qwen35", "two layers", {}, "'mtp_num_hidden_layers': 2 isn't read here; it has to be 1. "),
        ("qwen35", "embeddings of its own", {}, "'mtp_use_dedicated_embeddings': True"),
        ("qwen35", "head", {"family": "mlxlm"}, "which family 'mlxlm' doesn't offer"),
        ("llama", None, {"method": "ngrams"}, "Did you mean 'ngram'"),
    ],
)
def test_it_is_refused_with_the_reason_before_a_weight_is_read(folders, unread, target, drafter, options, said):
    named = {} if drafter is None else {"draft_model": str(folders[drafter])}
    with pytest.raises(PhylaError, match=".") as raised:
        phyla.load(str(folders[target]), **named, **options)
    assert said in str(raised.value)


def test_a_drafter_is_named_like_a_model(folders, unread, capsys):
    said = ["explain", str(folders["llama"]), "--models-folder", str(folders["llama"].parent)]
    assert main([*said, "--draft-model", "LLAMA"], env={}) == 0
    assert "two-model  (auto: recognised llama)" in capsys.readouterr().out
    assert main([*said, "--draft-model", "nobody"], env={}) == 1
    assert "No model on this machine matches 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"), [("generate", "--offline forbids downloading it"), ("explain", "`phyla get org/small`")]
)
def test_a_drafter_is_fetched_where_a_model_would_be(folders, unread, capsys, tmp_path, command, said):
    named = ["--draft-model", "org/small", "--offline", "--hub-cache", str(tmp_path)]
    words = ["--prompt", "hi"] if command == "generate" else []
    assert main([command, str(folders["llama"]), *words, *named], env={}) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "drafter", "rc"),
    [
        ("llama", "misshapen model", 1),
        ("llama", "half a model", 1),
        ("qwen35", "awq head", 2),
        ("qwen35", "packed without a section", 2),
        ("qwen35", "a tensor too many", 2),
    ],
)
def test_explain_refuses_a_drafter_as_loading_it_does(folders, unread, capsys, target, drafter, rc):
    with pytest.raises((WeightMismatch, RefusedCombination)) as raised:
        phyla.load(str(folders[target]), draft_model=str(folders[drafter]))
    assert main(["explain", str(folders[target]), "--draft-model", str(folders[drafter])], env={}) == rc
    assert str(raised.value) in capsys.readouterr().err
