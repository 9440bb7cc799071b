"""A server process over a scripted model, whose tokenizer is a checkpoint's: `-m tests.server.scripted_process FOLDER`.

It prints its address and serves until its input ends. Offered tools it calls the first one; shown a result it repeats
it; otherwise it greets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from phyla import Settings
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.model.facts import ModelFacts, ReasoningMarkers, WeightBytes
from phyla.request import Request
from phyla.sampling.settings import SamplingSettings
from phyla.testing.scripted_front import ScriptedFront
from phyla.tokenizer.render import PromptRenderer
from phyla_dialects.catalog import DIALECTS
from phyla_server.embedded import EmbeddedServer
from phyla_server.served import served_model
from phyla_server.settings import ServerSettings

GREETING = "<think>A guest.</think>Grüße aus 北京 🙂"
CALL = 'Let me look.<tool_call>{"name": "%s", "arguments": {"city": "Rome"}}</tool_call>'


def answer(request: Request) -> str:
    rendered = request.rendered
    if rendered.messages and rendered.messages[-1]["role"] == "tool":
        return f"It says: {rendered.messages[-1]['content']}"
    return CALL % rendered.tools[0]["function"]["name"] if rendered.tools else GREETING


@contextmanager
def serving(folder: str) -> Iterator[EmbeddedServer]:
    checkpoint = FolderCheckpoint.open(folder)
    tokenizer = checkpoint.tokenizer()

    def script(request: Request, sample: int) -> Sequence[int]:
        return tokenizer.encode(answer(request))

    renderer = PromptRenderer(tokenizer, checkpoint.chat_template)
    facts = ModelFacts(
        family="scripted",
        architecture="scripted",
        layout=(),
        hidden_size=64,
        vocab_size=tokenizer.vocab_size,
        context_limit=4096,
        weight_bytes=WeightBytes(0),
        stored_dtype="float32",
        reasoning=ReasoningMarkers("<think>", "</think>"),
    )
    model = served_model(
        model_id="phyla/scripted",
        facts=facts,
        tokenizer=tokenizer,
        renderer=renderer,
        engine=ScriptedFront(tokenizer, script),
        template=checkpoint.chat_template,
        parsers=DIALECTS,
        parser_name="hermes",
    )
    with EmbeddedServer(model, Settings([ServerSettings(port=0), SamplingSettings()])) as server:
        yield server
    renderer.close()


if __name__ == "__main__":
    with serving(sys.argv[1]) as running:
        print(running.url, flush=True)
        sys.stdin.read()
