"""One side of `starter_vs_mlx_lm`, in a process of its own: `python -m benchmarks.starter_side phyla|mlx_lm REFERENCE`.

Answers each line on standard input with one of JSON: seconds to the first token and seconds of the tokens after it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NUM_PROMPT_TOKENS = 512
NUM_DECODED = 64

# Ids of ordinary words: past the special tokens of every vocabulary.
FIRST_ID, LAST_ID = 1000, 40000


def main() -> None:
    side, reference = sys.argv[1:3]
    tokens = phyla_tokens(reference) if side == "phyla" else mlx_lm_tokens(reference)
    dice = random.Random(0)
    measured(tokens, [dice.randrange(FIRST_ID, LAST_ID) for _ in range(16)])
    print("ready", flush=True)
    for _line in sys.stdin:
        # Other ids every time: a side that remembers prompts must not be measured remembering.
        prompt = [dice.randrange(FIRST_ID, LAST_ID) for _ in range(NUM_PROMPT_TOKENS)]
        print(json.dumps(measured(tokens, prompt)), flush=True)


def measured(tokens: Callable[[list[int]], Iterator[object]], prompt: list[int]) -> dict[str, float]:
    started = time.perf_counter()
    stream = tokens(prompt)
    next(stream)
    first = time.perf_counter()
    num_decoded = sum(1 for _token in stream)
    last = time.perf_counter()
    assert num_decoded == NUM_DECODED, f"{num_decoded} tokens came instead of {NUM_DECODED}"
    return {"prefill": len(prompt) / (first - started), "decode": num_decoded / (last - first)}


def phyla_tokens(reference: str) -> Callable[[list[int]], Iterator[object]]:
    import phyla

    model = phyla.load(reference)

    def tokens(prompt: list[int]) -> Iterator[object]:
        pieces = model.stream(prompt, max_tokens=NUM_DECODED + 1, ignore_eos=True)
        return (piece for piece in pieces if piece.token_id is not None)

    return tokens


def mlx_lm_tokens(reference: str) -> Callable[[list[int]], Iterator[object]]:
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model = load_model(Path(reference))[0]

    def tokens(prompt: list[int]) -> Iterator[object]:
        for token, _logprobs in generate_step(mx.array(prompt), model, max_tokens=NUM_DECODED + 1):
            yield token

    return tokens


if __name__ == "__main__":
    main()
