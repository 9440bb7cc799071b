"""What each way of storing keys and values does to a model's predictions: perplexity and KL divergence against plain.

The text is cut into windows; each is read in chunks that attend to what is stored, so that every prediction but a
window's first is made from encoded keys and values. All schemes read a chunk before any reads the next: nothing but
running sums is kept.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measurement import versions, write_result

TEXT = Path(__file__).parent / "kv_quality.txt"
"""Prose of this project's own pages as they were when it was written."""

WINDOW_TOKENS = 512
CHUNK_TOKENS = 128

# Affine storage with its fused form: the same codes, and affordable on a CPU.
SPECS = (
    "affine:8+fused",
    "affine:4+fused",
    *(f"turboquant:{bits}" for bits in ("k8v8", "k8v4", "k8v3", "k8v2", "k5v3", "k4v3", "k4v2", "k2v3")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192, help="how much of the text is read")
    parser.add_argument("--model", default="starter", help="another model")
    options = parser.parse_args()
    reader = Reader(options.model)
    for start in range(0, options.tokens, WINDOW_TOKENS):
        reader.read_window(reader.ids[start : min(start + WINDOW_TOKENS, options.tokens)])
        write_result("kv_quality", f"--tokens {options.tokens}", reader.result())
        print(reader.result()["schemes"], flush=True)


@dataclass
class Sums:
    """Of one scheme, over all predictions so far."""

    bytes_per_token: float
    surprise: float = 0.0
    """Negative log-likelihood of the text, in nats."""

    divergence: float = 0.0
    """KL from plain storage's predictions, in nats."""

    num_same: int = 0
    """Predictions whose likeliest token is plain storage's."""


@dataclass
class Reader:
    """Reads the text with every scheme."""

    reference: str
    num_predicted: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from phyla.backend.detect import detect
        from phyla.plugins import discover
        from phyla.registry import STARTER_NAME, ModelsSettings, fetch_starter
        from phyla.selection import resolve, select
        from phyla.settings import load_settings

        manager, backend = discover(), detect()
        self.parts = {}
        for spec in ("plain", *SPECS):
            settings = load_settings(manager.settings_sections(), flags={"--kv-scheme": spec}, env=os.environ)
            if self.reference == STARTER_NAME:
                self.reference = str(fetch_starter(settings.section(ModelsSettings), print))
            plan = select(self.reference, manager, settings, backend)
            self.parts[spec] = resolve(plan, manager, settings)
            layers = zip(plan.facts.layout, self.parts[spec].schemes, strict=True)
            total = sum(one.value.bytes_per_token(layer, "bfloat16") for layer, one in layers if layer.owns_state)
            self.sums[spec] = Sums(total)
        self.binding = self.parts["plain"].bind()
        self.ids = self.parts["plain"].checkpoint.tokenizer().encode(TEXT.read_text("utf-8"))

    def read_window(self, ids: Sequence[int]) -> None:
        from phyla.kv.group import LoopGroup
        from phyla.kv.row_state import RowState

        layout = self.binding.facts.layout
        groups = {}
        for spec, parts in self.parts.items():
            groups[spec] = LoopGroup(layout)
            groups[spec].seat(RowState.fresh(layout, parts.new_state))
        # One token first: a row's first step is computed on plain keys and values.
        edges = [0, 1, *range(CHUNK_TOKENS, len(ids), CHUNK_TOKENS), len(ids)]
        for start, end in pairwise(edges):
            self._read_chunk(groups, ids, start, end)

    def result(self) -> dict[str, Any]:
        return {
            "versions": versions("phyla", "mlx", "numpy"),
            "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
            "num_predicted": self.num_predicted,
            "window_tokens": WINDOW_TOKENS,
            "schemes": {spec.removesuffix("+fused"): self._summary(spec) for spec in self.sums},
        }

    def _read_chunk(self, groups: Mapping[str, Any], ids: Sequence[int], start: int, end: int) -> None:
        import mlx.core as mx

        following = ids[start + 1 : end + 1]
        plain = self._log_probabilities(groups["plain"], ids[start:end], start)[: len(following)]
        rows, targets = mx.arange(len(following)), mx.array(following, dtype=mx.int32)
        for spec, group in groups.items():
            got = plain
            if spec != "plain":
                got = self._log_probabilities(group, ids[start:end], start)[: len(following)]
            sums = self.sums[spec]
            sums.surprise -= float(got[rows, targets].sum())
            sums.divergence += float((mx.exp(plain) * (plain - got)).sum())
            sums.num_same += int((mx.argmax(got, axis=-1) == mx.argmax(plain, axis=-1)).sum())
        self.num_predicted += len(following)

    def _log_probabilities(self, group: Any, ids: Sequence[int], start: int) -> Any:
        """(L, V) in float32, after each of the ids."""
        import mlx.core as mx
        from phyla.model.step import StepInput

        step = StepInput(
            ids=mx.array([list(ids)], dtype=mx.int32),
            num_real=(len(ids),),
            offsets=(start,),
            wanted=mx.arange(len(ids), dtype=mx.int32),
        )
        logits = self.binding.head(self.binding.forward(step, group.states()).hidden)[0].astype(mx.float32)
        normalised = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(normalised, *(array for state in group.states() for array in state.evaluate()))
        return normalised

    def _summary(self, spec: str) -> dict[str, float]:
        sums, plain, count = self.sums[spec], self.sums["plain"], self.num_predicted
        perplexity, reference = math.exp(sums.surprise / count), math.exp(plain.surprise / count)
        return {
            "bytes_per_token": sums.bytes_per_token,
            "times_smaller": round(plain.bytes_per_token / sums.bytes_per_token, 3),
            "perplexity": round(perplexity, 4),
            "perplexity_change_percent": round((perplexity / reference - 1) * 100, 3),
            "mean_kl_nats": round(sums.divergence / count, 6),
            "same_choice_percent": round(sums.num_same / count * 100, 2),
        }


if __name__ == "__main__":
    main()
