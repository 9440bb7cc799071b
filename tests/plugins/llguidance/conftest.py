"""A small real tokenizer, and constraints compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import phyla_llguidance
import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.draft.compiling import ConstraintCompiler
from phyla.draft.constraint import Constraint
from phyla.plugins import PluginManager
from phyla.request import ConstraintSpec
from phyla.settings import Settings
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla.tokenizer import Tokenizer

Opens = Callable[..., Constraint]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("grammar") / "tiny-model", tiny_config("llama"))
    return FolderCheckpoint.open(folder).tokenizer()


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> Iterator[ConstraintCompiler]:
    """Over the plugin as the hook gives it."""
    manager = PluginManager()
    manager.register("llguidance", phyla_llguidance)
    engines = [one.value for one in manager.proposers(Settings([]))]
    compiler = ConstraintCompiler(engines, tokenizer, tokenizer.eos_ids)  # type: ignore[arg-type]
    yield compiler
    compiler.close()


@pytest.fixture(scope="session")
def opens(compiler: ConstraintCompiler) -> Opens:
    """A fresh matcher of a constraint."""

    def opened(kind: str, source: str, **fields: bool) -> Constraint:
        return compiler.compile(ConstraintSpec(kind, source, **fields)).compiled.open()

    return opened
