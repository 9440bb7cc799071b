"""Which group holds the rows of a shared step, and that it was really that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import phyla
import pytest
from phyla.backend.strategy import Point, Strategies, shipped_table
from phyla.engine.drafting import Drafting
from phyla.engine.engine import EngineSpec, Loaded
from phyla.engine.grouping import Grouping, GroupOption
from phyla.errors import RefusedCombination, UsageError
from phyla.kv.row_state import RowState
from phyla.kv.stacked.group import StackedGroup
from phyla.request import ConstraintSpec, Request, SamplingParams
from phyla.testing.constraint import WordList
from phyla.testing.drafting import ScriptedProvider
from phyla.testing.engines import Heard, a_request, plain_state, running, toy_spec
from phyla.testing.family import random_tokens
from phyla.testing.row_equality import Joining
from phyla.testing.tiny import tiny_checkpoint, tiny_config

GREEDY = SamplingParams(ignore_eos=True)
WORDS = ((5, 6, 7), (5, 9))
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


def answered(spec: EngineSpec, requests: Sequence[Request]) -> list[Heard]:
    """What each of several requests gets, each joining when the one before has begun to speak."""
    with running(spec) as (engine, log):
        engine.subscribe(Joining(engine, requests, every=1))
        engine.submit(requests[0])
        return [log.wait(request.request_id) for request in requests]


def spelling(spec: EngineSpec) -> EngineSpec:
    """An engine whose constrained requests answer with one of a few words."""
    words = WordList(WORDS, eos_ids=spec.facts.eos_ids, vocab_size=spec.facts.vocab_size)
    return replace(spec, open_constraint=lambda request: words.open() if request.constraint else None)


def drafting(spec: EngineSpec, known: Mapping[tuple[int, ...], Sequence[int]]) -> EngineSpec:
    """An engine that drafts more or less of what each prompt's answer is known to be, and then something else."""

    def script(history: Sequence[int], room: int) -> Sequence[int]:
        prompt = next(one for one in known if tuple(history[: len(one)]) == one)
        said = len(history) - len(prompt)
        right = known[prompt][said : said + len(history) % (room + 1)]
        return [*right, *range(room - len(right) - len(prompt) % 2)]

    loading = spec.load

    def load() -> Loaded:
        return replace(loading(), drafting=Drafting("scripted", ScriptedProvider(script), 6, is_adaptive=False))

    return replace(spec, load=load)


@pytest.mark.parametrize("layers", ["FF", "SFS", "RRF"])
def test_rows_that_cross_the_edges_of_bays_get_what_they_get_in_a_loop(layers: str, bays_seen: list) -> None:
    stacked, steps = said(toy_spec(layers, {"group": "stacked"} | UNHURRIED))
    looped, _ = said(toy_spec(layers, {"group": "loop"}))
    assert [one.ids for one in stacked] == [one.ids for one in looped]
    assert steps["stacked"] >= len(bays_seen) > 0
    assert {capacity for bays in bays_seen for capacity, _, _ in bays} >= {256, 384}
    assert max(seats for bays in bays_seen for _, seats, _ in bays) == 8
    assert any(rows < seats for bays in bays_seen for _, seats, rows in bays)


@pytest.mark.parametrize("layers", ["FF", "SFS", "RRF"])
def test_windows_of_several_widths_and_constraints_share_stacked_steps(
    layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[tuple[int, ...]] = []
    open_window = StackedGroup.open_window

    def spied(self: StackedGroup, counts: Sequence[int]) -> None:
        windows.append(tuple(counts))
        open_window(self, counts)

    monkeypatch.setattr(StackedGroup, "open_window", spied)
    requests = [
        a_request(f"row-{length}", random_tokens(length, 512, seed=length), 24, GREEDY) for length in (2, 30, 215, 230)
    ]
    requests.append(a_request("word", (7, 8, 9), 24, SamplingParams(), constraint=ConstraintSpec("words", "")))
    plain = answered(spelling(toy_spec(layers, {"group": "loop"})), requests)
    known = {request.rendered.ids: one.ids for request, one in zip(requests, plain, strict=True)}

    drafted = answered(drafting(spelling(toy_spec(layers, {"group": "stacked"} | UNHURRIED)), known), requests)

    assert [one.ids for one in drafted] == [one.ids for one in plain]
    assert tuple(drafted[-1].ids) in WORDS
    assert any(len({count for count in counts if count}) > 1 for counts in windows)
    assert max(count for counts in windows for count in counts) > 4


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


@pytest.mark.parametrize("options", [{"route": "exact"}, {"batch": 1}])
def test_stacking_where_no_rows_share_steps_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama"))
    with pytest.raises(RefusedCombination, match="none do"):
        phyla.load(str(folder), group="stacked", **options)


def test_stacking_an_encoded_scheme_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama"))
    with pytest.raises(UsageError, match="layer 0 .full. brings no stacked form"):
        phyla.load(str(folder), group="stacked", kv_scheme="affine:8")


def measured(fastest: str) -> Strategies:
    """Tables in which this way of attending was the fastest."""
    times = {name: 1.0 if name == fastest else 9.0 for name in ("grouped", "fused_mask", "loop")}
    sizes = {"rows": 8, "stored": 1024, "heads": 4, "kv_heads": 2, "head_dim": 16}
    return Strategies(replace(shipped_table("cpu"), points=(Point("attention", sizes, times),)))


@pytest.mark.parametrize(
    ("option", "fastest", "name"),
    [
        ("auto", "loop", "loop"),
        ("auto", "grouped", "stacked"),
        ("auto", "fused_mask", "stacked"),
        ("stacked", "loop", "stacked"),
        ("loop", "grouped", "loop"),
    ],
)
def test_measured_tables_decide_between_loop_and_stacked_where_nobody_else_does(
    option: GroupOption, fastest: str, name: str
) -> None:
    layout = toy_spec("FF").facts.layout
    group = Grouping(option, measured(fastest)).group(layout, RowState.fresh(layout, plain_state))
    assert group.name == name
