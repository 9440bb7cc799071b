"""Random conversations on every layer kind, against a model of what may and what must be served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.engine.engine import Engine
from phyla.request import SamplingParams
from phyla.testing.engines import EventLog, a_request, running, toy_spec
from phyla.testing.reuse import Seen, prompt_cache, reusing

GREEDY = SamplingParams(ignore_eos=True)
CHUNK = 8
SETTINGS = {"prefill_chunk": CHUNK}
TOKENS = 3
NO_LIMIT = {"max_boundaries": 1000}
small_ids = st.integers(3, 6)
Action = Literal["go on", "edit", "fork", "truncate", "start over", "clear", "close session"]


@dataclass(frozen=True)
class Turn:
    """One thing that a client does."""

    action: Action
    which: int
    """Which earlier conversation it is about."""

    place: int
    new: tuple[int, ...]
    owner: str
    session: str | None


turns = st.lists(
    st.builds(
        Turn,
        action=st.sampled_from(
            ["go on", "go on", "go on", "edit", "fork", "truncate", "start over", "clear", "close session"]
        ),
        which=st.integers(0, 3),
        place=st.integers(0, 40),
        new=st.lists(small_ids, min_size=1, max_size=14).map(tuple),
        owner=st.sampled_from(["one", "one", "two"]),
        session=st.sampled_from([None, "a", "b"]),
    ),
    min_size=2,
    max_size=9,
)


@dataclass
class Remembered:
    """What a perfect memory of one owner would know."""

    computed: list[tuple[int, ...]] = field(default_factory=list)
    """Every row's tokens, the never computed last one left out."""

    retained: set[tuple[int, ...]] = field(default_factory=set)
    """Prefixes whose end is a boundary in any case: of a prompt but for its last token, and of an answer."""

    def best(self, prompt: Sequence[int]) -> int:
        """The most that could be served if every layer could go back anywhere."""
        return max((num_common(one, prompt[:-1]) for one in self.computed), default=0)

    def surely(self, prompt: Sequence[int]) -> int:
        """The longest boundary that every layer kind retains."""
        return max(
            (len(one) for one in self.retained if one == tuple(prompt[: len(one)]) and len(one) < len(prompt)),
            default=0,
        )

    def add(self, prompt: tuple[int, ...], row: tuple[int, ...]) -> None:
        self.computed.append(row)
        self.retained |= {prompt[:-1], row} - {()}


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def prompt_of(turn: Turn, conversations: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if not conversations or turn.action == "start over":
        return turn.new
    base = conversations[turn.which % len(conversations)]
    place = turn.place % (len(base) + 1)
    match turn.action:
        case "edit":
            return (*base[:place], 7, *base[place + 1 :], *turn.new)
        case "fork":
            return (*base[:place], *turn.new)
        case "truncate":
            return base[: max(1, place)]
        case _:
            return (*base, *turn.new)


def served(
    engine: Engine, log: EventLog, seen: Seen, name: str, prompt: tuple[int, ...], turn: Turn
) -> tuple[int, list[int]]:
    """Tokens reused and tokens said; what the forwards saw is checked on the way."""
    seen.steps.clear()
    engine.submit(a_request(name, prompt, TOKENS, GREEDY, owner=turn.owner, session_id=turn.session))
    heard = log.wait(name)
    num_cached = heard.finished.usage.num_cached_tokens
    assert seen.num_tokens == len(prompt) - num_cached + TOKENS - 1
    return num_cached, heard.ids


@pytest.mark.parametrize("layers", ["FF", "FS", "FR", "FL", "SRFL"])
@settings(max_examples=12, deadline=None)
@given(turns=turns)
def test_what_may_be_served_is_served_and_changes_no_token(layers: str, turns: list[Turn]) -> None:
    memory: dict[str, Remembered] = {"one": Remembered(), "two": Remembered()}
    conversations: list[tuple[int, ...]] = []
    said: list[tuple[tuple[int, ...], list[int]]] = []
    names = count()
    with reusing(toy_spec(layers, SETTINGS), index_options=NO_LIMIT) as (engine, log, seen):
        for turn in turns:
            if turn.action == "clear":
                engine.clear_prefix_cache()
                memory = {owner: Remembered() for owner in memory}
                continue
            if turn.action == "close session":
                engine.close_session(turn.session or "a", turn.owner)
                continue
            prompt = prompt_of(turn, conversations)
            num_cached, ids = served(engine, log, seen, f"turn-{next(names)}", prompt, turn)
            known = memory[turn.owner]
            assert known.surely(prompt) <= num_cached <= known.best(prompt)
            assert layers not in ("FF", "FL") or num_cached == known.best(prompt)
            row = (*prompt, *ids[:-1])
            known.add(prompt, row)
            conversations.append((*prompt, *ids))
            said.append((prompt, ids))
    assert_said_without(layers, said)


@pytest.mark.parametrize("layers", ["FS", "FR"])
@settings(max_examples=12, deadline=None)
@given(turns=turns, budget=st.integers(1, 60))
def test_a_small_budget_is_kept_and_changes_no_token(layers: str, turns: list[Turn], budget: int) -> None:
    conversations: list[tuple[int, ...]] = []
    said: list[tuple[tuple[int, ...], list[int]]] = []
    names = count()
    budget_bytes = budget << 10
    with reusing(toy_spec(layers, SETTINGS), budget_bytes=budget_bytes) as (engine, log, seen):
        for turn in turns:
            prompt = prompt_of(turn, conversations)
            _, ids = served(engine, log, seen, f"turn-{next(names)}", prompt, turn)
            assert prompt_cache(engine)["bytes"] <= budget_bytes
            conversations.append((*prompt, *ids))
            said.append((prompt, ids))
    assert_said_without(layers, said)


def assert_said_without(layers: str, said: Sequence[tuple[tuple[int, ...], list[int]]]) -> None:
    """The same prompts get the same tokens where nothing is kept."""
    with running(toy_spec(layers, SETTINGS)) as (engine, log):
        for number, (prompt, ids) in enumerate(said):
            engine.submit(a_request(f"cold-{number}", prompt, TOKENS, GREEDY))
            assert log.wait(f"cold-{number}").ids == ids
