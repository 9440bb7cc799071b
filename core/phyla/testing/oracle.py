"""Independent answers: the same model folder through mlx-lm or transformers, in this process.

Bitwise comparisons need both sides in one process, on one BLAS with a fixed number of threads, loaded before mlx is
imported (`phyla.backend.blas.load_fast_blas`): on MLX's reference BLAS all variants agree and nothing is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from phyla.testing.stepping import ORACLE_CHUNK, GreedyRun, chunk_list


@dataclass(frozen=True)
class QuantisedCache:
    """mlx-lm's own arguments for quantised caches."""

    bits: int
    group_size: int = 64
    start: int = 0


class MlxLmOracle:
    """The class mlx-lm has for this `model_type`, its own loader, its own caches.

    Args:
        folder: with config.json and model*.safetensors.
    """

    def __init__(self, folder: Path) -> None:
        from mlx_lm.utils import load_model

        self.folder = folder
        self.model, self.config = load_model(folder)

    def built(self, prompt: Sequence[int]) -> mx.array:
        """(1, 1, V): logits of one step behind a prompt, unevaluated: the graph that the host builds for it."""
        from mlx_lm.models.cache import make_prompt_cache

        cache = make_prompt_cache(self.model)
        mx.eval(self.model(mx.array([prompt]), cache=cache), [layer.state for layer in cache])
        logits: mx.array = self.model(mx.array([prompt[-1:]]), cache=cache)
        return logits

    def greedy(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        *,
        chunk: int = ORACLE_CHUNK,
        quantised: QuantisedCache | None = None,
    ) -> GreedyRun:
        """Logits and tokens as `mlx_lm.generate.generate_step` computes them without a sampler."""
        from mlx_lm.models.cache import make_prompt_cache

        cache, run = make_prompt_cache(self.model), GreedyRun()
        start = 0
        *chunks, last = chunk_list(len(prompt), chunk)
        for size in chunks:
            self.model(mx.array(list(prompt[start : start + size]))[None], cache=cache)
            _quantise(cache, quantised)
            mx.eval([layer.state for layer in cache])
            start += size
        logits = self._last_logits(prompt[start : start + last], cache)
        token = run.record(logits)
        for _ in range(num_tokens - 1):
            _quantise(cache, quantised)
            token = run.record(self._last_logits([token], cache))
        return run

    def generated(
        self, prompt: Sequence[int], num_tokens: int, *, chunk: int = ORACLE_CHUNK, **arguments: Any
    ) -> tuple[list[int], list[mx.array]]:
        """Tokens and log-probabilities from mlx-lm's own `generate_step`, with arguments of its own."""
        from mlx_lm.generate import generate_step

        steps = generate_step(
            mx.array(list(prompt)), self.model, max_tokens=num_tokens, prefill_step_size=chunk, **arguments
        )
        tokens, logprobs = zip(*steps, strict=True)
        return [int(token) for token in tokens], list(logprobs)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """(L, V) in one forward, without a cache."""
        return np.array(self.model(mx.array(list(tokens))[None])[0].astype(mx.float32))

    def text(self, prompt: Sequence[int], num_tokens: int) -> str:
        """Greedy text by mlx-lm's own loop and detokeniser, for folders with a tokenizer."""
        from mlx_lm import generate
        from mlx_lm.tokenizer_utils import load

        return str(generate(self.model, load(self.folder), list(prompt), max_tokens=num_tokens))

    def _last_logits(self, tokens: Sequence[int], cache: list[object]) -> mx.array:
        logits: mx.array = self.model(mx.array(list(tokens))[None], cache=cache)[0, -1]
        mx.eval(logits)
        return logits


def _quantise(cache: list[object], quantised: QuantisedCache | None) -> None:
    """Where `generate_step` does it: after each forward, before anything else."""
    if quantised is None:
        return
    from mlx_lm.generate import maybe_quantize_kv_cache

    convert: Callable[..., None] = maybe_quantize_kv_cache
    convert(cache, quantised.start, quantised.group_size, quantised.bits)


class TransformersOracle:
    """The class transformers has for this `model_type`, in float32 with unfused attention.

    Args:
        folder: with config.json and safetensors, unquantised.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.model.train(False)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """(L, V) in one forward."""
        import torch

        with torch.no_grad():
            out = self.model(torch.tensor([list(tokens)])).logits[0]
        return np.asarray(out.numpy())
