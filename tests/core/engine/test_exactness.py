"""Alone on the exact route: the engine's logits and tokens are mlx-lm's, bit for bit, chunks and all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from phyla.checkpoint import FolderCheckpoint
from phyla.model import ModelFacts
from phyla.model.binding import ModelBinding
from phyla.request import SamplingParams
from phyla.testing.engines import a_request, engine_spec, running
from phyla.testing.family import random_tokens
from phyla.testing.oracle import MlxLmOracle
from phyla.testing.recording import RecordingBinding
from phyla.testing.stepping import load_options
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla_universal import UniversalFamily

NUM_STEPS = 48
CONFIG = tiny_config("llama", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("exact") / "tiny", CONFIG)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> MlxLmOracle:
    return MlxLmOracle(folder)


CASES: list[tuple[int, Mapping[str, Any]]] = [
    *((num_tokens, {}) for num_tokens in (1, 2, 17, 300, 2049, 2100)),
    *((17, settings) for settings in ({"batch": 1}, {"no_pipeline": True}, {"early_first_token": False})),
]


@pytest.mark.parametrize(("num_tokens", "settings"), CASES)
def test_a_lone_request_computes_mlx_lms_bits(
    folder: Path, oracle: MlxLmOracle, num_tokens: int, settings: Mapping[str, Any]
) -> None:
    prompt = random_tokens(num_tokens, CONFIG["vocab_size"], seed=num_tokens + 1)
    tokens, recorded = greedy(folder, prompt, settings)
    expected = oracle.greedy(prompt, NUM_STEPS)
    assert tokens == expected.tokens
    ours = mx.concatenate([logits[0] for logits in recorded.logits])
    assert mx.array_equal(ours, mx.stack(expected.logits))
    assert {step.route for step in recorded.steps} == {"exact"}


def test_spans_of_layers_have_the_bits_of_one_evaluation(folder: Path, oracle: MlxLmOracle) -> None:
    """A budget of next to nothing makes every layer a piece of its own."""
    prompt = random_tokens(300, CONFIG["vocab_size"], seed=1)
    tokens, _ = greedy(folder, prompt, {"step_ms": 1e-6})
    assert tokens == oracle.greedy(prompt, NUM_STEPS).tokens


def greedy(folder: Path, prompt: list[int], settings: Mapping[str, Any]) -> tuple[list[int], RecordingBinding]:
    checkpoint = FolderCheckpoint.open(folder)
    facts: ModelFacts = UniversalFamily().describe(checkpoint)
    made: list[RecordingBinding] = []

    def bind() -> ModelBinding:
        made.append(RecordingBinding(UniversalFamily().bind(checkpoint, facts, load_options())))
        return made[0]

    spec = engine_spec(facts, bind, checkpoint.tokenizer(), settings)
    with running(spec) as (engine, log):
        engine.submit(a_request("a", prompt, NUM_STEPS, SamplingParams(ignore_eos=True)))
        return log.wait("a").ids, made[0]
