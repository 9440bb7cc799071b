"""A small real tokenizer, and constraints compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import phyla_llguidance
import phyla_xgrammar
import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.draft.compiling import ConstraintCompiler
from phyla.draft.constraint import Constraint
from phyla.plugins import PluginManager
from phyla.request import ConstraintSpec
from phyla.settings import Settings
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla.tokenizer import Tokenizer

PLUGINS = {"llguidance": phyla_llguidance, "xgrammar": phyla_xgrammar}
Opens = Callable[..., Constraint]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("grammar") / "tiny-model", tiny_config("llama"))
    return FolderCheckpoint.open(folder).tokenizer()


@pytest.fixture(scope="session")
def compiler_of(tokenizer: Tokenizer) -> Iterator[Callable[..., ConstraintCompiler]]:
    """Over an engine's plugin as the hook gives it, for a tokenizer; made once."""
    made: dict[tuple[str, str], ConstraintCompiler] = {}

    def make(engine: str, other: Tokenizer | None = None) -> ConstraintCompiler:
        used = other if other is not None else tokenizer
        key = (engine, used.fingerprint)
        if key not in made:
            manager = PluginManager()
            manager.register(engine, PLUGINS[engine])
            engines = [one.value for one in manager.proposers(Settings([]))]
            made[key] = ConstraintCompiler(engines, used, used.eos_ids)  # type: ignore[arg-type]
        return made[key]

    yield make
    for one in made.values():
        one.close()


@pytest.fixture(scope="session")
def compiler(compiler_of: Callable[..., ConstraintCompiler]) -> ConstraintCompiler:
    """Over the engine that is in every installation."""
    return compiler_of("llguidance")


@pytest.fixture(scope="session")
def opens(compiler: ConstraintCompiler) -> Opens:
    """A fresh matcher of a constraint."""

    def opened(kind: str, source: str, **fields: bool) -> Constraint:
        return compiler.compile(ConstraintSpec(kind, source, **fields)).compiled.open()

    return opened
