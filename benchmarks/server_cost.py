"""What HTTP adds to a token: the same scripted engine read through the library and through the server.

The model says what it is told, so what differs between the two is the server and a client reading its stream.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from phyla import Settings
from phyla.engine.answers import Answers
from phyla.engine.engine import Engine
from phyla.testing.engines import running, scripted_spec
from phyla.testing.scripted import CharacterTokenizer, repeat, scripted_binding, scripted_facts
from phyla.tokenizer.render import PromptRenderer
from phyla_server.embedded import EmbeddedServer
from phyla_server.served import served_model
from phyla_server.settings import ServerSettings

from benchmarks.measurement import interval_95, versions, write_result

NUM_TOKENS = 1000
PROMPT = "Hello"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="paired runs")
    pairs = parser.parse_args().pairs
    tokenizer = CharacterTokenizer()
    binding = scripted_binding(tokenizer, repeat(tokenizer.encode("abcdefgh ")))
    with running(scripted_spec(binding, tokenizer)) as (engine, _log), served(engine, tokenizer) as server:
        library_milliseconds(engine, tokenizer)
        server_milliseconds(server.url)
        samples = []
        for number in range(pairs):
            measured = {}
            for side in ("library", "server") if number % 2 == 0 else ("server", "library"):
                one = library_milliseconds(engine, tokenizer) if side == "library" else server_milliseconds(server.url)
                measured[side] = one
            samples.append(measured)
    added = [sample["server"] - sample["library"] for sample in samples]
    low, high = interval_95(added)
    result = {
        "versions": versions("phyla", "mlx", "litestar", "uvicorn"),
        "num_tokens": NUM_TOKENS,
        "summary": {
            "library_ms_per_token": round(statistics.fmean(one["library"] for one in samples), 3),
            "server_ms_per_token": round(statistics.fmean(one["server"] for one in samples), 3),
            "added_ms_per_token": round(statistics.fmean(added), 3),
            "added_interval_95": [round(low, 3), round(high, 3)],
            "pairs": pairs,
        },
        "samples": samples,
    }
    write_result("server_cost", f"--pairs {pairs}", result)


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


def library_milliseconds(engine: Engine, tokenizer: CharacterTokenizer) -> float:
    from phyla.request import Rendered, Request, SamplingParams

    request = Request(
        request_id=f"library-{time.perf_counter_ns()}",
        rendered=Rendered(ids=tuple(tokenizer.encode(PROMPT))),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=NUM_TOKENS,
    )
    arrivals = [time.perf_counter() for piece in Answers(engine).stream(request) if piece.token_id is not None]
    return per_token(arrivals)


def server_milliseconds(url: str) -> float:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    arrivals = [time.perf_counter() for line in response if line.startswith(b"data: {")]
    connection.close()
    return per_token(arrivals)


def per_token(arrivals: list[float]) -> float:
    assert len(arrivals) >= NUM_TOKENS, f"{len(arrivals)} of {NUM_TOKENS} tokens came"
    return (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1) * 1e3


if __name__ == "__main__":
    main()
