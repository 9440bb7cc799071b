"""Which model is meant, and which is taken when none is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from phyla.errors import CheckpointNotFound, UsageError
from phyla.registry import LocalModel, ModelsSettings, find_model, local_models, local_reference, resolve_model
from phyla.registry.starter import STARTER

from tests.core.checkpoint.safetensors_files import write_folder

MEMORY = 100_000


@pytest.fixture
def settings(tmp_path: Path) -> ModelsSettings:
    return ModelsSettings(hub_cache=str(tmp_path / "hub"), folder=str(tmp_path / "models"))


def add_hub_model(
    settings: ModelsSettings, model_id: str, commit: str = "a" * 40, main: bool = True, size: int = 0, **config: object
) -> Path:
    home = Path(settings.hub_cache or "") / f"models--{model_id.replace('/', '--')}"
    folder = write_folder(home / "snapshots" / commit, {"model_type": "llama", **config}, model=["a"])
    if size:
        (folder / "model.safetensors").write_bytes(bytes(size))
    if main:
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / "main").write_text(commit)
    return folder


def add_gguf(settings: ModelsSettings, name: str, size: int = 10) -> Path:
    path = Path(settings.folder) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def with_flags(settings: ModelsSettings, **flags: str) -> ModelsSettings:
    return settings.model_copy(update=flags)


def test_nothing_here_and_nothing_named_is_no_model(settings: ModelsSettings) -> None:
    assert local_models(settings) == []
    assert resolve_model(settings, None, MEMORY) is None


def test_a_flag_wins_over_a_positional_and_that_over_a_query(settings: ModelsSettings) -> None:
    for name in ("one", "two", "three"):
        add_hub_model(settings, f"org/{name}")
    chosen = []
    for model, positional, query in (("one", "two", "three"), (None, "two", "three"), (None, None, "three")):
        resolved = resolve_model(settings.model_copy(update={"model": model, "query": query}), positional, MEMORY)
        assert resolved is not None
        chosen.append(Path(resolved.reference).parents[1].name)
    assert chosen == ["models--org--one", "models--org--two", "models--org--three"]


@pytest.mark.parametrize("reference", ["/some/folder", "./folder", "~/folder", "model.gguf", "org/name", "org/name@v1"])
def test_paths_and_hub_ids_pass_as_they_are(settings: ModelsSettings, reference: str) -> None:
    resolved = resolve_model(settings, reference, MEMORY)
    assert resolved is not None
    assert resolved.reference == reference


@pytest.mark.parametrize("query", ["tiny", "TINY", "org/ti", "qwen3"])
def test_a_query_is_part_of_an_id_or_type_whatever_the_case(settings: ModelsSettings, query: str) -> None:
    add_hub_model(settings, "org/Tiny-1B", model_type="qwen3")
    add_hub_model(settings, "org/other")
    assert find_model(query, local_models(settings)).model_id == "org/Tiny-1B"


def test_a_query_that_nothing_matches_says_how_to_get_one(settings: ModelsSettings) -> None:
    with pytest.raises(CheckpointNotFound, match="phyla get"):
        resolve_model(settings, "nothing", MEMORY)


def test_an_ambiguous_query_lists_the_matches(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/tiny-a")
    add_hub_model(settings, "org/tiny-b")
    with pytest.raises(UsageError, match="matches 2 models: org/tiny-a, org/tiny-b"):
        resolve_model(with_flags(settings, query="tiny"), None, MEMORY)


def test_an_exact_id_is_never_ambiguous(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/tiny")
    add_hub_model(settings, "org/tiny-large")
    assert find_model("org/tiny", local_models(settings)).model_id == "org/tiny"


def test_revisions_of_one_repository_are_one_model(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/tiny", "a" * 40)
    add_hub_model(settings, "org/tiny", "b" * 40, main=False)
    models = local_models(settings)
    assert [(model.revision[0], model.is_current) for model in models] == [("a", True), ("b", False)]
    assert find_model("tiny", models).revision == "a" * 40


def test_without_a_main_the_newest_snapshot_counts(settings: ModelsSettings) -> None:
    old = add_hub_model(settings, "org/tiny", "a" * 40, main=False)
    add_hub_model(settings, "org/tiny", "b" * 40, main=False)
    os.utime(old, ns=(1, 1))
    assert find_model("tiny", local_models(settings)).revision == "b" * 40


@pytest.mark.parametrize(
    "config",
    [{"model_type": "gemma4_assistant"}, {"model_type": "x_mtp"}, {"architectures": ["Qwen3DFlashModel"]}],
    ids=["assistant", "mtp", "architecture"],
)
def test_drafters_are_never_the_model(settings: ModelsSettings, config: dict[str, object]) -> None:
    add_hub_model(settings, "org/drafter", **config)
    assert resolve_model(settings, None, MEMORY) is None
    with pytest.raises(CheckpointNotFound):
        resolve_model(settings, "drafter", MEMORY)


def test_the_largest_model_that_leaves_room_is_taken(settings: ModelsSettings) -> None:
    for name, size in (("small", 1_000), ("medium", 60_000), ("large", 70_000), ("huge", 99_000)):
        add_hub_model(settings, f"org/{name}", size=size)
    resolved = resolve_model(settings, None, MEMORY)
    assert resolved is not None
    assert "org/medium" in resolved.reason


def test_a_model_that_fits_without_room_is_better_than_none(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/large", size=70_000)
    resolved = resolve_model(settings, None, MEMORY)
    assert resolved is not None
    assert "fits at all" in resolved.reason


def test_a_model_that_fills_the_machine_is_never_taken_unasked(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/huge", size=99_000)
    with pytest.raises(UsageError, match="None of the 1 local models fits"):
        resolve_model(settings, None, MEMORY)


def test_the_recommended_model_is_taken_where_it_fits(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/gemma-4-e4b-it-4bit", size=10_000)
    add_hub_model(settings, "org/medium", size=50_000)
    resolved = resolve_model(settings, None, MEMORY)
    assert resolved is not None
    assert "gemma-4-e4b" in resolved.reason


def test_only_what_a_family_takes_is_taken_unasked(settings: ModelsSettings) -> None:
    add_hub_model(settings, "org/good", size=10)
    add_hub_model(settings, "org/odd", size=1000, model_type="martian")

    def is_servable(model: LocalModel) -> bool:
        return model.model_type != "martian"

    resolved = resolve_model(settings, None, MEMORY, is_servable)
    assert resolved is not None
    assert "org/good" in resolved.reason


def test_a_snapshot_without_all_its_shards_is_not_taken_unasked(settings: ModelsSettings) -> None:
    folder = add_hub_model(settings, "org/half")
    index = {"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (model,) = local_models(settings)
    assert not model.is_complete
    assert resolve_model(settings, None, MEMORY) is None


def test_files_and_folders_in_the_models_folder_count(settings: ModelsSettings) -> None:
    add_gguf(settings, "tiny.gguf")
    add_gguf(settings, "ignored.txt")
    write_folder(Path(settings.folder) / "mine", model=["a"])
    nested = Path(settings.folder) / "nested"
    nested.mkdir()
    (nested / "inner.gguf").write_bytes(b"x")
    assert [(model.model_id, model.source) for model in local_models(settings)] == [
        ("inner", "gguf"),
        ("mine", "folder"),
        ("tiny", "gguf"),
    ]


def test_what_cannot_be_read_is_left_out(settings: ModelsSettings) -> None:
    folder = add_hub_model(settings, "org/broken")
    (folder / "config.json").write_text("{")
    assert local_models(settings) == []


@pytest.mark.parametrize("name", ["/some/folder", "model.gguf", "org/name@v1"])
def test_a_drafter_that_is_named_by_path_or_id_passes_as_it_is(settings: ModelsSettings, name: str) -> None:
    assert local_reference(name, settings) == name


def test_a_drafter_may_be_named_by_a_part_though_it_cannot_be_served(settings: ModelsSettings) -> None:
    folder = add_hub_model(settings, "org/tiny-head", model_type="qwen3_5_mtp")
    assert local_reference("TINY", settings) == str(folder)


def test_the_starter_drafts_where_it_is_here(settings: ModelsSettings) -> None:
    with pytest.raises(CheckpointNotFound, match="phyla get starter"):
        local_reference("starter", settings)
    path = add_gguf(settings, STARTER.file_name, size=0)
    os.truncate(path, STARTER.member_bytes)
    assert local_reference("starter", settings) == str(path)
