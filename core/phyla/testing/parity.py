"""The contract of exactness: alone on the exact route, bit for bit what mlx-lm computes from the same files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx
import pytest

from phyla.checkpoint.folder import FolderCheckpoint
from phyla.testing.family import random_tokens
from phyla.testing.oracle import MlxLmOracle
from phyla.testing.stepping import ORACLE_CHUNK, Stepper, greedy, load_options
from phyla.testing.tiny import tiny_checkpoint

if TYPE_CHECKING:
    from phyla.model.binding import ModelBinding
    from phyla.model.family import Family

PROMPT_LENGTHS = (1, 2, 17, 300)
"""One token, a chunk and a tail, and buffers that grow."""

NUM_STEPS = 48


class MlxLmParityContract:
    """Logits and greedy tokens of a tiny model equal mlx-lm's arrays exactly.

    Means something only with a fast BLAS loaded before mlx, on a fixed number of threads.
    """

    family: ClassVar[Family]
    config: ClassVar[Mapping[str, Any]]
    shapes: ClassVar[Mapping[str, tuple[int, ...]] | None] = None
    """Tensor names and shapes, for a layout that `phyla.testing.tiny` doesn't write by itself."""

    dtype: ClassVar[str] = "float32"
    """Of the stored weights and of the activations."""

    chunk: ClassVar[int] = ORACLE_CHUNK
    """Prefill chunk of both sides; smaller for forms that are slow on a CPU."""

    num_extra_operations: ClassVar[int] = 0
    """How many more a decode step may be built of than mlx-lm's: views, where a binding can't do without."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("parity") / "tiny"
        return tiny_checkpoint(folder, cls.config, tokenizer=False, dtype=cls.dtype, shapes=cls.shapes)

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, folder: Path) -> MlxLmOracle:
        return MlxLmOracle(folder)

    @pytest.fixture(scope="class")
    @classmethod
    def binding(cls, folder: Path) -> ModelBinding:
        checkpoint = FolderCheckpoint.open(folder)
        return cls.family.bind(checkpoint, cls.family.describe(checkpoint), load_options(cls.dtype))

    @pytest.mark.parametrize("num_tokens", PROMPT_LENGTHS)
    def test_logits_and_greedy_tokens_equal_mlx_lm_bit_for_bit(
        self, oracle: MlxLmOracle, binding: ModelBinding, num_tokens: int
    ) -> None:
        self._compare(oracle, binding, num_tokens)

    def test_a_prompt_longer_than_a_chunk_equals_mlx_lm_bit_for_bit(
        self, oracle: MlxLmOracle, binding: ModelBinding
    ) -> None:
        self._compare(oracle, binding, self.chunk + 12)

    def test_a_decode_step_is_no_more_operations_than_mlx_lms(self, oracle: MlxLmOracle, binding: ModelBinding) -> None:
        # On a fast device a small model is as fast as the host builds and starts its steps.
        prompt = random_tokens(3, binding.facts.vocab_size)
        ours, theirs = num_operations(Stepper(binding).built(prompt)), num_operations(oracle.built(prompt))
        assert ours <= theirs + self.num_extra_operations

    def _compare(self, oracle: MlxLmOracle, binding: ModelBinding, num_tokens: int) -> None:
        prompt = random_tokens(num_tokens, binding.facts.vocab_size, seed=num_tokens)
        ours = greedy(binding, prompt, NUM_STEPS, chunk=self.chunk)
        theirs = oracle.greedy(prompt, NUM_STEPS, chunk=self.chunk)
        assert ours.tokens == theirs.tokens
        assert mx.array_equal(mx.stack(ours.logits), mx.stack(theirs.logits))


def num_operations(array: mx.array) -> int:
    """Operations behind an array that wasn't evaluated."""
    dot = io.StringIO()
    mx.export_to_dot(dot, array)
    return dot.getvalue().count("label =")
