"""The server over a real model, the starter: what HTTP adds to a token, and how soon a stream opens beside a prefill.

A stream opens with its role chunk as soon as its request is validated: parsed, put through the chat template, encoded.
Both are measured alone and while another client's long prompt is being read. The clients run in processes of their own.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from phyla.backend.blas import load_fast_blas

# First: what is imported next brings mlx, which would compute with its own BLAS.
load_fast_blas()

# ruff: noqa: E402
import phyla
from phyla import Settings
from phyla.engine.answers import Answers
from phyla.library import Model
from phyla.request import Rendered, Request, SamplingParams
from phyla.sampling.settings import SamplingSettings
from phyla_server.embedded import EmbeddedServer
from phyla_server.interpreter import freeze_garbage, share_interpreter
from phyla_server.served import served_by
from phyla_server.settings import ServerSettings

from benchmarks.first_bytes import first_bytes
from benchmarks.measurement import interval_95, versions, write_result
from benchmarks.server_cost import arrival_milliseconds, server_milliseconds

NUM_TOKENS = 64
PROMPT_TOKENS = {"short": 8, "long": 1000}
PREFILL_TOKENS = 6000
PROBES = 5
"""First bytes a pair, of each length."""

WORDS = ("river", "stone", "light", "garden", "seven", "window", "paper", "north", "winter", "music", "table", "green")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="paired runs")
    pairs = parser.parse_args().pairs
    share_interpreter()
    settings = Settings([ServerSettings(port=0), SamplingSettings()])
    with (
        phyla.load("starter") as model,
        EmbeddedServer(served_by(model, model.manager, settings), settings) as server,
    ):
        model.renderer.warm_up()
        freeze_garbage()
        chat = f"{server.url}/v1/chat/completions"
        first_bytes(chat, [question(seed, 8) for seed in (-1, -2)])
        opened = [opening(chat, number, is_busy) for number in range(pairs) for is_busy in (False, True)]
        decoded = [decoding(model, server.url, number) for number in range(-1, pairs)][1:]
    added = [one["server"] - one["library"] for one in decoded]
    low, high = interval_95(added)
    result = {
        "versions": versions("phyla", "mlx", "litestar", "uvicorn"),
        "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
        "prompt_tokens": PROMPT_TOKENS,
        "prefill_tokens": PREFILL_TOKENS,
        "summary": {
            "opened": {
                name: {company: spread(opened, name, company) for company in ("alone", "beside_prefill")}
                for name in PROMPT_TOKENS
            },
            "decode": {
                "library_ms_per_token": round(statistics.fmean(one["library"] for one in decoded), 2),
                "server_ms_per_token": round(statistics.fmean(one["server"] for one in decoded), 2),
                "added_ms_per_token": round(statistics.fmean(added), 3),
                "added_interval_95": [round(low, 3), round(high, 3)],
                "pairs": pairs,
            },
        },
        "samples": {"opened": opened, "decoded": decoded},
    }
    write_result("server_starter", f"--pairs {pairs}", result)


def opening(url: str, number: int, is_busy: bool) -> dict[str, Any]:
    """First bytes of short and long questions, with or without a prefill beside them."""
    company = "beside_prefill" if is_busy else "alone"
    asked = {
        name: [question(1000 * number + 100 * is_busy + index, num_tokens) for index in range(PROBES)]
        for name, num_tokens in PROMPT_TOKENS.items()
    }
    with prefilling(url, number) if is_busy else nobody():
        measured = {"company": company, **{name: first_bytes(url, bodies) for name, bodies in asked.items()}}
    print(measured, flush=True)
    return measured


@contextmanager
def nobody() -> Iterator[None]:
    yield


@contextmanager
def prefilling(url: str, number: int) -> Iterator[None]:
    """Another client's long prompt is read as long as the block runs."""
    body = question(-10 - number, PREFILL_TOKENS)
    with httpx.Client(timeout=60) as client, client.stream("POST", url, json=body) as answer:
        next(answer.iter_lines())
        yield


def question(seed: int, num_tokens: int) -> dict[str, Any]:
    """A question that nobody asked before."""
    words = random.Random(seed).choices(WORDS, k=num_tokens)
    content = f"{seed} {' '.join(words)}"
    return {"messages": [{"role": "user", "content": content}], "stream": True, "temperature": 0, "max_tokens": 4}


def spread(opened: list[dict[str, Any]], name: str, company: str) -> dict[str, dict[str, float]]:
    """Of how long streams took to be validated, and of their first byte after that."""
    streams = [stream for one in opened if one["company"] == company for stream in one[name]]
    by_part = {part: [stream[part] for stream in streams] for part in ("validated", "first_byte")}
    return {
        part: {"median_ms": round(statistics.median(every), 1), "worst_ms": round(max(every), 1)}
        for part, every in by_part.items()
    }


def decoding(model: Model, url: str, number: int) -> dict[str, float]:
    """Milliseconds per token of one stream, read through the library and through HTTP in turn."""
    prompt = f"Count upwards without an end, from {number}: 1, 2, 3, 4,"
    measured = {}
    for side in ("library", "server") if number % 2 == 0 else ("server", "library"):
        measured[side] = (
            library_milliseconds(model, prompt)
            if side == "library"
            else server_milliseconds(url, 1, prompt, NUM_TOKENS)
        )
    print(measured, flush=True)
    return measured


def library_milliseconds(model: Model, prompt: str) -> float:
    """Read on a thread of its own, as the server reads on its loop's."""
    request = Request(
        request_id=f"library-{random.random()}",
        rendered=Rendered(ids=tuple(model.tokenizer.encode(prompt))),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=NUM_TOKENS,
    )
    measured: list[float] = []
    reader = threading.Thread(target=lambda: measured.append(arrival_milliseconds(Answers(model.engine), request)))
    reader.start()
    reader.join()
    return measured[0]


if __name__ == "__main__":
    main()
