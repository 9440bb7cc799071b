"""Storage by `kv_config.json` computes what mlx-optiq computes, by goldens that it made.

mlx-optiq pins older libraries than ours, so it runs in an environment of its own (`optiq/make_goldens.py`) on the same
seeded model. Its conversions and its attention with `--no-fused-kv` are ours bit for bit, over rings and full layers
with bits of their own. Its fused attention is another order of additions than ours and is held to a bound.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest
from phyla.checkpoint import FolderCheckpoint
from phyla.kv import LayerSpec, LayerState
from phyla.kv.plain import PLAIN
from phyla.testing.close import assert_close
from phyla.testing.stepping import TEST_BACKEND, GreedyRun, greedy, load_options
from phyla_universal import UniversalFamily

from tests.kvschemes.affine.optiq.checkpoint import DTYPES, write_model
from tests.kvschemes.affine.optiq.make_goldens import CHUNK, FUSED, NUM_TOKENS, PROMPT, UNFUSED
from tests.kvschemes.affine.test_affine_states import scheme_of

GOLDENS = Path(__file__).parent / "optiq" / "goldens.safetensors"
ARRAYS, FACTS = mx.load(str(GOLDENS), return_metadata=True)
ELSEWHERE = 0.25
"""Of a log-probability in bfloat16, where MLX was built for another processor than the goldens were made on."""

FUSED_BOUND = 0.125
"""Two steps of bfloat16 at the log-probabilities of a uniform guess."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("optiq")
    for dtype in DTYPES:
        write_model(folder, dtype)
    return folder


@pytest.fixture(scope="module")
def tolerated() -> float:
    """MLX's bfloat16 products on a CPU are its own loops, not the BLAS library's: one build, one result."""
    here = version("mlx"), f"{platform.system()} {platform.machine()}"
    is_same_build = here == (FACTS["mlx"], FACTS["platform"]) and not mx.metal.is_available()
    return 0.0 if is_same_build else ELSEWHERE


def run(models: Path, dtype: str, spec: str | None) -> GreedyRun:
    """Of the model stored as the spec says; None is plain."""
    checkpoint, family = FolderCheckpoint.open(models / dtype), UniversalFamily()
    facts = family.describe(checkpoint)
    following = None if spec is None else scheme_of(spec).for_checkpoint
    scheme = PLAIN if following is None else following(checkpoint, facts.layout)

    def new_state(layer: LayerSpec) -> LayerState:
        return scheme.create(layer, TEST_BACKEND, dtype)

    binding = family.bind(checkpoint, facts, load_options(dtype))
    return greedy(binding, PROMPT, NUM_TOKENS, chunk=CHUNK, new_state=new_state)


def logprobs(got: GreedyRun) -> mx.array:
    """(L, V), normalised as mlx-lm's loop does it."""
    return mx.stack([logits - mx.logsumexp(logits, keepdims=True) for logits in got.logits])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_goldens_are_of_this_model(models: Path, dtype: str) -> None:
    weights = (models / dtype / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == FACTS[f"weights_{dtype}"]


@pytest.mark.parametrize(("case", "spec"), [("bfloat16", "config+unfused"), ("bfloat16_start", "configs20+unfused")])
def test_bfloat16_has_the_bits_of_mlx_optiq(models: Path, tolerated: float, case: str, spec: str) -> None:
    got = logprobs(run(models, UNFUSED[case][0], spec))
    assert_close(got, ARRAYS[case], atol=tolerated, why="nothing, on the build that made the goldens")


def test_float32_differs_by_the_blas_library_alone(models: Path) -> None:
    got = run(models, "float32", "config+unfused")
    assert got.tokens == json.loads(FACTS["tokens_float32"])
    assert_close(logprobs(got), ARRAYS["float32"], atol=1e-5, why="made on MLX's own BLAS, tested on a fast one")


def test_fused_attention_is_as_close_as_the_two_forms_of_mlx_optiq_are(models: Path) -> None:
    [(case, (dtype, _))] = FUSED.items()
    got = logprobs(run(models, dtype, "config"))
    assert_close(got, ARRAYS[case], atol=FUSED_BOUND, why="tiles of codes there, dequantised columns here")
    assert_close(ARRAYS["bfloat16"], ARRAYS[case], atol=FUSED_BOUND, why="its own other order of additions")


@pytest.mark.parametrize("case", UNFUSED)
def test_plain_storage_computes_something_else(models: Path, case: str) -> None:
    """Otherwise agreeing would say nothing."""
    got = logprobs(run(models, UNFUSED[case][0], None))
    assert mx.abs(got - ARRAYS[case]).max().item() > 0.05
