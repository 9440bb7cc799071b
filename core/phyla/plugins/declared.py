"""Declarations with the name of the plugin they came from, so that every message can say who."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from phyla.errors import PhylaError, PluginError, UnknownName

T = TypeVar("T")


class Named(Protocol):
    """Anything a user picks by name."""

    @property
    def name(self) -> str: ...


NamedT = TypeVar("NamedT", bound=Named)


@dataclass(frozen=True)
class Declared(Generic[T]):
    """One thing that a plugin declared."""

    plugin: str
    value: T


def by_name(declared: Iterable[Declared[NamedT]], what: str) -> Mapping[str, Declared[NamedT]]:
    """The declarations by their names.

    Raises:
        PluginError: two plugins, or one twice, declare the same name.
    """
    named: dict[str, Declared[NamedT]] = {}
    for one in declared:
        other = named.setdefault(one.value.name, one)
        if other is not one:
            raise PluginError(
                one.plugin,
                f"it declares the {what} '{one.value.name}', and so does plugin '{other.plugin}'. "
                f"Switch one off with --disable.",
            )
    return named


def pick(named: Mapping[str, Declared[NamedT]], what: str, name: str) -> Declared[NamedT]:
    """The declaration of that name.

    Raises:
        UnknownName: there is none; lists the near match and what exists.
    """
    found = named.get(name)
    if found is None:
        raise UnknownName(what, name, named)
    return found


@contextmanager
def plugin_border(plugin: str, doing: str) -> Iterator[None]:
    """Whatever is raised inside carries the plugin's name when it comes out.

    Errors that Phyla knows keep their class, and so their exit code and HTTP status; anything else becomes a
    PluginError.
    """
    try:
        yield
    except PhylaError as error:
        error.add_note(f"Raised by plugin '{plugin}' while {doing}.")
        raise
    except Exception as error:
        raise PluginError(
            plugin, f"it raised {type(error).__name__} while {doing}: {error}. Switch it off with --disable {plugin}."
        ) from error
