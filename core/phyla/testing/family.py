"""The contract of a model family: subclass it, say which model, and these tests run against it.

class TestMine(FamilyContract):
    family = MyFamily()
    config = tiny_config("mine")
"""

from __future__ import annotations

import base64
import pickle
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

from phyla.checkpoint.folder import FolderCheckpoint
from phyla.errors import WeightMismatch
from phyla.model.headers import is_ignored
from phyla.testing.close import assert_close
from phyla.testing.oracle import TransformersOracle
from phyla.testing.stepping import Stepper, load_options
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint
    from phyla.model.binding import ModelBinding
    from phyla.model.facts import ModelFacts
    from phyla.model.family import Family

CONTRACT_TOKENS = 24
"""Longer than any window or selection of a tiny model, so that all of its branches are taken."""


class FamilyContract:
    """What core relies on when it runs a family's binding."""

    family: ClassVar[Family]
    config: ClassVar[Mapping[str, Any]]
    """`config.json` of a tiny model with random weights."""

    shapes: ClassVar[Mapping[str, tuple[int, ...]] | None] = None
    """Tensor names and shapes, for a `model_type` that `phyla.testing.tiny` doesn't know."""

    stepwise_bounds: ClassVar[Mapping[str, float]] = {
        "full": 2e-5,
        "sliding": 2e-5,
        "latent": 2e-5,
        "recurrent": 2e-5,
    }
    """Per layer kind: how far logits may move when the same tokens come in steps of another width, in float32."""

    reference_bound: ClassVar[float] = 5e-6
    """How far logits may be from the reference's, in float32."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("model") / "tiny"
        return tiny_checkpoint(folder, cls.config, tokenizer=False, shapes=cls.shapes)

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, folder: Path) -> Checkpoint:
        return FolderCheckpoint.open(folder)

    @pytest.fixture(scope="class")
    @classmethod
    def facts(cls, checkpoint: Checkpoint) -> ModelFacts:
        return cls.family.describe(checkpoint)

    @pytest.fixture(scope="class")
    @classmethod
    def binding(cls, checkpoint: Checkpoint, facts: ModelFacts) -> ModelBinding:
        return cls.family.bind(checkpoint, facts, load_options())

    @pytest.fixture(scope="class")
    @classmethod
    def tokens(cls, facts: ModelFacts) -> list[int]:
        return random_tokens(CONTRACT_TOKENS, facts.vocab_size)

    def reference(self, folder: Path, tokens: list[int]) -> np.ndarray:
        """(L, V) logits by an independent implementation; transformers unless a family has a better one."""
        return TransformersOracle(folder).logits(tokens)

    def stepwise_bound(self, facts: ModelFacts) -> float:
        return max(self.stepwise_bounds[layer.kind] for layer in facts.layout)

    def test_it_claims_its_own_config_and_no_unknown_one(self) -> None:
        assert self.family.claim(self.config) > 0
        assert self.family.claim({"model_type": "of nobody"}) == 0
        assert self.family.claim({}) == 0

    def test_facts_agree_with_the_binding(self, facts: ModelFacts, binding: ModelBinding, tokens: list[int]) -> None:
        logits = Stepper(binding).step([tokens])
        assert binding.facts == facts
        assert logits.shape == (1, facts.vocab_size)
        assert [layer.index for layer in facts.layout] == list(range(len(facts.layout)))
        assert all(layer.source is None or layer.source < layer.index for layer in facts.layout)

    def test_facts_are_read_without_mlx(self, folder: Path) -> None:
        family = base64.b64encode(pickle.dumps(self.family)).decode()
        program = (
            "import base64, pickle, sys\n"
            "from phyla.checkpoint.folder import FolderCheckpoint\n"
            f"family = pickle.loads(base64.b64decode('{family}'))\n"
            "family.describe(FolderCheckpoint.open(sys.argv[1]))\n"
            "print(sorted(set(sys.modules) & {'mlx', 'mlx.core', 'transformers', 'torch'}))\n"
        )
        command = [sys.executable, "-c", program, str(folder)]
        environment_path = [path for path in sys.path if path]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(environment_path)}
        )
        assert done.stdout.strip() == "[]", done.stderr

    def test_prefill_equals_stepwise_decode(self, binding: ModelBinding, facts: ModelFacts, tokens: list[int]) -> None:
        stepper = Stepper(binding)
        for token in tokens:
            stepwise = stepper.step([[token]])
        at_once = Stepper(binding).step([tokens])
        assert_close(at_once, stepwise, atol=self.stepwise_bound(facts), why="other widths, other matrix kernels")

    def test_a_prompt_in_chunks_equals_the_prompt_at_once(
        self, binding: ModelBinding, facts: ModelFacts, tokens: list[int]
    ) -> None:
        chunked = Stepper(binding).prefill(tokens, chunk=7)
        at_once = Stepper(binding).step([tokens])[0]
        assert_close(chunked, at_once, atol=self.stepwise_bound(facts), why="other widths, other matrix kernels")

    def test_rows_of_different_lengths_together_equal_each_alone(
        self, binding: ModelBinding, facts: ModelFacts, tokens: list[int]
    ) -> None:
        rows = [tokens, tokens[5:11], tokens[3:4]]
        group = Stepper(binding, num_rows=len(rows))
        prompts = group.step(rows, route="fast")
        decoded = group.step([[7], [8], [9]], route="fast")
        for index, row in enumerate(rows):
            alone = Stepper(binding)
            bound = self.stepwise_bound(facts)
            assert_close(prompts[index], alone.step([row])[0], atol=bound, why="padded and fused kernels")
            assert_close(decoded[index], alone.step([[7 + index]])[0], atol=bound, why="padded and fused kernels")

    def test_layer_spans_equal_the_whole_forward_bit_for_bit(self, binding: ModelBinding, tokens: list[int]) -> None:
        whole = Stepper(binding).step([tokens])
        in_spans = Stepper(binding).step([tokens], span=1)
        assert mx.array_equal(whole, in_spans)
        assert mx.array_equal(whole, Stepper(binding).step([tokens], span=1, resumes=True))

    def test_the_fast_route_equals_the_exact_one(
        self, binding: ModelBinding, facts: ModelFacts, tokens: list[int]
    ) -> None:
        exact, fast = Stepper(binding).step([tokens]), Stepper(binding).step([tokens], route="fast")
        assert_close(fast, exact, atol=self.stepwise_bound(facts), why="fused projections")

    def test_plain_activations_equal_compiled_ones(
        self, checkpoint: Checkpoint, binding: ModelBinding, facts: ModelFacts, tokens: list[int]
    ) -> None:
        plain = self.family.bind(checkpoint, facts, load_options(compiled_activations=False))
        got, want = Stepper(plain).step([tokens]), Stepper(binding).step([tokens])
        assert_close(got, want, atol=self.stepwise_bound(facts), why="compiled kernels may contract operations")

    def test_logits_equal_the_reference(self, folder: Path, binding: ModelBinding, tokens: list[int]) -> None:
        stepper = Stepper(binding)
        got = mx.concatenate([stepper.step([[token]]) for token in tokens])
        assert_close(got, self.reference(folder, tokens), atol=self.reference_bound, why="another implementation")

    def test_each_tensor_is_read_once(self, checkpoint: Checkpoint, facts: ModelFacts) -> None:
        recording = RecordingCheckpoint(checkpoint)
        self.family.bind(recording, facts, load_options())
        expected = [name for name in checkpoint.tensor_infos() if not is_ignored(name, facts.ignored_tensors)]
        assert sorted(recording.loaded) == sorted(expected)

    def test_missing_and_unknown_tensors_are_one_error_that_names_them(self, tmp_path: Path) -> None:
        shapes = dict(tensor_shapes(self.config) if self.shapes is None else self.shapes)
        missing = [next(iter(shapes)), list(shapes)[-1]]
        damaged = {name: shape for name, shape in shapes.items() if name not in missing}
        damaged["a.tensor.of.another.model"] = (3, 4)
        checkpoint = FolderCheckpoint.open(tiny_checkpoint(tmp_path / "damaged", self.config, shapes=damaged))
        with pytest.raises(WeightMismatch) as caught:
            self.family.bind(checkpoint, self.family.describe(checkpoint), load_options())
        assert all(name in str(caught.value) for name in (*missing, "a.tensor.of.another.model"))


class RecordingCheckpoint:
    """Passes everything on and notes which tensors were read, and in which calls."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.calls: list[list[str]] = []

    @property
    def loaded(self) -> list[str]:
        return [name for call in self.calls for name in call]

    def load(self, names: Iterable[str]) -> dict[str, mx.array]:
        asked = list(names)
        self.calls.append(asked)
        return self._checkpoint.load(asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)


def random_tokens(num_tokens: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Seeded ids clear of the special ones at the front."""
    return random.Random(seed).choices(range(8, vocab_size), k=num_tokens)
