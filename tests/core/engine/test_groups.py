"""Which group holds the rows of a shared step, and that it was really that one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from phyla.engine.engine import EngineSpec
from phyla.kv.stacked.group import StackedGroup
from phyla.request import SamplingParams
from phyla.testing.engines import Heard, a_request, running, toy_spec
from phyla.testing.family import random_tokens
from phyla.testing.row_equality import Joining

GREEDY = SamplingParams(ignore_eos=True)
UNHURRIED: Mapping[str, Any] = {"step_ms": 1e6}
"""A prompt is read in one piece, however slow the machine is: who meets whom is then decided by tokens alone."""

EDGES = (1, 30, 215, 223, 224, 225, 240)
"""Prompts around the edge of the smallest bay, which the shorter of them cross while they decode."""


@pytest.fixture
def bays_seen(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int, int]]]:
    """Capacity, seats and rows of every bay, step by step."""
    seen: list[list[tuple[int, int, int]]] = []
    advance = StackedGroup.advance

    def spied(self: StackedGroup, counts: Any) -> None:
        seen.append([(bay.seating.capacity, bay.seating.num_seats, bay.num_rows) for bay in self.bays])
        advance(self, counts)

    monkeypatch.setattr(StackedGroup, "advance", spied)
    return seen


def said(spec: EngineSpec, lengths: tuple[int, ...] = EDGES, num_tokens: int = 24) -> tuple[list[Heard], Mapping]:
    """What each of several rows gets, each joining when the one before has said two tokens; and the statistics."""
    requests = [
        a_request(f"row-{length}", random_tokens(length, 512, seed=length), num_tokens, GREEDY) for length in lengths
    ]
    with running(spec) as (engine, log):
        engine.subscribe(Joining(engine, requests, every=2))
        engine.submit(requests[0])
        heard = [log.wait(request.request_id) for request in requests]
        return heard, engine.stats()["steps"]


@pytest.mark.parametrize("layers", ["FF", "SFS", "RRF"])
def test_rows_that_cross_the_edges_of_bays_get_what_they_get_in_a_loop(layers: str, bays_seen: list) -> None:
    stacked, steps = said(toy_spec(layers, {"group": "stacked"} | UNHURRIED))
    looped, _ = said(toy_spec(layers, {"group": "loop"}))
    assert [one.ids for one in stacked] == [one.ids for one in looped]
    assert steps["stacked"] >= len(bays_seen) > 0
    assert {capacity for bays in bays_seen for capacity, _, _ in bays} >= {256, 512}
    assert max(seats for bays in bays_seen for _, seats, _ in bays) == 8
    assert any(rows < seats for bays in bays_seen for _, seats, rows in bays)


def test_a_long_row_sits_apart_from_short_ones(bays_seen: list) -> None:
    stacked, _ = said(toy_spec("SRF", {"group": "stacked"} | UNHURRIED), (700, 5, 9, 690))
    looped, _ = said(toy_spec("SRF", {"group": "loop"}), (700, 5, 9, 690))
    assert [one.ids for one in stacked] == [one.ids for one in looped]
    assert [(768, 2, 2), (256, 2, 2)] in bays_seen


def test_rows_share_steps_in_a_stacked_group_unless_told_otherwise(bays_seen: list) -> None:
    _, steps = said(toy_spec("FF", {"group": "loop"}), (3, 4))
    assert (steps["stacked"], bays_seen) == (0, [])
    _, steps = said(toy_spec("FF"), (3, 4))
    assert steps["stacked"] >= len(bays_seen) > 0


def test_rows_of_a_kind_that_brings_no_stacked_form_step_in_a_loop(bays_seen: list) -> None:
    heard, steps = said(toy_spec("FL"), (3, 4))
    assert all(len(one.ids) == 24 for one in heard)
    assert (steps["stacked"], bays_seen) == (0, [])


def test_stacking_what_cannot_be_stacked_is_refused_with_the_reason() -> None:
    request = a_request("one", (1, 2, 3), 4, GREEDY)
    with running(toy_spec("FL", {"group": "stacked"}, route="fast")) as (engine, log):
        engine.submit(request)
        message = log.wait("one").failed.error
    assert "layer 1 (latent) brings no stacked form" in message
