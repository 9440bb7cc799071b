"""Qwen3.5, dense and with experts, in both layouts and against both oracles."""

from __future__ import annotations

from phyla.testing.family import FamilyContract
from phyla.testing.parity import MlxLmParityContract
from phyla.testing.tiny.qwen35 import qwen35_config
from phyla_qwen35 import Qwen35Family

DENSE = qwen35_config()
EXPERTS = qwen35_config(with_experts=True)


class Qwen35:
    family = Qwen35Family()


class TestDense(Qwen35, FamilyContract):
    config = DENSE
    reference_bound = 2e-5


class TestExperts(Qwen35, FamilyContract):
    config = EXPERTS
    reference_bound = 2e-5


class TestDenseParity(Qwen35, MlxLmParityContract):
    config = DENSE


class TestExpertsParity(Qwen35, MlxLmParityContract):
    config = EXPERTS
