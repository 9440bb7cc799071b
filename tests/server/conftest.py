"""A server on loopback over a scripted engine, with a small real tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import openai
import pytest
from phyla import Settings
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.model.facts import ModelFacts, ReasoningMarkers, WeightBytes
from phyla.output import OutputParserFactory
from phyla.request import Request
from phyla.sampling.settings import SamplingSettings
from phyla.testing.scripted_front import Script, ScriptedFront
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla.tokenizer import Tokenizer
from phyla.tokenizer.render import PromptRenderer
from phyla_dialects.catalog import DIALECTS
from phyla_server import http_server
from phyla_server.embedded import EmbeddedServer
from phyla_server.keys import KeyRing
from phyla_server.local_library import ListsModels
from phyla_server.served import served_model
from phyla_server.settings import ServerSettings

THINK = ("<think>", "</think>")


class Running:
    """A served script, and ways to talk to it."""

    def __init__(self, server: EmbeddedServer, front: ScriptedFront, tokenizer: Tokenizer) -> None:
        self.server = server
        self.front = front
        self.tokenizer = tokenizer
        self.http = httpx.Client(base_url=server.url, timeout=30)
        self.openai = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any-key", max_retries=0, timeout=30)

    def chat(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hello"}], **body})

    def complete(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "Hello", **body})

    def close(self) -> None:
        self.http.close()
        self.openai.close()


Serve = Callable[..., Running]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> FolderCheckpoint:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("served") / "tiny-model", tiny_config("llama"))
    return FolderCheckpoint.open(folder)


@pytest.fixture(scope="session")
def tokenizer(checkpoint: FolderCheckpoint) -> Tokenizer:
    return checkpoint.tokenizer()


@pytest.fixture(scope="session")
def renderer(checkpoint: FolderCheckpoint, tokenizer: Tokenizer) -> Iterator[PromptRenderer]:
    renderer = PromptRenderer(tokenizer, checkpoint.chat_template, reasoning=THINK, context_limit=4096)
    yield renderer
    renderer.close()


@pytest.fixture
def lasting_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose engine died goes on answering until it is stopped, however slow the machine is."""
    monkeypatch.setattr(http_server, "DEAD_GRACE_SECONDS", 600.0)


@pytest.fixture
def serve(checkpoint: FolderCheckpoint, tokenizer: Tokenizer, renderer: PromptRenderer) -> Iterator[Serve]:
    """Start a server; everything it was given ends with the test."""
    started: list[Running] = []

    def start(
        script: Script | str = "Hello there, friend.",
        *,
        speaks: Tokenizer = tokenizer,
        parser: str | None = None,
        parsers: Sequence[OutputParserFactory] = DIALECTS,
        template: str | None = checkpoint.chat_template,
        keys: KeyRing | None = None,
        facts: Mapping[str, Any] | None = None,
        front: Mapping[str, Any] | None = None,
        others: ListsModels | None = None,
        method: str = "none",
        **settings: Any,
    ) -> Running:
        playing = says(speaks, script) if isinstance(script, str) else script
        engine = ScriptedFront(speaks, playing, **(front or {}))
        known: dict[str, Any] = {
            "family": "scripted",
            "architecture": "scripted",
            "layout": (),
            "hidden_size": 64,
            "vocab_size": speaks.vocab_size,
            "context_limit": 4096,
            "weight_bytes": WeightBytes(0),
            "stored_dtype": "float32",
            "reasoning": ReasoningMarkers(*THINK),
        }
        is_usual = speaks is tokenizer and template == checkpoint.chat_template
        model = served_model(
            model_id="phyla/scripted",
            facts=ModelFacts(**known | dict(facts or {})),
            tokenizer=speaks,
            renderer=renderer if is_usual else PromptRenderer(speaks, template),
            engine=engine,
            template=template,
            parsers=parsers,
            parser_name=parser,
            method=method,
        )
        own = {name: value for name, value in settings.items() if name in SamplingSettings.model_fields}
        rest = {name: value for name, value in settings.items() if name not in own}
        filled = Settings([ServerSettings(port=0, **rest), SamplingSettings(**own)])
        server = EmbeddedServer(model, filled, keys, others)
        server.start()
        started.append(Running(server, engine, speaks))
        return started[-1]

    yield start
    for running in started:
        running.close()
        running.server.stop()


def says(tokenizer: Tokenizer, text: str) -> Script:
    """A script that answers every request with this text, then ends."""
    ids = tokenizer.encode(text)

    def script(request: Request, sample: int) -> Sequence[int]:
        return ids

    return script
