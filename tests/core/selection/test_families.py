"""Who opens a reference and who binds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from phyla.backend import BackendFacts
from phyla.checkpoint import CheckpointOpener
from phyla.draft import DraftMethod
from phyla.errors import CheckpointNotFound, PluginError, UnknownName, UnsupportedModel
from phyla.kv.plain import PLAIN
from phyla.model import Claim
from phyla.plan import Plan
from phyla.plugins import PluginManager
from phyla.selection import SelectionSettings, select
from phyla.settings import Settings, load_settings
from phyla.testing.toy import ToyFamily

from tests.core.selection.conftest import TOY, Declaring, ShelfCheckpoint, shelf


class Rival(ToyFamily):
    """Claims toys as it is told."""

    name = "rival"

    def __init__(self, claimed: Claim) -> None:
        self._claimed = claimed

    def claim(self, config: Mapping[str, Any]) -> Claim:
        return self._claimed


def choose(manager: PluginManager, backend: BackendFacts, reference: str = "toy", **flags: str) -> Plan:
    settings = load_settings([SelectionSettings], flags={f"--{name}": text for name, text in flags.items()}, env={})
    return select(reference, manager, settings, backend)


def test_the_highest_claim_binds_and_the_others_are_named(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("rivals", Declaring(families=[Rival(Claim.EXACT)]))
    choice = choose(manager, backend).family
    assert (choice.name, choice.chosen_by) == ("rival", "auto")
    assert choice.rejected == (("toy", "claims it less well (close)"),)


def test_two_equal_claims_are_an_error_naming_both(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("rivals", Declaring(families=[Rival(Claim.CLOSE)]))
    with pytest.raises(PluginError, match="'rivals'.*'rival' and 'toy' of plugin 'base' both claim.*--family"):
        choose(manager, backend)


def test_a_named_family_wins_over_a_higher_claim(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("rivals", Declaring(families=[Rival(Claim.EXACT)]))
    choice = choose(manager, backend, family="toy").family
    assert (choice.name, choice.chosen_by, choice.reason) == ("toy", "flag", "asked for with --family")


def test_a_named_family_that_does_not_know_the_model_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("rivals", Declaring(families=[Rival(Claim.NONE)]))
    with pytest.raises(UnsupportedModel, match=r"'rival' \(plugin 'rivals'\) doesn't know .*Families that do: toy"):
        choose(manager, backend, family="rival")


def test_an_unknown_family_names_the_near_match(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(UnknownName, match=r"no model family 'toys'\. Did you mean 'toy'"):
        choose(manager, backend, family="toys")


def test_an_unsupported_model_names_who_was_asked_and_how_to_add_one(backend: BackendFacts) -> None:
    manager = PluginManager()
    odd = ShelfCheckpoint("odd", {"model_type": "abacus"})
    manager.register("base", Declaring(openers=[shelf(odd=odd)], families=[ToyFamily()], schemes=[PLAIN]))
    with pytest.raises(UnsupportedModel, match=r"'abacus'.*toy \(plugin base\).*docs/writing-plugins.md"):
        choose(manager, backend, "odd")


def test_a_reference_nobody_opens_names_the_openers(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(CheckpointNotFound, match="Nothing opens 'lost'.*shelf"):
        choose(manager, backend, "lost")


def test_two_openers_with_one_rank_are_an_error_naming_both(manager: PluginManager, backend: BackendFacts) -> None:
    other = CheckpointOpener("drawer", rank=lambda reference: 100, open=lambda reference: TOY)
    manager.register("furniture", Declaring(openers=[other]))
    with pytest.raises(PluginError, match="'drawer' and 'shelf'.*rank 100|'shelf' and 'drawer'.*rank 100"):
        choose(manager, backend)


def test_a_higher_ranking_opener_opens(manager: PluginManager, backend: BackendFacts) -> None:
    other = CheckpointOpener("drawer", rank=lambda reference: 101, open=lambda reference: TOY)
    manager.register("furniture", Declaring(openers=[other]))
    assert choose(manager, backend).opener == "drawer"


def test_a_family_that_raises_while_describing_is_named(backend: BackendFacts) -> None:
    class Clumsy(ToyFamily):
        def describe(self, checkpoint: Any) -> Any:
            raise KeyError("hidden_size")

    manager = PluginManager()
    manager.register("clumsy", Declaring(openers=[shelf(toy=TOY)], families=[Clumsy()], schemes=[PLAIN]))
    with pytest.raises(PluginError, match="Plugin 'clumsy': it raised KeyError while describing shelf/toy"):
        select("toy", manager, Settings(), backend)


@pytest.mark.parametrize("is_model", [False, True])
def test_a_draft_head_in_the_place_of_a_model_is_told_where_it_belongs(
    manager: PluginManager, backend: BackendFacts, is_model: bool
) -> None:
    head = ShelfCheckpoint("head", {"model_type": "head"})
    method = DraftMethod(
        "heads",
        create=lambda target, drafter: pytest.fail("not created here"),
        detect=lambda drafter: drafter is head,
        drafter_is_model=is_model,
    )
    openers = [replace(shelf(head=head), name="other shelf")]
    manager.register("drafts", Declaring(methods=[method], openers=openers))
    with pytest.raises(UnsupportedModel, match="No model family knows") as raised:
        choose(manager, backend, "head")
    said = "\n".join(getattr(raised.value, "__notes__", []))
    assert ("draft head for method 'heads'" in said) is not is_model


class Explaining(Rival):
    """Knows what to do about a model that it doesn't claim."""

    name = "explaining"

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        return "install its library"


@pytest.mark.parametrize("family", ["auto", "explaining"])
def test_a_family_that_could_know_a_model_says_what_that_takes(
    manager: PluginManager, backend: BackendFacts, family: str
) -> None:
    manager.register("able", Declaring(families=[Explaining(Claim.NONE)]))
    stranger = ShelfCheckpoint("stranger", {"model_type": "stranger"})
    other = replace(shelf(stranger=stranger), name="other shelf")
    manager.register("shelf", Declaring(openers=[other]))
    with pytest.raises(UnsupportedModel, match="explaining: install its library"):
        choose(manager, backend, "stranger", family=family)
