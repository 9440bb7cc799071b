"""Whether and how tokens are drafted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phyla.checkpoint import Checkpoint
from phyla.draft import Drafter, DraftFacts, DraftMethod, DraftTarget
from phyla.errors import CheckpointError, PluginError, RefusedCombination, UnknownName
from phyla.model import ModelFacts
from phyla.plan import Choice
from phyla.plugins import Declared, plugin_border
from phyla.selection.families import ChosenFamily, Families, choose_family
from phyla.selection.openers import Opened
from phyla.selection.wanted import Wanted

NO_METHOD = "none"
Methods = Mapping[str, Declared[DraftMethod]]


@dataclass(frozen=True)
class ChosenMethod:
    """A draft method with its drafter, or none."""

    choice: Choice
    method: Declared[DraftMethod] | None = None
    drafter: Checkpoint | None = None
    drafter_reference: str | None = None
    """None also for a drafter that travels inside the target's checkpoint."""

    family: ChosenFamily | None = None
    """Of a drafter that is a model of its own."""

    draft_facts: DraftFacts | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offered:
    """Who could draft, and what for."""

    target: DraftTarget
    methods: Methods
    families: Families
    open_drafter: Callable[[str], Opened]
    """Opens the drafter that was named; called at most once."""


def choose_method(wanted: Wanted, offered: Offered, draft_model: str | None) -> ChosenMethod:
    """The method that was asked for, or one whose drafter is there and fits.

    Args:
        wanted: what was asked for.
        offered: who could draft, and for whom.
        draft_model: reference of a drafter, if one was named.

    Raises:
        UnknownName: no method has that name.
        RefusedCombination: the method, the drafter or the target exclude each other; says why and what to do.
        PluginError: two methods recognise the drafter; names both.
    """
    if wanted.name == NO_METHOD:
        if draft_model is not None:
            raise RefusedCombination(f"{wanted.where} {NO_METHOD} leaves nothing to do for --draft-model; drop one.")
        return ChosenMethod(wanted.choice(NO_METHOD))
    if not wanted.is_auto:
        return _explicit(wanted, offered, draft_model)
    if draft_model is not None:
        opened = offered.open_drafter(draft_model)
        method = _recognise(opened.checkpoint, offered.methods)
        choice = wanted.choice(method.value.name, f"recognised {opened.checkpoint.model_id}")
        return _fitting(choice, method, offered, opened.checkpoint, opened.reference)
    return _automatic(wanted, offered)


def method_named(name: str, methods: Methods) -> Declared[DraftMethod]:
    """The method of that name or alias.

    Raises:
        UnknownName: there is none.
    """
    aliases = {alias: one for one in methods.values() for alias in one.value.aliases}
    found = methods.get(name) or aliases.get(name)
    if found is None:
        raise UnknownName("draft method", name, [*methods, *aliases, NO_METHOD])
    return found


def recognising(drafter: Checkpoint, methods: Methods) -> list[Declared[DraftMethod]]:
    """The methods that it is a drafter of."""
    found = []
    for _, method in sorted(methods.items()):
        with plugin_border(method.plugin, f"looking at {drafter.model_id}"):
            if method.value.detect(drafter):
                found.append(method)
    return found


def _explicit(wanted: Wanted, offered: Offered, draft_model: str | None) -> ChosenMethod:
    target = offered.target
    method = method_named(wanted.name, offered.methods)
    choice = wanted.choice(method.value.name)
    if not method.value.needs_drafter:
        if draft_model is not None:
            raise RefusedCombination(
                f"Draft method '{method.value.name}' works without a drafter, so --draft-model {draft_model} would do "
                "nothing. Drop one of the two."
            )
        return _fitting(choice, method, offered, None, None)
    opened = None if draft_model is None else offered.open_drafter(draft_model)
    drafter = _bundled(method, target) if opened is None else opened.checkpoint
    if drafter is None:
        raise RefusedCombination(
            f"Draft method '{method.value.name}' needs a drafter, and {target.checkpoint.model_id} carries none. Name "
            "one with --draft-model."
        )
    return _fitting(choice, method, offered, drafter, None if opened is None else opened.reference)


