"""A server over a real engine: clients that leave while their prompt is read, budgets, and an engine that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import phyla
import pytest
from phyla import Settings
from phyla.engine.front import EngineFront, EventSink
from phyla.request import EngineEvent, Finished
from phyla.sampling.settings import SamplingSettings
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla_server.embedded import EmbeddedServer
from phyla_server.keys import KeyRing
from phyla_server.served import served_by
from phyla_server.settings import ServerSettings

PATIENCE_SECONDS = 60
KEYED = {"authorization": "Bearer a-key"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", max_position_embeddings=16_384)
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", config)


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[tuple[httpx.Client, EmbeddedServer, EngineFront]]:
    settings = Settings([ServerSettings(port=0), SamplingSettings()])
    with (
        phyla.load(str(folder), **options) as model,
        EmbeddedServer(served_by(model, model.manager, settings), settings, KeyRing(user_keys=["a-key"])) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client, server, model.engine


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "temperature": 0, **fields}


def chat(client: httpx.Client, text: str = "Hello", **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json=body(text, **fields), headers=KEYED)


def once(act: Callable[[], None]) -> EventSink:
    """A sink that does so on the engine thread, with the first events."""
    begun = threading.Event()

    def sink(events: Sequence[EngineEvent]) -> None:
        if not begun.is_set():
            begun.set()
            act()

    return sink


def test_a_client_that_leaves_while_its_prompt_is_read_is_forgotten(folder: Path) -> None:
    endings: list[Finished] = []
    has_ended = threading.Event()

    def listen(events: Sequence[EngineEvent]) -> None:
        endings.extend(event for event in events if isinstance(event, Finished))
        if endings:
            has_ended.set()

    # Chunks of one token: the prompt takes thousands of pieces, and the client leaves after the first.
    with serving(folder, prefill_chunk=1) as (client, _, engine):
        engine.subscribe(listen)
        long = body("one two three four " * 1000, stream=True)
        with client.stream("POST", "/v1/chat/completions", json=long, headers=KEYED) as response:
            next(response.iter_lines())
        assert has_ended.wait(PATIENCE_SECONDS)
        stats = engine.stats()
        next_answer = chat(client)
    assert endings[0].reason == "cancelled"
    assert endings[0].usage.num_completion_tokens == 0
    assert stats["tokens"]["prefilled"] < endings[0].usage.num_prompt_tokens - 1
    assert (stats["requests"]["cancelled"], stats["batch"]["active_rows"]) == (1, 0)
    assert next_answer.status_code == 200


def test_a_request_over_a_budget_is_refused_in_the_known_form(folder: Path) -> None:
    with serving(folder, kv_budget="10KB") as (client, _, _):
        response = chat(client, max_tokens=1000)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["code"]) == ("memory_admission", "context_over_budget")
    assert "--kv-budget" in error["message"]


def test_a_memory_budget_too_small_for_anything_serves_and_refuses_every_prompt(folder: Path) -> None:
    with serving(folder, memory_budget="1KB") as (client, _, _):
        response, stats = chat(client), client.get("/stats", headers=KEYED).json()
    assert response.json()["error"]["code"] == "context_over_budget"
    assert (stats["admission"]["max_safe_context"], stats["admission"]["memory_budget_bytes"]) == (0, 1000)


@pytest.mark.parametrize(("lever", "limit"), [("64", 64), ("1000000", 16_384)])
def test_the_context_lever_lowers_the_models_limit_and_never_raises_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lever: str, limit: int
) -> None:
    monkeypatch.setenv("PHYLA_RD_CONTEXT_LIMIT", lever)
    with serving(folder) as (client, _, engine):
        assert engine.stats()["admission"]["context_limit"] == limit
        response = chat(client, "one two " * limit)
    assert response.json()["error"]["code"] == "context_length_exceeded"


def die() -> None:
    raise SystemExit


def test_a_server_whose_engine_died_ends_by_itself(folder: Path) -> None:
    with serving(folder) as (client, server, engine):
        engine.subscribe(once(die))
        answer = chat(client)
        server.join()
    assert (answer.status_code, server.exit_code) == (503, 1)


@pytest.mark.usefixtures("lasting_grace")
def test_an_engine_that_dies_ends_the_server_with_a_status_and_keys_learn_why(folder: Path) -> None:
    with serving(folder) as (client, server, engine):
        engine.subscribe(once(die))
        answer = chat(client)
        known, unknown = client.get("/health", headers=KEYED), client.get("/health")
        server.stop()
    assert answer.status_code == 503
    assert "died" in answer.json()["error"]["message"]
    assert (known.status_code, unknown.status_code) == (503, 503)
    assert "died" in known.json()["reason"]
    assert unknown.json() == {"status": "unavailable"}
    assert server.exit_code == 1


@pytest.mark.usefixtures("lasting_grace")
def test_an_engine_that_is_stuck_ends_the_server_with_a_status(folder: Path) -> None:
    gate = threading.Event()

    def block() -> None:
        assert gate.wait(PATIENCE_SECONDS)

    with serving(folder, stuck_seconds=0.2) as (client, server, engine):
        engine.subscribe(once(block))
        answer = chat(client)
        health = client.get("/health", headers=KEYED)
        gate.set()
        server.stop()
    assert answer.status_code == 503
    assert "stuck" in answer.json()["error"]["message"]
    assert "stuck" in health.json()["reason"]
    assert server.exit_code == 1
