"""The method contract catches a method of which it would prove nothing, and lets one say that it can't do more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from phyla.draft.method import DraftFacts, DraftMethod
from phyla.testing.drafting import Script, ScriptedProvider, TableModel
from phyla.testing.engines import TOY_VOCAB
from phyla.testing.method import MethodContract


class Quiet(MethodContract):
    least = "nothing"


class Wrong(MethodContract):
    least = "drafted"


def scripted(script: Script) -> DraftMethod:
    return DraftMethod("scripted", lambda *_: ScriptedProvider(script), lambda *_: DraftFacts())


SILENT = scripted(lambda history, room: [])
NEVER_RIGHT = scripted(lambda history, room: [TOY_VOCAB] * room)
"""Proposes a word that no toy has."""


def lone_row(contract: MethodContract, method: DraftMethod) -> None:
    contract.test_a_lone_row_gets_the_tokens_of_plain_decoding(method, None, "FF")


def company(contract: MethodContract, method: DraftMethod) -> None:
    contract.test_rows_that_join_one_by_one_get_what_each_gets_alone(method, None, "FF")


def next_turn(contract: MethodContract, method: DraftMethod) -> None:
    contract.test_the_next_turn_goes_on_with_the_drafters_state(method, None, "FF")


def samples(contract: MethodContract, method: DraftMethod) -> None:
    provider: Any = method.create(None, None)  # type: ignore[arg-type]
    contract.test_samples_keep_their_distribution_under_rejection(provider, TableModel(TOY_VOCAB, num_context=1))


def room(contract: MethodContract, method: DraftMethod) -> None:
    contract.test_it_never_proposes_more_than_there_is_room_for(method.create(None, None))  # type: ignore[arg-type]


Run = Callable[[MethodContract, DraftMethod], None]
EVERYWHERE = pytest.mark.parametrize("run", [lone_row, company, next_turn, samples, room])


@EVERYWHERE
def test_a_method_that_never_proposes_is_caught(run: Run) -> None:
    with pytest.raises(AssertionError, match="nothing was drafted.*`least = 'nothing'`"):
        run(MethodContract(), SILENT)


@EVERYWHERE
def test_one_that_says_so_is_let_through(run: Run) -> None:
    run(Quiet(), SILENT)


@pytest.mark.parametrize("run", [lone_row, company, samples])
def test_a_method_that_is_never_right_is_caught_unless_it_says_so(run: Run) -> None:
    with pytest.raises(AssertionError, match="none of .* drafts was accepted.*`least = 'drafted'`"):
        run(MethodContract(), NEVER_RIGHT)
    run(Wrong(), NEVER_RIGHT)
