"""What a config says about rotary positions. No mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from phyla.errors import DamagedCheckpoint, UnsupportedModel

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeForm:
    """How positions turn into angles."""

    base: float
    """`rope_theta`."""

    kind: RopeKind = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """The section that describes the stretching, as the checkpoint has it."""

    interleaved: bool = False
    """Pairs 2i with 2i+1 instead of i with i + half."""


def rope_form(config: Mapping[str, Any], default_base: float | None = None) -> RopeForm:
    """Read `rope_theta` and `rope_scaling`, or `rope_parameters`, which newer checkpoints put both into.

    Args:
        config: the section that holds the language keys.
        default_base: for a config that names no base.

    Raises:
        UnsupportedModel: a type that isn't known here.
        DamagedCheckpoint: no base, or a stretching without its factor.
    """
    nested = _section(config, "rope_parameters")
    scaling = _section(config, "rope_scaling") or nested
    base = config.get("rope_theta") or nested.get("rope_theta") or default_base
    if not isinstance(base, int | float) or base <= 0:
        raise DamagedCheckpoint(f"'rope_theta' is {base!r}; it has to be a positive number.")
    # Both spellings are in use, either may be null, and the older one wins where both stand, as in mlx-lm.
    asked = scaling.get("type") or scaling.get("rope_type") or "default"
    kind: RopeKind | None = next((known for known in get_args(RopeKind) if known == asked), None)
    if kind is None:
        raise UnsupportedModel(f"'rope_scaling' is of type '{asked}'; known are {', '.join(get_args(RopeKind))}.")
    factor = scaling.get("factor")
    if kind != "default" and not (isinstance(factor, int | float) and factor > 0):
        raise DamagedCheckpoint(f"'rope_scaling' of type '{kind}' has factor {factor!r}; it needs a positive number.")
    return RopeForm(base, kind, scaling, bool(config.get("rope_traditional", False)))


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = config.get(key) or {}
    if not isinstance(section, Mapping):
        raise DamagedCheckpoint(f"'{key}' is {section!r}; it has to be an object or null.")
    return section
