"""Bit for bit mlx-lm with `kv_bits`: through a model, by its chunk list, in float32 and bfloat16."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from phyla.checkpoint import FolderCheckpoint
from phyla.kv import LayerSpec, LayerState
from phyla.testing.family import random_tokens
from phyla.testing.oracle import MlxLmOracle, QuantisedCache
from phyla.testing.stepping import TEST_BACKEND, greedy, load_options
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla_universal import UniversalFamily

from tests.kvschemes.affine.test_affine_states import scheme_of

CHUNK = 16
NUM_TOKENS = 12
SHAPE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
UNGROUPED = {**SHAPE, "num_key_value_heads": 2}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[SHAPE, UNGROUPED], ids=["grouped", "ungrouped"])
def folder(request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", **request.param)
    return tiny_checkpoint(tmp_path_factory.mktemp("affine") / "tiny", config, dtype=dtype)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> MlxLmOracle:
    return MlxLmOracle(folder)


@pytest.mark.parametrize("num_prompt", [1, 2, 40])
@pytest.mark.parametrize(
    ("spec", "quantised"),
    [
        ("8", QuantisedCache(8)),
        ("4", QuantisedCache(4)),
        ("4g32", QuantisedCache(4, group_size=32)),
        ("8s20", QuantisedCache(8, start=20)),
    ],
)
def test_logits_are_those_of_mlx_lms_quantised_cache(
    folder: Path, dtype: str, oracle: MlxLmOracle, spec: str, quantised: QuantisedCache, num_prompt: int
) -> None:
    prompt = random_tokens(num_prompt, 512, seed=num_prompt)
    checkpoint, family, scheme = FolderCheckpoint.open(folder), UniversalFamily(), scheme_of(spec)

    def new_state(layer: LayerSpec) -> LayerState:
        return scheme.create(layer, TEST_BACKEND, dtype)

    binding = family.bind(checkpoint, family.describe(checkpoint), load_options(dtype))
    got = greedy(binding, prompt, NUM_TOKENS, chunk=CHUNK, new_state=new_state)
    want = oracle.greedy(prompt, NUM_TOKENS, chunk=CHUNK, quantised=quantised)
    assert got.tokens == want.tokens
    assert got.logits[0].dtype == want.logits[0].dtype
    assert mx.array_equal(mx.stack(got.logits), mx.stack(want.logits))


@pytest.mark.parametrize(("bits", "start"), [(8, 0), (4, 0), (8, 20)])
def test_the_oracle_is_mlx_lms_own_loop(folder: Path, oracle: MlxLmOracle, bits: int, start: int) -> None:
    prompt = random_tokens(40, 512, seed=5)
    tokens, logprobs = oracle.generated(
        prompt, NUM_TOKENS, chunk=CHUNK, kv_bits=bits, kv_group_size=64, quantized_kv_start=start
    )
    run = oracle.greedy(prompt, NUM_TOKENS, chunk=CHUNK, quantised=QuantisedCache(bits, start=start))
    assert run.tokens == tokens
    normalised = [logits - mx.logsumexp(logits, keepdims=True) for logits in run.logits]
    assert mx.array_equal(mx.stack(normalised), mx.stack(logprobs))


def test_quantised_and_plain_logits_differ(oracle: MlxLmOracle) -> None:
    """Otherwise the tests above would prove nothing."""
    prompt = random_tokens(40, 512, seed=5)
    plain, quantised = (oracle.greedy(prompt, 4, chunk=CHUNK, quantised=one) for one in (None, QuantisedCache(4)))
    assert not mx.array_equal(mx.stack(plain.logits), mx.stack(quantised.logits))
