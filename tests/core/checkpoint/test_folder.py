"""Model folders: what is opened, what is refused, and how the refusals read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from phyla.checkpoint import FolderCheckpoint, folder_opener
from phyla.errors import CheckpointNotFound, DamagedCheckpoint, TokenizerError, WeightMismatch

from tests.core.checkpoint.safetensors_files import write_floats, write_folder


def write_index(folder: Path, weight_map: dict[str, object]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_single_file_gives_its_tensors(tmp_path: Path) -> None:
    checkpoint = FolderCheckpoint.open(write_folder(tmp_path / "tiny", model=["a", "b"]))
    assert checkpoint.model_id == "tiny"
    assert checkpoint.load(["b"])["b"].tolist() == [2.0, 3.0]


def test_the_index_is_followed_whatever_the_shards_are_called(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", first=["a"], second=["b"])
    write_index(folder, {"a": "first.safetensors", "b": "second.safetensors"})
    checkpoint = FolderCheckpoint.open(folder)
    assert {name: info.shard for name, info in checkpoint.tensor_infos().items()} == {
        "a": "first.safetensors",
        "b": "second.safetensors",
    }
    assert sorted(checkpoint.load(["a", "b"])) == ["a", "b"]


def test_tensors_that_the_index_does_not_list_count(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", model_a=["a", "extra"], **{"model-more": ["beside"]})
    write_index(folder, {"a": "model_a.safetensors"})
    assert sorted(FolderCheckpoint.open(folder).tensor_infos()) == ["a", "beside", "extra"]


def test_absent_shards_are_all_named_before_any_load(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", one=["a"])
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors", "c": "three.safetensors"})
    with pytest.raises(DamagedCheckpoint, match=r"lacks three\.safetensors, two\.safetensors"):
        FolderCheckpoint.open(folder)


def test_numbered_shards_say_which_of_them_are_absent(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", **{"model-00002-of-00003": ["a"]})
    with pytest.raises(DamagedCheckpoint, match=r"model-00001-of-00003\.safetensors, model-00003-of-00003"):
        FolderCheckpoint.open(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x.bin", ""])
def test_an_index_cannot_name_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    write_index(folder, {"a": name})
    with pytest.raises(DamagedCheckpoint, match="isn't a file beside it"):
        FolderCheckpoint.open(folder)


@pytest.mark.parametrize("weight_map", [None, [], "x", {"a": 3}])
def test_an_index_without_a_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(DamagedCheckpoint, match="no weight_map"):
        FolderCheckpoint.open(folder)


def test_a_foreign_shard_is_told_by_what_the_index_says(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", one=["a"], two=["x"])
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(DamagedCheckpoint, match="disagree about b"):
        FolderCheckpoint.open(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", **{"model": ["a"], "model-2": ["a"]})
    with pytest.raises(DamagedCheckpoint, match="and in another shard"):
        FolderCheckpoint.open(folder)


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="There is no folder"):
        FolderCheckpoint.open(tmp_path / "nowhere", reference="nowhere")


def test_a_folder_without_config_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"has no config\.json"):
        FolderCheckpoint.open(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(DamagedCheckpoint, match="pickled weights"):
        FolderCheckpoint.open(folder)


BAD_CONFIGS = {
    "a trailing comma": '{"model_type": "llama",}',
    "NaN": '{"eps": NaN}',
    "Infinity": '{"limit": Infinity}',
    "a key twice": '{"a": 1, "a": 2}',
    "a list": "[1]",
    "half a file": '{"model_type": "lla',
    "deep nesting": '{"a":' + "[" * 50_000,
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_a_config_that_is_not_strict_json_is_refused_without_a_path(tmp_path: Path, kind: str) -> None:
    folder = write_folder(tmp_path / "tiny", BAD_CONFIGS[kind], model=["a"])
    with pytest.raises(DamagedCheckpoint, match=r"^config\.json of tiny") as error:
        FolderCheckpoint.open(folder)
    assert str(tmp_path) not in str(error.value)


def test_names_that_the_checkpoint_lacks_are_all_named(tmp_path: Path) -> None:
    checkpoint = FolderCheckpoint.open(write_folder(tmp_path / "tiny", model=["a"]))
    with pytest.raises(WeightMismatch, match="no tensor p, q"):
        checkpoint.load(["q", "a", "p"])


def test_a_shard_that_changed_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    checkpoint = FolderCheckpoint.open(folder)
    write_floats(folder / "model.safetensors", ["a", "b"])
    with pytest.raises(DamagedCheckpoint, match="changed after it was checked"):
        checkpoint.load(["a"])


def test_optional_files_may_be_absent(tmp_path: Path) -> None:
    checkpoint = FolderCheckpoint.open(write_folder(tmp_path / "tiny", model=["a"]))
    assert checkpoint.generation_config == {}
    assert checkpoint.chat_template is None
    assert checkpoint.sidecar("kv_config.json") is None
    assert checkpoint.companion("mtp") is None


def test_a_missing_tokenizer_is_an_error_only_when_asked_for_text(tmp_path: Path) -> None:
    tokenizer = FolderCheckpoint.open(write_folder(tmp_path / "tiny", model=["a"])).tokenizer()
    assert tokenizer.decode([1, 2]) == ""
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json.*phyla get"):
        tokenizer.encode("text")


def test_a_tokenizer_that_is_code_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    trap = folder / "was_run"
    (folder / "tokenization_x.py").write_text(f"open({str(trap)!r}, 'w')")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}})
    )
    with pytest.raises(TokenizerError, match="never run"):
        FolderCheckpoint.open(folder).tokenizer().encode("text")
    assert not trap.exists()


def test_a_config_that_names_code_opens_and_runs_none(tmp_path: Path) -> None:
    config = {"model_type": "llama", "model_file": "evil.py", "auto_map": {"AutoModel": "evil.Model"}}
    folder = write_folder(tmp_path / "tiny", config, model=["a"])
    trap = folder / "was_run"
    (folder / "evil.py").write_text(f"open({str(trap)!r}, 'w')")
    FolderCheckpoint.open(folder).load(["a"])
    assert not trap.exists()


def test_sidecars_are_read_and_cannot_leave_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    (folder / "kv_config.json").write_text("[]")
    checkpoint = FolderCheckpoint.open(folder)
    assert checkpoint.sidecar("kv_config.json") == b"[]"
    with pytest.raises(ValueError, match="beside"):
        checkpoint.sidecar("../secret")


def test_a_companion_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    write_folder(folder / "mtp", {"model_type": "tiny_mtp"}, model=["b"])
    companion = FolderCheckpoint.open(folder).companion("mtp")
    assert companion is not None
    assert (companion.model_id, companion.config["model_type"]) == ("tiny/mtp", "tiny_mtp")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"chat_template": "inline"}, "inline"),
        ({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}, "d"),
        ({"chat_template": [{"name": "only", "template": "o"}]}, "o"),
        ({}, None),
    ],
)
def test_the_chat_template_may_sit_in_the_tokenizer_config(
    tmp_path: Path, config: dict[str, object], expected: str | None
) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert FolderCheckpoint.open(folder).chat_template == expected


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", model=["a"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "inline"}))
    (folder / "chat_template.jinja").write_text("from the file")
    assert FolderCheckpoint.open(folder).chat_template == "from the file"


def test_a_snapshot_in_a_hub_cache_is_known_by_its_repository(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = write_folder(tmp_path / "models--org--some-name" / "snapshots" / commit, model=["a"])
    assert FolderCheckpoint.open(folder).model_id == "org/some-name"


def test_fine_tunes_of_one_architecture_have_different_fingerprints(tmp_path: Path) -> None:
    first = FolderCheckpoint.open(write_folder(tmp_path / "a" / "tiny", model=["a"]))
    again = FolderCheckpoint.open(write_folder(tmp_path / "b" / "tiny", model=["a"]))
    other = write_folder(tmp_path / "c" / "tiny", model=["a"])
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != FolderCheckpoint.open(other).fingerprint


def test_the_opener_is_certain_of_model_folders_only(tmp_path: Path) -> None:
    opener = folder_opener()
    model = write_folder(tmp_path / "tiny", model=["a"])
    assert [opener.rank(str(model)), opener.rank(str(tmp_path)), opener.rank("org/name")] == [100, 20, 0]
