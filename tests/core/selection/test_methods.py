"""Drafting: asked for, recognised, found, or refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from phyla.backend import BackendFacts
from phyla.draft import DraftFacts, DraftMethod
from phyla.draft.settings import DraftSettings
from phyla.errors import PluginError, RefusedCombination, UnknownName
from phyla.kv import refused
from phyla.model import Tap
from phyla.plan import Plan
from phyla.plugins import PluginManager
from phyla.selection import SelectionSettings, select
from phyla.settings import PluginSettings, load_settings, setting
from phyla.testing.toy import toy_config

from tests.core.selection.conftest import Declaring, ShelfCheckpoint, shelf

DRAFTER = ShelfCheckpoint("small", {"model_type": "small"})
CARRIER = ShelfCheckpoint("carrier", toy_config("FF"), drafter=DRAFTER)


def method(name: str, **more: Any) -> DraftMethod:
    return DraftMethod(name, create=lambda target, drafter: pytest.fail("not created here"), **more)


def drafting(name: str, **more: Any) -> DraftMethod:
    """A method with a drafter that it recognises."""
    return method(
        name,
        needs_drafter=True,
        detect=lambda drafter: drafter.config["model_type"] == "small",
        bundled=lambda target: target.companion(name),
        **more,
    )


class GuessSettings(PluginSettings, section="guess"):
    luck: int = setting(1, flag="--luck")


def choose(
    manager: PluginManager, backend: BackendFacts, *methods: DraftMethod, reference: str = "toy", **flags: str
) -> Plan:
    manager.register("drafts", Declaring(methods=methods, openers=[more_models()]))
    spelt = {name if name.isupper() else f"--{name.replace('_', '-')}": text for name, text in flags.items()}
    env = {name: spelt.pop(name) for name in [*spelt] if name.startswith("PHYLA_")}
    sections = [SelectionSettings, DraftSettings, GuessSettings]
    return select(reference, manager, load_settings(sections, flags=spelt, env=env), backend)


def more_models() -> Any:
    return replace(shelf(small=DRAFTER, carrier=CARRIER), name="second shelf")


def test_nothing_drafts_unless_asked(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, method("guess"), drafting("heads", auto=True))
    assert plan.method.name == "none"
    assert plan.method.rejected == (("heads", "no drafter was found"),)


def test_a_named_method_drafts(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, method("guess"), method="guess", num_draft_tokens="5")
    assert (plan.method.name, plan.method.chosen_by, plan.num_draft_tokens) == ("guess", "flag", 5)


def test_an_alias_names_a_method(manager: PluginManager, backend: BackendFacts) -> None:
    assert choose(manager, backend, method("guess", aliases=("hunch",)), draft_kind="hunch").method.name == "guess"


def test_a_drafter_is_recognised(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, method("guess"), drafting("heads"), draft_model="small")
    assert (plan.method.name, plan.drafter_reference) == ("heads", "small")
    assert plan.method.reason == "recognised shelf/small"


def test_a_drafter_that_two_methods_recognise_is_an_error_naming_both(
    manager: PluginManager, backend: BackendFacts
) -> None:
    with pytest.raises(PluginError, match="'heads' and 'tails'.*both recognise shelf/small.*--method"):
        choose(manager, backend, drafting("heads"), drafting("tails"), draft_model="small")


def test_a_drafter_that_nobody_recognises_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(RefusedCombination, match=r"No draft method recognises shelf/small \(asked: guess\)"):
        choose(manager, backend, method("guess"), draft_model="small")


def test_a_drafter_inside_the_checkpoint_is_used_by_auto(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, drafting("heads", auto=True), reference="carrier")
    assert (plan.method.name, plan.method.chosen_by, plan.drafter_reference) == ("heads", "auto", None)


def test_auto_never_picks_a_lab_method(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, drafting("heads", auto=True, tier="lab"), reference="carrier")
    assert plan.method.name == "none"


def test_auto_falls_back_when_the_method_does_not_fit_and_says_so(
    manager: PluginManager, backend: BackendFacts
) -> None:
    unfit = drafting("heads", auto=True, supports=lambda target, drafter: refused("it is another size"))
    plan = choose(manager, backend, unfit, reference="carrier")
    assert plan.method.name == "none"
    assert any("it is another size. Use --method none." in notice for notice in plan.notices)


def test_a_named_method_that_does_not_fit_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    unfit = method("guess", supports=lambda target, drafter: refused("it is another size"))
    with pytest.raises(RefusedCombination, match="'guess' can't draft for shelf/toy: it is another size"):
        choose(manager, backend, unfit, method="guess")


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({"method": "heads"}, "Leave --method away."),
        ({"draft_model": "small"}, "Leave --draft-model away."),
        ({"method": "heads", "draft_model": "small"}, "Leave --method and --draft-model away."),
    ],
)
def test_the_remedy_of_a_refusal_is_to_leave_away_what_asked_for_it(
    manager: PluginManager, backend: BackendFacts, flags: dict[str, str], remedy: str
) -> None:
    unfit = drafting("heads", supports=lambda target, drafter: refused("it is another size"))
    with pytest.raises(RefusedCombination) as caught:
        choose(manager, backend, unfit, reference="carrier", **flags)
    assert str(caught.value).endswith(f": it is another size. {remedy}")


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (DraftFacts(heads=("oracle",)), "it needs the target's oracle"),
        (DraftFacts(taps=(Tap(99),)), r"hidden rows of layer 99 \(pre norm\)"),
    ],
)
def test_what_the_target_does_not_offer_is_named(
    manager: PluginManager, backend: BackendFacts, needed: DraftFacts, said: str
) -> None:
    with pytest.raises(RefusedCombination, match=said):
        choose(manager, backend, method("guess", describe=lambda target, drafter: needed), method="guess")


def test_a_method_without_its_drafter_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(RefusedCombination, match="'heads' needs a drafter.*--draft-model"):
        choose(manager, backend, drafting("heads"), method="heads")


def test_a_method_that_needs_no_drafter_refuses_one(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(RefusedCombination, match="'guess' works without a drafter"):
        choose(manager, backend, method("guess"), method="guess", draft_model="small")


def test_no_drafting_and_a_drafter_exclude_each_other(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(RefusedCombination, match="--method none leaves nothing to do for --draft-model"):
        choose(manager, backend, drafting("heads"), method="none", draft_model="small")


def test_an_unknown_method_names_the_near_match(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(UnknownName, match=r"no draft method 'gues'\. Did you mean 'guess'"):
        choose(manager, backend, method("guess"), method="gues")


GUESS = method("guess", settings=GuessSettings)


@pytest.mark.parametrize("flag", ["num_draft_tokens", "spec_acceptance", "draft_adaptive", "luck"])
def test_a_flag_about_drafts_is_refused_where_nobody_asked_for_any(
    manager: PluginManager, backend: BackendFacts, flag: str
) -> None:
    value = {"spec_acceptance": "rejection", "draft_adaptive": "off"}.get(flag, "5")
    spelt = f"--{flag.replace('_', '-')}"
    with pytest.raises(RefusedCombination, match=f"^{spelt} would do nothing, since nothing drafts: .*--method.*away"):
        choose(manager, backend, GUESS, **{flag: value})


def test_a_flag_of_a_method_reaches_it(manager: PluginManager, backend: BackendFacts) -> None:
    assert choose(manager, backend, GUESS, method="guess", luck="5", num_draft_tokens="5").notices == ()


def test_a_flag_of_another_method_is_refused(manager: PluginManager, backend: BackendFacts) -> None:
    with pytest.raises(RefusedCombination, match="--luck would do nothing, since 'dream' drafts: take --method guess"):
        choose(manager, backend, GUESS, method("dream"), method="dream", luck="5")


def test_switched_off_drafts_make_a_note_of_their_flags(manager: PluginManager, backend: BackendFacts) -> None:
    plan = choose(manager, backend, GUESS, method="none", num_draft_tokens="5", luck="5")
    assert plan.notices == (
        "--num-draft-tokens has no effect: nothing drafts.",
        "--luck has no effect: nothing drafts.",
    )


def test_a_variable_about_drafts_waits_for_some(manager: PluginManager, backend: BackendFacts) -> None:
    assert choose(manager, backend, GUESS, PHYLA_SELECTION__NUM_DRAFT_TOKENS="5", PHYLA_GUESS__LUCK="5").notices == ()
