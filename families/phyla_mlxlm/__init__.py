"""The bridge to mlx-lm: whatever architecture it implements runs here too, as its own class computes it.

For models that no other family knows. The whole model is one step, and its prompt cache one layer's state: nothing of
it is cut, quantised in the cache or drafted for from inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla import Claim, Family, Settings, hookimpl

from phyla_mlxlm.installed import InstalledMlxLm

if TYPE_CHECKING:
    from phyla import Baseline, Checkpoint, LoadOptions, ModelBinding, ModelFacts

phyla_api = 1

INSTALL = "mlx-lm isn't installed, which may know it: pip install 'phyla[mlxlm]'"


class MlxLmFamily:
    """Claims what the installed mlx-lm has a class for; any family of its own goes first.

    Args:
        installed: where mlx-lm is, None for nowhere; found without importing it.
    """

    name = "mlxlm"

    def __init__(self, installed: InstalledMlxLm | None) -> None:
        self.installed = installed

    def claim(self, config: Mapping[str, Any]) -> Claim:
        known = self.installed is not None and self.installed.module_of(config) is not None
        return Claim.FALLBACK if known else Claim.NONE

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        """What a user can do about a model that isn't claimed."""
        return INSTALL if self.installed is None else None

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        from phyla_mlxlm.describe import describe

        return describe(checkpoint, self.installed)

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        from phyla_mlxlm.binding import load_binding

        return load_binding(checkpoint, facts, options)


@hookimpl
def phyla_families(settings: Settings) -> list[Family]:
    return [MlxLmFamily(InstalledMlxLm.find())]


@hookimpl
def phyla_baselines(settings: Settings) -> list[Baseline]:
    from phyla_mlxlm.baseline import MlxLmBaseline

    return [MlxLmBaseline(InstalledMlxLm.find())]
