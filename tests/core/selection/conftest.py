"""A checkpoint in memory, and managers with exactly what a test declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from phyla.backend import BackendFacts
from phyla.checkpoint import CheckpointOpener, TensorInfo
from phyla.draft import ConstraintEngine, DraftMethod
from phyla.hookspecs import hookimpl
from phyla.kv import SUPPORTED, KVScheme, LayerSpec, Support
from phyla.kv.plain import PLAIN
from phyla.plan import Candidates, PlanAnswer
from phyla.plugins import PluginManager
from phyla.settings import Settings
from phyla.testing.toy import ToyFamily, toy_config


@dataclass(frozen=True)
class ShelfCheckpoint:
    """A checkpoint without files."""

    reference: str
    config: Mapping[str, Any]
    infos: Mapping[str, TensorInfo] = field(default_factory=dict)
    drafter: Any = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    fingerprint: str = "f00d"

    @property
    def model_id(self) -> str:
        return f"shelf/{self.reference}"

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        return self.infos

    def load(self, names: Iterable[str]) -> Any:
        raise AssertionError("selection loads nothing")

    def tokenizer(self) -> Any:
        raise AssertionError("selection reads no tokenizer")

    def sidecar(self, name: str) -> bytes | None:
        return None

    def companion(self, name: str) -> Any:
        return self.drafter


class Declaring:
    """A plugin that declares what it was given."""

    phyla_api = 1

    def __init__(self, **declared: Any) -> None:
        self._declared = declared

    @hookimpl
    def phyla_open_checkpoint(self) -> list[CheckpointOpener]:
        return list(self._declared.get("openers", []))

    @hookimpl
    def phyla_families(self) -> list[Any]:
        return list(self._declared.get("families", []))

    @hookimpl
    def phyla_kv_schemes(self) -> list[KVScheme]:
        return list(self._declared.get("schemes", []))

    @hookimpl
    def phyla_methods(self) -> list[DraftMethod]:
        return list(self._declared.get("methods", []))

    @hookimpl
    def phyla_proposers(self) -> list[ConstraintEngine]:
        return list(self._declared.get("proposers", []))

    @hookimpl
    def phyla_plan(self, candidates: Candidates, settings: Settings) -> PlanAnswer | None:
        answer: PlanAnswer | None = self._declared.get("answer")
        return answer


def scheme(name: str, *kinds: str, supports: Callable[[LayerSpec], Support] | None = None, **more: Any) -> KVScheme:
    """A scheme that stores those kinds plainly."""
    return KVScheme(
        name,
        frozenset(kinds),
        supports=lambda layer, backend: SUPPORTED if supports is None else supports(layer),
        create=PLAIN.create,
        bytes_per_token=PLAIN.bytes_per_token,
        **more,
    )


def shelf(**checkpoints: ShelfCheckpoint) -> CheckpointOpener:
    """Opens the named checkpoints."""
    return CheckpointOpener("shelf", rank=lambda name: 100 if name in checkpoints else 0, open=checkpoints.__getitem__)


TOY = ShelfCheckpoint("toy", toy_config("FSF"))


@pytest.fixture
def backend() -> BackendFacts:
    return BackendFacts("cpu", "test", "0.32.4", 8 * 10**9, 6 * 10**9, blas="test 1")


@pytest.fixture
def manager() -> PluginManager:
    """Plain storage, the toy family and one checkpoint of it."""
    made = PluginManager()
    made.register("base", Declaring(openers=[shelf(toy=TOY)], families=[ToyFamily()], schemes=[PLAIN]))
    return made
