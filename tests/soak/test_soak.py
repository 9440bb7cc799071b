"""Ten minutes of sixteen clients who ask for anything, leave when they like, and must leave nothing behind."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import psutil
import pytest
from phyla.testing.tiny import tiny_checkpoint, tiny_config

SOAK_SECONDS = 600
WARM_UP_SECONDS = 120
NUM_CLIENTS = 16
MEMORY_GROWTH = 1.05
"""Resident memory at the end against the end of the warm-up, when every shape has been met."""

RUN = "import sys; from phyla.cli.main import main; sys.exit(main())"


@pytest.fixture
def server(tmp_path):
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama"))
    # A small prompt cache fills in the warm-up, so that what grows later is a leak.
    arguments = ["serve", str(folder), "--port", "0", "--prompt-cache", "32MiB", "--log-level", "error"]
    process = subprocess.Popen([sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE, text=True)
    url = next(line.split()[-1] for line in process.stdout if line.strip().startswith("API"))
    yield url.removesuffix("/v1"), psutil.Process(process.pid)
    process.terminate()
    assert process.wait(timeout=60) == 0
    process.stdout.close()


class Client:
    """One client's life: whole answers, streams read to the end, streams left half way, requests that are wrong."""

    def __init__(self, url: str, seed: int, stop: threading.Event) -> None:
        self.outcomes: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._stop = stop
        self._http = httpx.Client(base_url=url, timeout=60)

    def run(self) -> None:
        with self._http:
            while not self._stop.is_set():
                kind = self._random.choice(("whole", "stream", "leave", "wrong"))
                try:
                    self.outcomes[getattr(self, f"_{kind}")()] += 1
                except Exception as error:  # reported by the test: a thread's own traceback is lost
                    self.outcomes[f"raised {type(error).__name__}: {error}"] += 1

    def _body(self, **more: object) -> dict[str, object]:
        draw = self._random
        words = " ".join(draw.choice(("one", "two", "three", "four")) for _ in range(draw.randint(1, 120)))
        return {
            "messages": [{"role": "user", "content": words}],
            "max_tokens": draw.randint(1, 60),
            "temperature": draw.choice((0, 0.8)),
            "ignore_eos": True,
            **more,
        }

    def _whole(self) -> str:
        return _expected(self._http.post("/v1/chat/completions", json=self._body()).status_code, 200, 429)

    def _stream(self) -> str:
        with self._http.stream("POST", "/v1/chat/completions", json=self._body(stream=True)) as response:
            lines = [line for line in response.iter_lines() if line]
            if response.status_code == 200 and lines[-1] != "data: [DONE]":
                return f"stream ended with {lines[-1]}"
            return _expected(response.status_code, 200, 429)

    def _leave(self) -> str:
        with self._http.stream("POST", "/v1/chat/completions", json=self._body(stream=True)) as response:
            for index, _ in enumerate(response.iter_lines()):
                if index > self._random.randint(0, 20):
                    break
            return _expected(response.status_code, 200, 429)

    def _wrong(self) -> str:
        return _expected(self._http.post("/v1/chat/completions", json=self._body(max_tokens=-1)).status_code, 400)


def _expected(status: int, *allowed: int) -> str:
    return "as asked" if status in allowed else f"status {status}"


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_sixteen_clients_leave_nothing_behind(server):
    url, process = server
    stop = threading.Event()
    clients = [Client(url, seed, stop) for seed in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    time.sleep(WARM_UP_SECONDS)
    memory_after_warm_up = process.memory_info().rss
    time.sleep(SOAK_SECONDS - WARM_UP_SECONDS)
    memory_at_end, threads_busy = process.memory_info().rss, process.num_threads()
    stop.set()
    for thread in threads:
        thread.join()

    outcomes = sum((client.outcomes for client in clients), Counter())
    stats = idle_stats(url)
    print(dict(outcomes), memory_after_warm_up, memory_at_end, threads_busy, process.num_threads(), stats["requests"])
    assert set(outcomes) == {"as asked"}
    assert memory_at_end <= memory_after_warm_up * MEMORY_GROWTH
    assert process.num_threads() <= threads_busy
    assert (stats["batch"]["active_rows"], stats["batch"]["pending_rows"]) == (0, 0)


def idle_stats(url: str) -> dict:
    """The engine's counters once the last cancelled row has left: within a minute, or the test fails with them."""
    deadline = time.monotonic() + 60
    while True:
        stats = httpx.get(f"{url}/stats").json()
        if stats["batch"]["active_rows"] == 0 or time.monotonic() > deadline:
            return stats
        time.sleep(0.2)
