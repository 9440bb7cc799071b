"""What a settings section is, and what its fields say about flags and variables."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

PREFIX = "PHYLA_"


class PluginSettings(BaseModel):
    """Base of every settings section. Frozen; unknown keys are errors.

    Class arguments:
        section: name of the section; defaults to the class's name without `Settings`, in lower case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)

    section_name: ClassVar[str] = ""

    def __init_subclass__(cls, section: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.section_name = section or cls.__name__.removesuffix("Settings").lower()


def setting(
    default: Any,
    *,
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    switches: Mapping[str, str] | None = None,
    lever: str | tuple[str, ...] | None = None,
    inverted_lever: str | None = None,
    metavar: str | None = None,
    **constraints: Any,
) -> Any:
    """A field that a flag or a lever also sets.

    A `bool` field's flag takes no value (`--paged-kv`, and `--no-paged-kv` to take it back); an `OnOff` one takes a
    word. A tuple field's flag may be repeated; its variable is separated by commas.

    Args:
        default: the value when nothing sets it; validated like any other.
        flag: the command-line spelling, `--batch`.
        aliases: other spellings of the flag.
        switches: flags without a value, each with the value it stands for: `{"--no-open": "0"}`.
        lever: suffix of a `PHYLA_` variable that sets it too: `RD_PREFILL_CHUNK`; several are tried in turn.
        inverted_lever: suffix of a variable whose 1 means off: `NO_FUSED_SDPA`.
        metavar: what `--help` calls the value.
        constraints: pydantic's own: `ge`, `le`, `pattern`, ...
    """
    levers = (lever,) if isinstance(lever, str) else lever or ()
    extra: JsonDict = {
        "flag": flag,
        "aliases": list(aliases),
        "switches": dict(switches or {}),
        "levers": list(levers),
        "inverted_lever": inverted_lever,
        "metavar": metavar,
    }
    return Field(default, json_schema_extra=extra, **constraints)


@dataclass(frozen=True)
class SettingField:
    """One field of a section, as the command line, the loader and the docs page see it."""

    section: type[PluginSettings]
    name: str
    flag: str | None
    aliases: tuple[str, ...]
    switches: Mapping[str, str]
    levers: tuple[str, ...]
    """Full names of the variables that upstream's levers became."""

    inverted_lever: str | None
    metavar: str | None
    default: Any
    """As declared, before validation: what the docs show."""

    description: str
    choices: tuple[str, ...]
    """Values of a `Literal`, else empty."""

    is_bool: bool
    takes_word: bool
    """A boolean whose flag takes `on` or `off`."""

    is_many: bool
    """A tuple or list: its flag may be repeated."""

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.section.section_name}__{self.name}".upper()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every flag that sets the field, those that take no value included."""
        taken_back = (f"--no-{self.flag.removeprefix('--')}",) if self.flag and self.is_switch else ()
        return (*((self.flag,) if self.flag else ()), *self.aliases, *taken_back, *self.switches)

    @property
    def is_switch(self) -> bool:
        """The flag takes no value."""
        return self.is_bool and not self.takes_word

    @property
    def where(self) -> str:
        """How messages call it: the flag if it has one, else section and key."""
        return self.flag or f"[{self.section.section_name}] {self.name}"


def declared_fields(section: type[PluginSettings]) -> tuple[SettingField, ...]:
    """The fields of a section in the order they were written."""
    return tuple(_field(section, name, info) for name, info in section.model_fields.items())


def _field(section: type[PluginSettings], name: str, info: FieldInfo) -> SettingField:
    extra: Mapping[str, Any] = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    leaves = _leaves(info.annotation)
    inverted = extra.get("inverted_lever")
    return SettingField(
        section=section,
        name=name,
        flag=extra.get("flag"),
        aliases=tuple(extra.get("aliases", ())),
        switches=dict(extra.get("switches", {})),
        levers=tuple(f"{PREFIX}{lever}" for lever in extra.get("levers", ())),
        inverted_lever=f"{PREFIX}{inverted}" if inverted else None,
        metavar=extra.get("metavar"),
        default=info.get_default(call_default_factory=True, validated_data={}),
        description=info.description or "",
        choices=tuple(str(choice) for leaf in leaves if get_origin(leaf) is Literal for choice in get_args(leaf)),
        is_bool=bool in leaves,
        takes_word="word" in [*info.metadata, *_metadata(info.annotation)],
        is_many=any(get_origin(leaf) in (tuple, list, frozenset) for leaf in leaves),
    )


def _leaves(annotation: Any) -> list[Any]:
    """The members of a union, annotations taken off."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [leaf for one in typing.get_args(annotation) for leaf in _leaves(one)]
    return [annotation]


def _metadata(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return [*get_args(annotation)[1:], *_metadata(get_args(annotation)[0])]
    if origin in (Union, UnionType):
        return [one for member in get_args(annotation) for one in _metadata(member)]
    return []
