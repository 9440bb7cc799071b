"""Phyla's exact route against mlx-lm: one row, random weights, the same files, the same process, in pairs.

    python -m benchmarks.exact_route --model llama-1b --pairs 10

Also says whether the greedy tokens were equal, and how fast 8 and 32 rows are together.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import phyla
from phyla.backend.blas import load_fast_blas

from benchmarks.measurement import interval_95, versions, write_result

NUM_PROMPT = 512
NUM_DECODED = 128

_LLAMA = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

MODELS: Mapping[str, dict[str, Any]] = {
    "tiny": _LLAMA
    | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    # The layers of a 1B and next to no numbers: what is left is what the host does to build and start a step.
    "host-bound": _LLAMA
    | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 16, "vocab_size": 2048}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
    "llama-0.5b": _LLAMA
    | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "vocab_size": 49152}
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64},
    "llama-1b": _LLAMA
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128256}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64},
    "llama-8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "qwen35-0.8b": {
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "vocab_size": 151936,
            "linear_num_value_heads": 16,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "max_position_embeddings": 8192,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="llama-0.5b")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantise both sides' files")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 32])
    arguments = parser.parse_args()
    load_fast_blas()
    name = arguments.model + (f"-{arguments.bits}bit" if arguments.bits else "")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        write_folder(folder, MODELS[arguments.model], arguments.bits)
        result = measure(folder, arguments.pairs, arguments.rows)
    flags = f"--model {arguments.model}" + (f" --bits {arguments.bits}" if arguments.bits else "")
    write_result("exact_route", f"{flags} --pairs {arguments.pairs}", result, suffix=name)


def write_folder(folder: Path, config: Mapping[str, Any], bits: int | None) -> None:
    """A checkpoint of seeded random bfloat16 weights, drawn by mlx on its device: numpy would take minutes for 8B."""
    import json

    import mlx.core as mx
    from phyla.testing.tiny.qwen35 import converted_shapes
    from phyla.testing.tiny.shapes import tensor_shapes
    from phyla.testing.tiny.tokenizer import write_tokenizer

    folder.mkdir()
    shapes = converted_shapes(config) if "text_config" in config else tensor_shapes(config)
    tensors: dict[str, mx.array] = {}
    for seed, (tensor, shape) in enumerate(shapes.items()):
        drawn = mx.random.normal(shape, key=mx.random.key(seed)) * 0.02
        array = (drawn + 1 if len(shape) == 1 else drawn).astype(mx.bfloat16)
        if tensor.endswith("A_log"):
            array = mx.abs(drawn).astype(mx.float32)
        if bits and len(shape) == 2:
            path = tensor.removesuffix(".weight")
            packed = mx.quantize(array, group_size=64, bits=bits)
            tensors |= {f"{path}.{part}": one for part, one in zip(("weight", "scales", "biases"), packed, strict=True)}
        else:
            tensors[tensor] = array
        mx.eval(tensors)
    section = {"quantization": {"group_size": 64, "bits": bits}} if bits else {}
    (folder / "config.json").write_text(json.dumps({**config, **section}))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    write_tokenizer(folder, 512)


def measure(folder: Path, num_pairs: int, row_counts: Sequence[int]) -> dict[str, Any]:
    prompt = [3 + (7 * index) % 500 for index in range(NUM_PROMPT)]
    theirs = mlx_lm_tokens(folder, NUM_DECODED + 1)
    options = {"prompt_cache": "0", "batch": max([8, *row_counts]), "weights": "stored", "dtype": "bfloat16"}
    samples: list[dict[str, Any]] = []
    with phyla.load(str(folder), **options) as model:

        def ours(ids: list[int]) -> Iterator[int]:
            for piece in model.stream(ids, max_tokens=NUM_DECODED + 1, ignore_eos=True):
                if piece.token_id is not None:
                    yield piece.token_id

        _timed(ours, prompt), _timed(theirs, prompt)
        for pair in range(num_pairs):
            sides = (("phyla", ours), ("mlx_lm", theirs))
            timed = {name: _timed(side, prompt) for name, side in (sides if pair % 2 else sides[::-1])}
            same = timed["phyla"].pop("tokens") == timed["mlx_lm"].pop("tokens")
            samples.append({**timed, "same_tokens": same})
            print(samples[-1], flush=True)
        together = {str(count): _together(model, prompt, count) for count in row_counts}
        print(together, flush=True)
        chosen = {"family": model.plan.family.name, "device": model.plan.backend.device_name}
    return {
        "versions": versions("phyla", "mlx", "mlx-lm"),
        "chosen": chosen,
        "num_prompt_tokens": NUM_PROMPT,
        "num_decoded_tokens": NUM_DECODED,
        "summary": {
            "prefill": _ratio(samples, "prefill"),
            "decode": _ratio(samples, "decode"),
            "same_tokens": all(sample["same_tokens"] for sample in samples),
            "rows_together_tokens_per_second": together,
        },
        "samples": samples,
    }


def mlx_lm_tokens(folder: Path, num_tokens: int) -> Any:
    """From a prompt's ids to so many tokens, by mlx-lm."""
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model = load_model(folder)[0]

    def tokens(ids: list[int]) -> Iterator[int]:
        import mlx.core as mx

        for token, _logprobs in generate_step(mx.array(ids), model, max_tokens=num_tokens):
            yield int(token)

    return tokens


def _timed(side: Any, prompt: list[int]) -> dict[str, Any]:
    """Tokens per second of reading the prompt up to the first token, and of the tokens after it."""
    started = time.perf_counter()
    tokens = side(prompt)
    first = next(tokens)
    read = time.perf_counter()
    rest = list(tokens)
    ended = time.perf_counter()
    rates = {"prefill": len(prompt) / (read - started), "decode": len(rest) / (ended - read)}
    return {**{name: round(rate, 2) for name, rate in rates.items()}, "tokens": [first, *rest]}


def _together(model: phyla.Model, prompt: list[int], count: int) -> float:
    """Tokens per second of `count` rows that decode side by side, prefill left out."""

    def one(row: int) -> tuple[float, float]:
        times = [time.perf_counter() for _ in model.stream([row, *prompt], max_tokens=NUM_DECODED, ignore_eos=True)]
        return times[0], times[-1]

    with ThreadPoolExecutor(count) as pool:
        spans = list(pool.map(one, range(3, 3 + count)))
    # From when all rows run to when the first one ends, each row decodes at the shared rate.
    seconds = max(last for _, last in spans) - max(first for first, _ in spans)
    return round(count * NUM_DECODED / seconds, 1)


def _ratio(samples: Sequence[Mapping[str, Any]], what: str) -> dict[str, Any]:
    ratios = [sample["phyla"][what] / sample["mlx_lm"][what] for sample in samples]
    mean = {side: sum(sample[side][what] for sample in samples) / len(samples) for side in ("phyla", "mlx_lm")}
    return {
        "phyla": round(mean["phyla"], 1),
        "mlx_lm": round(mean["mlx_lm"], 1),
        "ratio": round(sum(ratios) / len(ratios), 3),
        "ratio_interval_95": [round(bound, 3) for bound in interval_95(ratios)],
        "pairs": len(ratios),
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
