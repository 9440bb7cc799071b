"""The models on this machine beside the served one, as `/v1/models` lists them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from phyla.model.family import Claim, Family
from phyla.registry import LocalModel

KEPT_SECONDS = 30.0


class ListsModels(Protocol):
    """Whoever knows of further models. Thread-safe; reads the disk, so not for the event loop."""

    def entries(self) -> Sequence[Mapping[str, Any]]: ...


class NoOtherModels:
    """For servers that were handed their model."""

    def entries(self) -> Sequence[Mapping[str, Any]]:
        return ()


class LocalLibrary:
    """What some family here could serve; looked for anew every half minute."""

    def __init__(
        self,
        scan: Callable[[], Sequence[LocalModel]],
        families: Sequence[Family],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scan = scan
        self._families = families
        self._now = now
        self._known: Sequence[Mapping[str, Any]] = ()
        self._known_until: float | None = None

    def entries(self) -> Sequence[Mapping[str, Any]]:
        if self._known_until is None or self._now() >= self._known_until:
            self._known = self._found()
            self._known_until = self._now() + KEPT_SECONDS
        return self._known

    def _found(self) -> Sequence[Mapping[str, Any]]:
        try:
            usable = [one for one in self._scan() if one.is_current and one.is_complete and not one.is_drafter]
            entries = [entry for one in usable if (entry := self._entry(one)) is not None]
        except OSError as error:
            # The served model is listed all the same.
            logging.getLogger("phyla.server").warning("local models can't be listed: %s", error.strerror)
            return ()
        by_id: dict[str, Mapping[str, Any]] = {}
        for entry in entries:
            by_id.setdefault(entry["id"], entry)
        return list(by_id.values())

    def _entry(self, model: LocalModel) -> dict[str, Any] | None:
        claim = max((family.claim(model.config) for family in self._families), default=Claim.NONE)
        if model.source != "gguf" and claim is Claim.NONE:
            return None
        # What is in a GGUF file is known once it is opened.
        tier = None if model.source == "gguf" else "targeted" if claim >= Claim.CLOSE else "generic"
        return {
            "id": model.model_id,
            "object": "model",
            "created": int(model.path.stat().st_mtime),
            "owned_by": "phyla",
            "vision": False,
            "tier": tier,
        }
