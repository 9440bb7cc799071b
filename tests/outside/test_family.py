"""The outside family keeps the contract that the families in the box keep, against an oracle of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from phyla.testing.family import FamilyContract

from tests.outside.abacus_model import CONFIG, numpy_logits, shapes

sys.path.insert(0, str(Path(__file__).parent / "phyla-abacus"))

from phyla_abacus import AbacusFamily


class TestAbacus(FamilyContract):
    family = AbacusFamily()
    config = CONFIG
    shapes = shapes()

    def reference(self, folder: Path, tokens: list[int]) -> np.ndarray:
        return numpy_logits(folder, tokens)
