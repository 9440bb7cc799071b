"""What HTTP adds to a token: the same scripted engine read through the library and through the server.

The model says what it is told, so what differs between the two is the server. Its clients run in a process of their
own; the library's readers are threads beside the engine. The interpreter is set as `phyla serve` sets it, for both.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from phyla import Settings
from phyla.engine.answers import Answers
from phyla.engine.engine import Engine
from phyla.request import Rendered, Request, SamplingParams
from phyla.testing.engines import running, scripted_spec
from phyla.testing.scripted import CharacterTokenizer, repeat, scripted_binding, scripted_facts
from phyla.tokenizer.render import PromptRenderer
from phyla_server.embedded import EmbeddedServer
from phyla_server.interpreter import freeze_garbage, share_interpreter
from phyla_server.served import served_model
from phyla_server.settings import ServerSettings

from benchmarks.idle_connections import idle_connections
from benchmarks.measurement import interval_95, versions, write_result

NUM_TOKENS = 1000
CLIENTS = (1, 8)
LONG_PROMPT_TOKENS = 1000
NUM_IDLE = 500
PROMPT = "Hello"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="paired runs")
    pairs = parser.parse_args().pairs
    share_interpreter()
    tokenizer = CharacterTokenizer()
    binding = scripted_binding(tokenizer, repeat(tokenizer.encode("abcdefgh ")))
    with running(scripted_spec(binding, tokenizer)) as (engine, _log), served(engine, tokenizer) as server:
        freeze_garbage()
        by_clients = {count: paired(engine, tokenizer, server.url, count, pairs) for count in CLIENTS}
        first_frames = [first_frame_milliseconds(server.url) for _ in range(3 * pairs)]
        idle = [idle_pair(server.url, number) for number in range(-1, pairs)][1:]
    low, high = interval_95([one["idle"] / one["none"] for one in idle])
    result = {
        "versions": versions("phyla", "mlx", "litestar", "uvicorn"),
        "num_tokens": NUM_TOKENS,
        "summary": {str(count): summary(samples, count) for count, samples in by_clients.items()},
        "first_frame": {
            "num_prompt_tokens": LONG_PROMPT_TOKENS,
            "median_ms": round(statistics.median(first_frames), 1),
            "worst_ms": round(max(first_frames), 1),
        },
        # Time per token beside idle connections over that without: above 1 they cost something.
        "idle_connections": {
            "count": NUM_IDLE,
            "ratio": round(statistics.fmean(one["idle"] / one["none"] for one in idle), 3),
            "ratio_interval_95": [round(low, 3), round(high, 3)],
        },
        "samples": {str(count): samples for count, samples in by_clients.items()} | {"idle": idle},
    }
    write_result("server_cost", f"--pairs {pairs}", result)


def paired(engine: Engine, tokenizer: CharacterTokenizer, url: str, count: int, pairs: int) -> list[dict[str, float]]:
    """Milliseconds per token as each of `count` readers sees them, library and server in turn; the first is warm-up."""
    samples = []
    for number in range(pairs + 1):
        measured = {}
        for side in ("library", "server") if number % 2 == 0 else ("server", "library"):
            measured[side] = (
                library_milliseconds(engine, tokenizer, count) if side == "library" else server_milliseconds(url, count)
            )
        samples.append(measured)
    return samples[1:]


def summary(samples: list[dict[str, float]], count: int) -> dict[str, Any]:
    """A step serves all clients, so what it grew by is shared among them."""
    added = [(sample["server"] - sample["library"]) / count for sample in samples]
    low, high = interval_95(added)
    return {
        "library_ms_per_token": round(statistics.fmean(one["library"] for one in samples), 3),
        "server_ms_per_token": round(statistics.fmean(one["server"] for one in samples), 3),
        "added_ms_per_token": round(statistics.fmean(added), 3),
        "added_interval_95": [round(low, 3), round(high, 3)],
        "pairs": len(samples),
    }


@contextmanager
def served(engine: Engine, tokenizer: CharacterTokenizer) -> Iterator[EmbeddedServer]:
    renderer = PromptRenderer(tokenizer, None)
    model = served_model(
        model_id="scripted",
        facts=scripted_facts(tokenizer.vocab_size),
        tokenizer=tokenizer,
        renderer=renderer,
        engine=engine,
        template=None,
    )
    try:
        with EmbeddedServer(model, Settings([ServerSettings(port=0)])) as server:
            yield server
    finally:
        renderer.close()


def library_milliseconds(engine: Engine, tokenizer: CharacterTokenizer, count: int) -> float:
    with ThreadPoolExecutor(count) as pool:
        return statistics.fmean(pool.map(lambda _: library_stream(engine, tokenizer), range(count)))


def library_stream(engine: Engine, tokenizer: CharacterTokenizer) -> float:
    request = Request(
        request_id=f"library-{uuid.uuid4().hex}",
        rendered=Rendered(ids=tuple(tokenizer.encode(PROMPT))),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=NUM_TOKENS,
    )
    return arrival_milliseconds(Answers(engine), request)


def arrival_milliseconds(answers: Answers, request: Request) -> float:
    """Per token of one request, from its first to its last."""
    arrivals = [time.perf_counter() for piece in answers.stream(request) if piece.token_id is not None]
    assert len(arrivals) == request.max_tokens, f"{len(arrivals)} of {request.max_tokens} tokens came"
    return (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1) * 1e3


def idle_pair(url: str, number: int) -> dict[str, float]:
    """Milliseconds per token of one client, without company and beside connections that say nothing."""
    measured = {}
    for side in ("none", "idle") if number % 2 == 0 else ("idle", "none"):
        with idle_connections(url, NUM_IDLE if side == "idle" else 0):
            measured[side] = server_milliseconds(url, 1)
    return measured


def server_milliseconds(url: str, count: int, prompt: str = PROMPT, num_tokens: int = NUM_TOKENS) -> float:
    fields = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(fields)
    command = [sys.executable, "-m", "benchmarks.stream_clients", f"{url}/v1/completions", str(count), body]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return statistics.fmean(json.loads(answer.stdout))


def first_frame_milliseconds(url: str) -> float:
    """From sending a long prompt to its stream's first byte: parsing, tokenising, admission, prefill, one token."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    body = {"prompt": "a" * LONG_PROMPT_TOKENS, "max_tokens": 1, "temperature": 0, "stream": True}
    connection.connect()
    started = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    elapsed = (time.perf_counter() - started) * 1e3
    response.read()
    connection.close()
    return elapsed


if __name__ == "__main__":
    main()
