"""Which family binds a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phyla.checkpoint import Checkpoint
from phyla.errors import PluginError, UnsupportedModel
from phyla.model import Claim, ExplainsItself, Family, ModelFacts
from phyla.plan import Choice
from phyla.plugins import Declared, pick, plugin_border
from phyla.selection.wanted import Wanted

Families = Mapping[str, Declared[Family]]


@dataclass(frozen=True)
class ChosenFamily:
    """A family, and the checkpoint in its words."""

    choice: Choice
    family: Declared[Family]
    facts: ModelFacts


def choose_family(wanted: Wanted, checkpoint: Checkpoint, families: Families) -> ChosenFamily:
    """The family that was asked for, or the one with the highest claim.

    Raises:
        UnsupportedModel: nobody claims the config, or the named family doesn't; names who was asked.
        PluginError: two families claim it equally; names both.
        UnknownName: no family has the name that was asked for.
    """
    claims = {name: _claim(one, checkpoint) for name, one in families.items()}
    chosen = _best(checkpoint, claims, families) if wanted.is_auto else pick(families, "model family", wanted.name)
    claim = claims[chosen.value.name]
    if claim is Claim.NONE:
        raise UnsupportedModel(
            f"Model family '{wanted.name}' (plugin '{chosen.plugin}') doesn't know {_described(checkpoint)}. "
            f"{_alternatives(claims)}{_remedies(checkpoint, {wanted.name: chosen})}"
        )
    with plugin_border(chosen.plugin, f"describing {checkpoint.model_id}"):
        facts = chosen.value.describe(checkpoint)
    rejected = tuple(
        (name, f"claims it less well ({other.name.lower()})")
        for name, other in sorted(claims.items())
        if other is not Claim.NONE and name != chosen.value.name
    )
    reason = f"its claim is {claim.name.lower()}"
    return ChosenFamily(wanted.choice(chosen.value.name, reason if wanted.is_auto else "", rejected), chosen, facts)


def claiming(checkpoint: Checkpoint, families: Families) -> tuple[str, ...]:
    """Names of the families that could bind it."""
    return tuple(name for name, one in sorted(families.items()) if _claim(one, checkpoint) is not Claim.NONE)


def _claim(family: Declared[Family], checkpoint: Checkpoint) -> Claim:
    with plugin_border(family.plugin, f"looking at the config of {checkpoint.model_id}"):
        return Claim(family.value.claim(checkpoint.config))


def _best(checkpoint: Checkpoint, claims: Mapping[str, Claim], families: Families) -> Declared[Family]:
    best = max(claims.values(), default=Claim.NONE)
    if best is Claim.NONE:
        asked = ", ".join(f"{name} (plugin {one.plugin})" for name, one in sorted(families.items())) or "none"
        raise UnsupportedModel(
            f"No model family knows {_described(checkpoint)}. Families asked: {asked}. A plugin that brings one is "
            f"found as soon as it is installed beside phyla; docs/writing-plugins.md shows how to write it."
            f"{_remedies(checkpoint, families)}"
        )
    winners = [families[name] for name in sorted(claims) if claims[name] is best]
    if len(winners) > 1:
        one, other = winners[:2]
        raise PluginError(
            one.plugin,
            f"its family '{one.value.name}' and '{other.value.name}' of plugin '{other.plugin}' both claim "
            f"{_described(checkpoint)} as {best.name.lower()}. Name one with --family.",
        )
    return winners[0]


def _remedies(checkpoint: Checkpoint, families: Families) -> str:
    """What the families themselves know to do about it."""
    known = [
        f" {name}: {remedy}."
        for name, one in sorted(families.items())
        if isinstance(one.value, ExplainsItself) and (remedy := one.value.why_not(checkpoint.config)) is not None
    ]
    return "".join(known)


def _described(checkpoint: Checkpoint) -> str:
    model_type = checkpoint.config.get("model_type")
    return f"{checkpoint.model_id} (model_type {model_type!r})"


def _alternatives(claims: Mapping[str, Claim]) -> str:
    able = sorted(name for name, claim in claims.items() if claim is not Claim.NONE)
    return f"Families that do: {', '.join(able)}." if able else "No installed family does."
