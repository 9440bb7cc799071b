"""Settings: sections declared by core and by plugins, filled from flags, variables, a file and defaults.

The only module that reads the environment. A section is a plain pydantic model; a field says which command-line flag
and which `PHYLA_` lever also set it:

    class EngineSettings(PluginSettings, section="engine"):
        batch: int = setting(8, flag="--batch", aliases=("--decode-concurrency",), ge=1)
        \"\"\"Rows decoded together; 1 is strict.\"\"\"

It is then set by `--batch 4`, `PHYLA_ENGINE__BATCH=4`, or `batch = 4` under `[engine]` in `phyla.toml`, in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from phyla.errors import SettingsError

SectionT = TypeVar("SectionT", bound="PluginSettings")


class PluginSettings(BaseModel):
    """Base of every settings section. Frozen; unknown keys are errors.

    Class arguments:
        section: name of the section; defaults to the plugin's name.
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
    lever: str | None = None,
    metavar: str | None = None,
    **constraints: Any,
) -> Any:
    """A field that a flag or a lever also sets.

    Args:
        default: the value when nothing sets it.
        flag: the command-line spelling, `--batch`.
        aliases: other spellings of the flag.
        lever: suffix of a `PHYLA_` variable that sets it too: `RD_PREFILL_CHUNK`.
        metavar: what `--help` calls the value.
        constraints: pydantic's own: `ge`, `le`, `pattern`, ...
    """
    extra: JsonDict = {"flag": flag, "aliases": list(aliases), "lever": lever, "metavar": metavar}
    return Field(default, json_schema_extra=extra, **constraints)


class Settings:
    """All sections, filled and frozen; read once at start."""

    def __init__(self, sections: Iterable[PluginSettings] = ()) -> None:
        self._sections: Mapping[type[PluginSettings], PluginSettings] = {type(one): one for one in sections}

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

    def sections(self) -> tuple[PluginSettings, ...]:
        """Every registered section, in the order they were registered."""
        return tuple(self._sections.values())