def _automatic(wanted: Wanted, offered: Offered) -> ChosenMethod:
    rejected: list[tuple[str, str]] = []
    for name, method in sorted(offered.methods.items()):
        # Lab methods run only when named.
        if not method.value.auto or method.value.tier == "lab":
            continue
        drafter = _bundled(method, offered.target)
        if drafter is None and method.value.needs_drafter:
            rejected.append((name, "no drafter was found"))
            continue
        try:
            choice = wanted.choice(name, "its drafter came with the model", tuple(rejected))
            return _fitting(choice, method, offered, drafter, None)
        except RefusedCombination as refusal:
            rejected.append((name, str(refusal)))
    notices = tuple(f"No drafting: {why}" for _, why in rejected if why != "no drafter was found")
    return ChosenMethod(wanted.choice(NO_METHOD, "nothing was asked for", tuple(rejected)), notices=notices)


def _recognise(drafter: Checkpoint, methods: Methods) -> Declared[DraftMethod]:
    found = recognising(drafter, methods)
    if not found:
        raise RefusedCombination(
            f"No draft method recognises {drafter.model_id} (asked: {', '.join(sorted(methods)) or 'none'}). Name one "
            "with --method."
        )
    if len(found) > 1:
        one, other = found[:2]
        raise PluginError(
            one.plugin,
            f"its method '{one.value.name}' and '{other.value.name}' of plugin '{other.plugin}' both recognise "
            f"{drafter.model_id}. Name one with --method.",
        )
    return found[0]


def _bundled(method: Declared[DraftMethod], target: DraftTarget) -> Checkpoint | None:
    with plugin_border(method.plugin, f"looking for a drafter in {target.checkpoint.model_id}"):
        return method.value.bundled(target.checkpoint)


def _fitting(
    choice: Choice, method: Declared[DraftMethod], offered: Offered, opened: Checkpoint | None, reference: str | None
) -> ChosenMethod:
    target, family = offered.target, None
    if opened is not None and method.value.drafter_is_model:
        family = _family_of(opened, method.value.name, offered.families)
    drafter = None if opened is None else Drafter(opened, None if family is None else family.facts)
    with plugin_border(method.plugin, "describing its drafter"):
        why = method.value.supports(target, drafter).reason
        if why is None:
            facts = method.value.describe(target, drafter)
            why = _missing(facts, target.facts)
    if why is not None:
        raise RefusedCombination(
            f"Draft method '{method.value.name}' can't draft for {target.checkpoint.model_id}: {why}. "
            f"{_remedy(choice, reference)}"
        )
    return ChosenMethod(choice, method, opened, reference, family, facts, facts.notes)


def _remedy(choice: Choice, reference: str | None) -> str:
    """What makes the same command run, without drafts."""
    is_asked = choice.chosen_by in ("flag", "variable", "file")
    asked = [*(["--method"] if is_asked else []), *(["--draft-model"] if reference is not None else [])]
    return f"Leave {' and '.join(asked)} away." if asked else f"Use --method {NO_METHOD}."


def _family_of(drafter: Checkpoint, method: str, families: Families) -> ChosenFamily:
    try:
        return choose_family(Wanted(), drafter, families)
    except CheckpointError as error:
        error.add_note(f"Draft method '{method}' runs its drafter {drafter.model_id} as a model of its own.")
        raise


def _missing(draft: DraftFacts, target: ModelFacts) -> str | None:
    heads = sorted(set(draft.heads) - set(target.heads))
    if heads:
        return f"it needs the target's {', '.join(heads)}, which family '{target.family}' doesn't offer"
    taps = [f"layer {tap.layer} ({tap.norm} norm)" for tap in draft.taps if tap not in target.taps]
    if taps:
        return f"it needs hidden rows of {', '.join(taps)}, which family '{target.family}' doesn't hand out"
    return None
