"""Decode with each KV scheme behind a long prompt, beside plain storage and beside mlx-lm where it runs.

    python -m benchmarks.kv_speed --model llama-8b --stored 16384
    python -m benchmarks.kv_speed --model smollm2-135m --dtype float32 --stored 1024 --rounds 3

Random weights, one row. On a CPU ask for float32: mlx-lm computes in what is stored, and MLX's bfloat16 is scalar code
there. Each side is loaded, warmed up, timed and let go before the next, so that one holds weights.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import phyla
from phyla.backend.blas import load_fast_blas
from phyla.cli.bench.random_model import GEOMETRIES, write_random_folder

from benchmarks.measurement import versions, write_result

NUM_DECODED = 64
SCHEMES = ("plain", "affine:8", "affine:4", "turboquant:k8v3")
MLX_LM_BITS: Mapping[str, int | None] = {"mlx-lm, plain": None, "mlx-lm, 8 bits": 8, "mlx-lm, 4 bits": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=GEOMETRIES, default="llama-0.5b")
    parser.add_argument("--stored", type=int, default=2048, help="tokens of the prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the stored weights")
    arguments = parser.parse_args()
    load_fast_blas()
    dtype = "" if arguments.dtype == "bfloat16" else f" --dtype {arguments.dtype}"
    flags = f"--model {arguments.model}{dtype} --stored {arguments.stored} --rounds {arguments.rounds}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = _written(Path(scratch), arguments.model, arguments.dtype)
        prompt = [3 + (7 * index) % 500 for index in range(arguments.stored)]
        # After every side, so that a run that is cut short leaves what it has.
        for result in measure(folder, prompt, arguments.rounds):
            write_result("kv_speed", flags, result, suffix=arguments.model)


def _written(folder: Path, model: str, dtype: str) -> Path:
    import mlx.core as mx

    write_random_folder(folder, GEOMETRIES[model], None, lambda name, weights: weights.astype(getattr(mx, dtype)))
    return folder


def measure(folder: Path, prompt: list[int], num_rounds: int) -> Iterator[dict[str, Any]]:
    """Tokens per second of decoding and seconds of reading the prompt, per scheme: medians and all samples so far."""
    samples: dict[str, list[dict[str, float]]] = {}
    refused: dict[str, str] = {}
    device = ""

    def result() -> dict[str, Any]:
        return {
            "versions": versions("phyla", "mlx", "mlx-lm"),
            "device": device,
            "num_stored_tokens": len(prompt),
            "num_decoded_tokens": NUM_DECODED,
            "summary": {
                name: {what: _median([one[what] for one in rows]) for what in rows[0]} for name, rows in samples.items()
            },
            "cannot_run": refused,
            "samples": samples,
        }

    for scheme in SCHEMES:
        with phyla.load(str(folder), kv_scheme=scheme, prompt_cache="0", batch=1) as model:
            device = model.plan.backend.device_name
            samples[scheme] = [_timed(_ours(model), prompt) for _ in range(num_rounds + 1)][1:]
        print(scheme, samples[scheme], flush=True)
        yield result()
    theirs = _mlx_lm(folder)
    for name, bits in MLX_LM_BITS.items():
        try:
            samples[name] = [_timed(theirs(bits), prompt) for _ in range(num_rounds + 1)][1:]
        except (RuntimeError, ValueError) as error:
            refused[name] = str(error).splitlines()[0][:200]
        print(name, samples.get(name, refused.get(name)), flush=True)
        yield result()


def _ours(model: phyla.Model) -> Any:
    def tokens(ids: list[int]) -> Iterator[int]:
        for piece in model.stream(ids, max_tokens=NUM_DECODED + 1, ignore_eos=True):
            if piece.token_id is not None:
                yield piece.token_id

    return tokens


def _mlx_lm(folder: Path) -> Any:
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model = load_model(folder)[0]

    def with_bits(bits: int | None) -> Any:
        def tokens(ids: list[int]) -> Iterator[int]:
            import mlx.core as mx

            for token, _logprobs in generate_step(mx.array(ids), model, max_tokens=NUM_DECODED + 1, kv_bits=bits):
                yield int(token)

        return tokens

    return with_bits


def _timed(side: Any, prompt: list[int]) -> dict[str, float]:
    started = time.perf_counter()
    tokens = side(prompt)
    next(tokens)
    read = time.perf_counter()
    num_rest = sum(1 for _ in tokens)
    seconds = time.perf_counter() - read
    return {"prefill_seconds": round(read - started, 3), "decode_tokens_per_second": round(num_rest / seconds, 2)}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
