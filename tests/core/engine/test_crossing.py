"""A prompt that is being read alone when company arrives: what is left of its chunk is computed on the fast route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
from phyla.engine.engine import Loaded
from phyla.model.binding import Forward, LayerStates, LayerwiseForward, ModelBinding
from phyla.model.step import StepInput
from phyla.testing.engines import a_request, running, toy_spec
from phyla.testing.family import random_tokens
from phyla.testing.recording import RecordingBinding
from phyla.testing.row_equality import STRICT, alone

LAYERS = "FSF"
LONG = 150


class Watched(RecordingBinding):
    """Notes each layer of the long prompt's chunk, and calls somebody while its first one is built."""

    def __init__(self, inner: ModelBinding, seen: list[tuple[int, str]], on_first: Callable[[], None]) -> None:
        super().__init__(inner)
        self._seen = seen
        self._on_first = on_first

    def start(self, step: StepInput, states: LayerStates) -> Forward:
        return LayerwiseForward(self, step, states)

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        if step.width == LONG - 1:
            self._seen.append((index, step.route))
            if len(self._seen) == 1:
                self._on_first()
        return super().layer(index, hidden, step, states)


def test_the_layers_left_of_a_chunk_leave_the_exact_route_when_company_arrives() -> None:
    spec = toy_spec(LAYERS, {"step_ms": 1e-6})
    seen: list[tuple[int, str]] = []

    def load() -> Loaded:
        loaded = spec.load()
        return replace(loaded, binding=Watched(loaded.binding, seen, lambda: engine.submit(requests[1])))

    requests = [
        a_request(name, random_tokens(length, spec.facts.vocab_size, seed=length), 12)
        for name, length in (("long", LONG), ("short", 3))
    ]
    with running(replace(spec, load=load)) as (engine, log):
        engine.submit(requests[0])
        heard = {one.request_id: log.wait(one.request_id) for one in requests}
    assert seen == [(0, "exact"), (1, "fast"), (2, "fast")]
    expected = alone(toy_spec(LAYERS, STRICT), requests)
    assert {name: one.ids for name, one in heard.items()} == {name: one.ids for name, one in expected.items()}
