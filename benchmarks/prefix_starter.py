"""What prefix reuse saves on the starter: the second turn of a long conversation, and sessions with one system prompt.

A pair is one conversation: its first turn is read from the start, its second goes on from there. The time of a lookup
is taken from an index of a thousand prefixes of 8192 tokens each.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import phyla
from phyla.engine.answers import Answers, Piece
from phyla.kv.prefix import PrefixIndex, PrefixNamespace, Published
from phyla.kv.row_state import RowState
from phyla.library import Model
from phyla.request import Rendered, Request

from benchmarks.measurement import interval_95, versions, write_result

CONVERSATION_TOKENS = 2000
SYSTEM_TOKENS = 1500
NUM_SESSIONS = 10
ANSWER_TOKENS = 16
NUM_ENTRIES, ENTRY_TOKENS = 1000, 8192
WORDS = ("river", "stone", "light", "garden", "seven", "window", "paper", "north", "winter", "music", "table", "green")
NAMESPACE = PrefixNamespace("benchmark", "plain", "benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="conversations of two turns")
    pairs = parser.parse_args().pairs
    with phyla.load("starter") as model:
        bench = Bench(model)
        bench.turns(seed=-1, num_tokens=100)
        samples = []
        for number in range(pairs):
            samples.append(bench.turns(number, CONVERSATION_TOKENS))
            print(f"pair {number + 1}: {samples[-1]}", flush=True)
        sessions = bench.sessions()
    print(sessions, flush=True)
    ratios = [one["cold_seconds"] / one["reused_seconds"] for one in samples]
    low, high = interval_95(ratios)
    result = {
        "versions": versions("phyla", "mlx", "numpy"),
        "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
        "summary": {
            "conversation_tokens": CONVERSATION_TOKENS,
            "cold_seconds": round(statistics.fmean(one["cold_seconds"] for one in samples), 2),
            "reused_seconds": round(statistics.fmean(one["reused_seconds"] for one in samples), 3),
            "ratio": round(statistics.fmean(ratios), 1),
            "ratio_interval_95": [round(low, 1), round(high, 1)],
            "pairs": pairs,
            "lookup_ms": round(1000 * lookup_seconds(), 4),
        },
        "sessions": sessions,
        "samples": samples,
    }
    write_result("prefix_starter", f"--pairs {pairs}", result)


@dataclass(frozen=True)
class Timed:
    """An answer, and the seconds until its first token."""

    seconds: float
    text: str
    num_cached: int


class Bench:
    """Requests to a model of this process."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._answers = Answers(model.engine)
        self._numbers = itertools.count()

    def turns(self, seed: int, num_tokens: int) -> dict[str, float]:
        """Seconds to the first token of both turns of a conversation: the first is read whole, the second goes on."""
        self._model.engine.clear_prefix_cache()
        opening = {"role": "user", "content": self._prose(seed, num_tokens)}
        first_prompt = self._chat(opening)
        first = self._timed(self._request(first_prompt, ANSWER_TOKENS))
        said = {"role": "assistant", "content": first.text}
        second_prompt = self._chat(opening, said, {"role": "user", "content": "Which word comes first?"})
        second = self._timed(self._request(second_prompt, 1))
        return {
            "cold_seconds": first.seconds,
            "reused_seconds": second.seconds,
            "num_first_prompt_tokens": len(first_prompt.ids),
            "num_second_prompt_tokens": len(second_prompt.ids),
            "num_cached_tokens": second.num_cached,
        }

    def sessions(self) -> dict[str, int]:
        """What ten sessions compute that arrive together with one system prompt."""
        self._model.engine.clear_prefix_cache()
        system = {"role": "system", "content": self._prose(99, SYSTEM_TOKENS)}
        prompts = [
            self._chat(system, {"role": "user", "content": f"Session {index}: hello."}) for index in range(NUM_SESSIONS)
        ]
        before = self._prefilled()
        streams = [self._answers.stream(self._request(prompt, 4)) for prompt in prompts]
        usages = [_last(stream).usage for stream in streams]
        return {
            "num_sessions": NUM_SESSIONS,
            "num_prompt_tokens": sum(len(prompt.ids) for prompt in prompts),
            "num_shared_tokens": _num_common([prompt.ids for prompt in prompts]),
            "num_prefilled_tokens": self._prefilled() - before,
            "num_cached_tokens": sum(usage.num_cached_tokens for usage in usages if usage is not None),
        }

    def _prefilled(self) -> int:
        return int(self._model.engine.stats()["tokens"]["prefilled"])

    def _timed(self, request: Request) -> Timed:
        began = time.perf_counter()
        stream = self._answers.stream(request)
        opening = next(stream)
        seconds = time.perf_counter() - began
        pieces = [opening, *stream]
        usage = pieces[-1].usage
        assert usage is not None
        text = "".join(piece.text for piece in pieces if not piece.special)
        return Timed(round(seconds, 4), text, usage.num_cached_tokens)

    def _chat(self, *messages: dict[str, str]) -> Rendered:
        return self._model.renderer.render_chat(messages)

    def _request(self, rendered: Rendered, max_tokens: int) -> Request:
        return Request(f"benchmark-{next(self._numbers)}", rendered, max_tokens=max_tokens)

    def _prose(self, seed: int, num_tokens: int) -> str:
        """Words that come to about so many tokens."""
        chooser = random.Random(seed)
        words = [chooser.choice(WORDS) for _ in range(2 * num_tokens)]
        ids = self._model.tokenizer.encode(" ".join(words))[:num_tokens]
        return self._model.tokenizer.decode(ids)


def lookup_seconds() -> float:
    """Median time of a lookup in a full index; the hit's row isn't made."""
    # Only now: it imports mlx, and a fast BLAS has to be there before.
    from phyla.testing.scripted.state import ScriptState, script_layer

    index = PrefixIndex(1 << 40)
    shared = list(range(ENTRY_TOKENS // 2))
    prompts = [[*shared, number, *range(ENTRY_TOKENS - len(shared) - 1)] for number in range(NUM_ENTRIES)]
    for prompt in prompts:
        row = RowState({"target": [ScriptState(script_layer(), prompt)]}, prompt)
        index.publish(NAMESPACE, Published(row, has_finished=True))
    taken = []
    for prompt in prompts:
        began = time.perf_counter()
        hit = index.lookup(NAMESPACE, prompt).hit
        taken.append(time.perf_counter() - began)
        assert hit is not None
        hit.release()
    return statistics.median(taken)


def _last(stream: Iterator[Piece]) -> Piece:
    *_, last = stream
    return last


def _num_common(prompts: Sequence[Sequence[Any]]) -> int:
    return next(
        (at for at, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1),
        min(len(prompt) for prompt in prompts),
    )


if __name__ == "__main__":
    main()
