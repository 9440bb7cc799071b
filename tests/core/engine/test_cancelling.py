"""Leaving in the middle of a prefill: at the end of the running piece, and without a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest
from phyla.engine.engine import EngineSpec, Loaded
from phyla.model.binding import LayerStates
from phyla.model.step import StepInput
from phyla.request import SamplingParams
from phyla.testing.engines import PATIENCE_SECONDS, a_request, toy_spec
from phyla.testing.reuse import prompt_cache, reusing
from phyla.testing.row_equality import alone

LAYERS = "SRFL"
CHUNK = 16
PROMPT = tuple(3 + index * 7 % 200 for index in range(60))
GREEDY = SamplingParams(ignore_eos=True)


def watched(spec: EngineSpec, on_layer: Callable[[int, int], None]) -> EngineSpec:
    """The spec with `on_layer(position, index)` called before each layer of each step."""

    def load() -> Loaded:
        loaded = spec.load()
        layer = loaded.binding.layer

        def watched_layer(index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
            on_layer(step.offsets[0], index)
            return layer(index, hidden, step, states)

        loaded.binding.layer = watched_layer  # type: ignore[method-assign]
        return loaded

    return replace(spec, load=load)


@pytest.mark.parametrize("position", [0, CHUNK], ids=["first chunk", "second chunk"])
def test_a_row_cancelled_between_layers_ends_there_and_is_not_published(position: int) -> None:
    hold, is_held = threading.Event(), threading.Event()
    begun: list[tuple[int, int]] = []

    def on_layer(at: int, index: int) -> None:
        begun.append((at, index))
        if (at, index) == (position, 1):
            is_held.set()
            assert hold.wait(PATIENCE_SECONDS)

    # A budget of next to nothing makes every layer a piece of its own.
    spec = toy_spec(LAYERS, {"prefill_chunk": CHUNK, "step_ms": 1e-6})
    again = a_request("again", PROMPT, 6, GREEDY)
    with reusing(watched(spec, on_layer)) as (engine, log, _):
        engine.submit(a_request("donor", PROMPT, 6, GREEDY))
        assert is_held.wait(PATIENCE_SECONDS)
        engine.cancel("donor")
        hold.set()
        donor = log.wait("donor")
        last_begun, num_entries = begun[-1], prompt_cache(engine)["entries"]
        engine.submit(again)
        heard = log.wait("again")
    assert (donor.finished.reason, donor.ids) == ("cancelled", [])
    assert last_begun == (position, 1)
    assert num_entries == 0
    assert heard.finished.usage.num_cached_tokens == 0
    assert heard.ids == alone(spec, [again])["again"].ids
