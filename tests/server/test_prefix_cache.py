"""What clients see of prefix reuse: cached tokens on every route, sessions, keys, clearing and counters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import phyla
import pytest
from phyla import Settings
from phyla.sampling.settings import SamplingSettings
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla_server.embedded import EmbeddedServer
from phyla_server.keys import KeyRing
from phyla_server.served import served_by
from phyla_server.settings import ServerSettings

ONE, TWO, ADMIN = ({"authorization": f"Bearer {key}"} for key in ("first-key", "second-key", "admin-key"))
KEYS = KeyRing(user_keys=["first-key", "second-key"], admin_keys=["admin-key"])
TEXT = "The quick brown fox jumps over the lazy dog and runs away from all that he has seen before."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", tiny_config("llama"))


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[httpx.Client]:
    """A client of a server over a real engine that keeps prefixes."""
    settings = Settings([ServerSettings(port=0), SamplingSettings()])
    with (
        phyla.load(str(folder), **options) as model,
        EmbeddedServer(served_by(model, model.manager, settings), settings, KEYS) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    with serving(folder) as client:
        yield client


def chat(client: httpx.Client, headers: dict[str, str] = ONE, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 3, "temperature": 0, **fields}
    return client.post("/v1/chat/completions", json=body, headers=headers)


def cached(response: httpx.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def read(response: httpx.Response) -> int:
    """Prompt tokens but for the last one, which is always computed."""
    return int(response.json()["usage"]["prompt_tokens"]) - 1


def test_a_chat_says_how_much_was_cached(client):
    first, again = chat(client), chat(client)

    assert cached(first) == 0
    assert cached(again) == read(again)
    assert again.json()["choices"] == first.json()["choices"]


def test_a_streamed_chat_says_how_much_was_cached(client):
    whole = chat(client)
    streamed = chat(client, stream=True, stream_options={"include_usage": True})

    assert f'"cached_tokens":{read(whole)}' in streamed.text.replace(" ", "")


def test_a_completion_says_how_much_was_cached(client):
    body = {"prompt": TEXT, "max_tokens": 3}
    client.post("/v1/completions", json=body, headers=ONE)

    again = client.post("/v1/completions", json=body, headers=ONE)

    assert cached(again) == read(again)


def test_one_keys_prefixes_never_serve_another(client):
    chat(client, ONE)

    assert cached(chat(client, TWO)) == 0


def test_a_session_is_closed_by_its_own_key_only(client):
    chat(client, ONE, session_id="mine")

    def close(headers: dict[str, str]) -> bool:
        response = client.post("/admin/cache/session/close", json={"session_id": "mine"}, headers=headers)
        return bool(response.json()["closed"])

    assert [close(TWO), close(ONE), close(ONE)] == [False, True, False]


def test_a_flush_keeps_what_was_kept_and_clearing_drops_it(client):
    chat(client)

    flushed = client.post("/admin/cache/flush", headers=ADMIN).json()
    num_cached = cached(chat(client))
    cleared = client.post("/admin/cache/clear", headers=ADMIN).json()

    assert (flushed["durable"], flushed["entries"]) == (True, 0)
    assert num_cached > 0
    assert cleared["entries"] > 0
    assert cleared["bytes"] > 0
    assert cached(chat(client)) == 0


def test_stats_have_every_known_block(client):
    stats = client.get("/stats", headers=ONE).json()

    assert stats["kv_quant"] == {
        "mode": "float32",
        "layers": {"plain": 4},
        "attention": {"global": 4, "sliding_window": 0},
    }
    assert stats["admission"].keys() >= {"max_safe_context", "usable_bytes", "memory_budget_bytes", "weights_bytes"}
    assert stats["admission"]["enforced_context_tokens"] is None
    assert stats["batch"].keys() >= {"configured", "mode", "batched", "active_rows", "pending_rows", "submitted_rows"}
    assert stats["prompt_cache"].keys() >= {"entries", "bytes", "max_bytes", "hits", "misses"}


def test_stats_count_what_was_reused(client):
    first, again = chat(client), chat(client)
    stats = client.get("/stats", headers=ADMIN).json()["prompt_cache"]

    assert (stats["hits"], stats["misses"], stats["evictions"]) == (1, 1, 0)
    assert stats["hit_tokens"] == cached(first) + cached(again)
    assert 0 < stats["bytes"] <= stats["max_bytes"]
    assert {"entries", "boundaries", "pinned", "published", "superseded", "oversized"} <= set(stats)


def test_nothing_is_kept_where_the_cache_is_off_nor_batched_where_one_is_the_most(folder):
    with serving(folder, prompt_cache=0, batch=1) as client:
        chat(client)
        again = chat(client)
        stats = client.get("/stats", headers=ADMIN).json()
        (listed,) = client.get("/v1/models", headers=ONE).json()["data"]

    assert cached(again) == 0
    assert (stats["prompt_cache"]["entries"], stats["prompt_cache"]["max_bytes"]) == (0, 0)
    assert (stats["batch"]["mode"], stats["batch"]["batched"], listed["batch_mode"]) == ("off", False, "off")


def test_the_next_turn_goes_on_from_the_answer(client):
    first = chat(client)
    answer = first.json()["choices"][0]["message"]["content"]
    turns = [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And then?"},
    ]

    second = chat(client, messages=turns)

    assert cached(second) >= read(first)
