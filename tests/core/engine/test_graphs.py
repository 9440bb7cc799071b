"""What a long answer leaves in its row: arrays, never a graph that grows from step to step."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field, replace

import mlx.core as mx
import pytest
from phyla.engine.engine import Loaded
from phyla.engine.reuse import NoReuse
from phyla.engine.runner import STEPS_PER_STATE_EVALUATION
from phyla.kv.loops import RowLoop
from phyla.kv.row_state import RowState
from phyla.request import ConstraintSpec, Request, SamplingParams
from phyla.testing.constraint import WordList
from phyla.testing.engines import a_request, plain_state, running, toy_spec


@dataclass(frozen=True)
class Weighing(NoReuse):
    """Notes how much graph stands behind a finished row's arrays."""

    num_edges: dict[str, int] = field(default_factory=dict)

    def publish_end(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        arrays = [array for one in state.sets["target"] for array in one.arrays().arrays.values()]
        self.num_edges[request.request_id] = edges(arrays)


def edges(arrays: list[mx.array]) -> int:
    dot = io.StringIO()
    mx.export_to_dot(dot, *arrays)
    return dot.getvalue().count("->")


@pytest.mark.parametrize("layers", ["F", "S", "R", "L", "FSRL"])
def test_a_rows_graph_doesnt_grow_with_its_answer(layers: str) -> None:
    spec = toy_spec(layers)
    weighing = Weighing(lambda: RowState.fresh(spec.facts.layout, plain_state))
    load = spec.load

    def loaded() -> Loaded:
        return replace(load(), reuse=weighing)

    lengths = {"short": 20, "long": 600}
    with running(replace(spec, load=loaded)) as (engine, log):
        for name, num_tokens in lengths.items():
            engine.submit(a_request(name, range(3, 3 + len(name)), num_tokens, SamplingParams(ignore_eos=True)))
        for name in lengths:
            log.wait(name)
    # Between two evaluations by name a layer may leave a view per step; one per token would be hundreds.
    room = STEPS_PER_STATE_EVALUATION * len(layers)
    assert weighing.num_edges["long"] <= weighing.num_edges["short"] + room


@pytest.mark.parametrize(
    ("sampling", "per_token"),
    [
        (SamplingParams(ignore_eos=True), 1),
        (SamplingParams(ignore_eos=True, temperature=0.7, top_k=5, seed=1), 1),
        (SamplingParams(ignore_eos=True, repetition_penalty=1.2), 2),
    ],
)
def test_a_token_is_one_dispatch_unless_the_host_has_a_say_in_it(
    monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams, per_token: int
) -> None:
    dispatched: list[object] = []
    dispatch = mx.async_eval

    def counted(*arrays: object) -> None:
        dispatched.append(arrays)
        dispatch(*arrays)

    with running(toy_spec("F")) as (engine, log):
        monkeypatch.setattr(mx, "async_eval", counted)
        engine.submit(a_request("one", range(3, 9), 12, sampling))
        log.wait("one")
    assert len(dispatched) == 12 * per_token


def test_a_matcher_works_while_the_next_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    spec = toy_spec("F")
    words = WordList([[20, 21, 22, 23]], eos_ids=spec.facts.eos_ids, vocab_size=spec.facts.vocab_size)
    for owner, name in ((type(words.open()), "mask"), (type(words.open()), "accept"), (mx, "async_eval")):
        does = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, name=name, does=does: happened.append(name) or does(*args))
    with running(replace(spec, open_constraint=lambda request: words.open())) as (engine, log):
        engine.submit(a_request("one", range(3, 9), 4, constraint=ConstraintSpec("words", "")))
        log.wait("one")
    # The first token is read at once, the others after the forward that they are the input of went out; each mask is
    # filled between a forward and the draw from it.
    drawn = ["async_eval", "mask", "async_eval"]
    later = ["async_eval", "accept", "mask", "async_eval"]
    assert happened == [*drawn, "accept", *drawn, *later, *later, "accept"]


def test_what_is_stored_is_evaluated_by_name_now_and_then_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[object] = []
    evaluate = RowLoop.evaluate

    def noted(self: RowLoop) -> list[mx.array]:
        evaluated.append(self.states[0])
        return evaluate(self)

    monkeypatch.setattr(RowLoop, "evaluate", noted)
    num_tokens = 5 * STEPS_PER_STATE_EVALUATION
    with running(toy_spec("F", {"batch": 2}, route="exact")) as (engine, log):
        for name in ("one", "other"):
            engine.submit(a_request(name, range(3, 9), num_tokens, SamplingParams(ignore_eos=True)))
        for name in ("one", "other"):
            log.wait(name)
    # Once more each: a prompt's chunk is evaluated too.
    assert sorted(Counter(map(id, evaluated)).values()) == [6, 6]
