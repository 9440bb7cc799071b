"""All sections, filled: values, and who set each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from phyla.errors import SettingsError
from phyla.settings.section import PluginSettings

SectionT = TypeVar("SectionT", bound=PluginSettings)
SetBy = Literal["flag", "variable", "file", "default"]


@dataclass(frozen=True)
class Origin:
    """Who set a value."""

    by: SetBy
    where: str = ""
    """The flag, the variable, or the file and key."""

    @property
    def is_explicit(self) -> bool:
        return self.by != "default"


DEFAULT = Origin("default")


class Settings:
    """All sections, filled and frozen; read once at start."""

    def __init__(
        self,
        sections: Iterable[PluginSettings] = (),
        origins: Mapping[tuple[str, str], Origin] | None = None,
        notices: Iterable[str] = (),
    ) -> None:
        self._sections: Mapping[type[PluginSettings], PluginSettings] = {type(one): one for one in sections}
        self._origins = dict(origins or {})
        self.notices = tuple(notices)
        """What was accepted without effect, and variables nobody knows; one line each, shown at start."""

    def section(self, kind: type[SectionT]) -> SectionT:
        """The filled section of that class; its defaults if nobody registered it.

        Raises:
            SettingsError: a default of the section doesn't validate.
        """
        found = self._sections.get(kind)
        if found is None:
            return kind()
        if not isinstance(found, kind):
            raise SettingsError(f"Settings section '{kind.section_name}' holds a {type(found).__name__}.")
        return found

    def origin(self, kind: type[PluginSettings], field: str) -> Origin:
        """Who set the field."""
        assert field in kind.model_fields, f"{kind.__name__} has no field {field}"
        return self._origins.get((kind.section_name, field), DEFAULT)

    def with_notices(self, more: Iterable[str]) -> Settings:
        """The same settings with more lines to show at start."""
        return Settings(self._sections.values(), self._origins, (*self.notices, *more))

    def with_flag(self, kind: type[PluginSettings], field: str, value: Any, flag: str) -> Settings:
        """The same settings with one field as if the flag had set it.

        Raises:
            ValidationError: the value doesn't validate (pydantic's; a caller passes what a parser has seen).
        """
        assert field in kind.model_fields, f"{kind.__name__} has no field {field}"
        changed = kind.model_validate({**self.section(kind).model_dump(), field: value})
        origins = {**self._origins, (kind.section_name, field): Origin("flag", flag)}
        return Settings({**self._sections, kind: changed}.values(), origins, self.notices)

    def sections(self) -> tuple[PluginSettings, ...]:
        """Every registered section, in the order they were registered."""
        return tuple(self._sections.values())
