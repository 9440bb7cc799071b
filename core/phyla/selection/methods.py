"""Whether and how tokens are drafted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phyla.checkpoint import Checkpoint
from phyla.draft import DraftFacts, DraftMethod
from phyla.errors import PluginError, RefusedCombination, UnknownName
from phyla.kv import KVScheme
from phyla.model import ModelFacts
from phyla.plan import Choice
from phyla.plugins import Declared, plugin_border
from phyla.selection.wanted import Wanted

NO_METHOD = "none"
Methods = Mapping[str, Declared[DraftMethod]]


@dataclass(frozen=True)
class Target:
    """What a method has to fit."""

    checkpoint: Checkpoint
    facts: ModelFacts
    scheme: KVScheme | None


@dataclass(frozen=True)
class ChosenMethod:
    """A draft method with its drafter, or none."""

    choice: Choice
    method: Declared[DraftMethod] | None = None
    drafter: Checkpoint | None = None
    drafter_reference: str | None = None
    """None also for a drafter that travels inside the target's checkpoint."""

    draft_facts: DraftFacts | None = None
    notices: tuple[str, ...] = ()


def choose_method(
    wanted: Wanted, target: Target, draft_model: str | None, open_drafter: Callable[[str], Checkpoint], methods: Methods
) -> ChosenMethod:
    """The method that was asked for, or one whose drafter is there and fits.

    Args:
        draft_model: reference of a drafter, if one was named.
        open_drafter: opens it; called at most once.

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
        return _explicit(wanted, target, draft_model, open_drafter, methods)
    if draft_model is not None:
        drafter = open_drafter(draft_model)
        method = _recognise(drafter, methods)
        choice = wanted.choice(method.value.name, f"recognised {drafter.model_id}")
        return _fitting(choice, method, target, drafter, draft_model)
    return _automatic(wanted, target, methods)


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


def _explicit(
    wanted: Wanted, target: Target, draft_model: str | None, open_drafter: Callable[[str], Checkpoint], methods: Methods
) -> ChosenMethod:
    method = method_named(wanted.name, methods)
    choice = wanted.choice(method.value.name)
    if not method.value.needs_drafter:
        if draft_model is not None:
            raise RefusedCombination(
                f"Draft method '{method.value.name}' works without a drafter, so --draft-model {draft_model} would do "
                "nothing. Drop one of the two."
            )
        return _fitting(choice, method, target, None, None)
    drafter = open_drafter(draft_model) if draft_model is not None else _bundled(method, target)
    if drafter is None:
        raise RefusedCombination(
            f"Draft method '{method.value.name}' needs a drafter, and {target.checkpoint.model_id} carries none. Name "
            "one with --draft-model."
        )
    return _fitting(choice, method, target, drafter, draft_model)


def _automatic(wanted: Wanted, target: Target, methods: Methods) -> ChosenMethod:
    rejected: list[tuple[str, str]] = []
    for name, method in sorted(methods.items()):
        # Lab methods run only when named.
        if not method.value.auto or method.value.tier == "lab":
            continue
        drafter = _bundled(method, target)
        if drafter is None and method.value.needs_drafter:
            rejected.append((name, "no drafter was found"))
            continue
        try:
            return _fitting(
                wanted.choice(name, "its drafter came with the model", tuple(rejected)), method, target, drafter, None
            )
        except RefusedCombination as refusal:
            rejected.append((name, str(refusal)))
    notices = tuple(f"No drafting: {why}" for _, why in rejected if why != "no drafter was found")
    return ChosenMethod(wanted.choice(NO_METHOD, "nothing was asked for", tuple(rejected)), notices=notices)


def _recognise(drafter: Checkpoint, methods: Methods) -> Declared[DraftMethod]:
    found = []
    for _, method in sorted(methods.items()):
        with plugin_border(method.plugin, f"looking at {drafter.model_id}"):
            if method.value.detect(drafter):
                found.append(method)
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


def _bundled(method: Declared[DraftMethod], target: Target) -> Checkpoint | None:
    with plugin_border(method.plugin, f"looking for a drafter in {target.checkpoint.model_id}"):
        return method.value.bundled(target.checkpoint)


def _fitting(
    choice: Choice, method: Declared[DraftMethod], target: Target, drafter: Checkpoint | None, reference: str | None
) -> ChosenMethod:
    with plugin_border(method.plugin, "describing its drafter"):
        facts = method.value.describe(drafter)
        support = method.value.supports(target.facts, target.scheme)
    why = support.reason or _missing(facts, target.facts)
    if why is not None:
        raise RefusedCombination(
            f"Draft method '{method.value.name}' can't draft for {target.checkpoint.model_id}: {why}. "
            "Use --method none."
        )
    return ChosenMethod(choice, method, drafter, reference, facts)


def _missing(draft: DraftFacts, target: ModelFacts) -> str | None:
    heads = sorted(set(draft.heads) - set(target.heads))
    if heads:
        return f"it needs the target's {', '.join(heads)}, which family '{target.family}' doesn't offer"
    taps = [f"layer {tap.layer} ({tap.norm} norm)" for tap in draft.taps if tap not in target.taps]
    if taps:
        return f"it needs hidden rows of {', '.join(taps)}, which family '{target.family}' doesn't hand out"
    return None
