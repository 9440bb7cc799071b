"""Rotary positions of a config, with what is wrong with them noted by its reader. No mlx."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phyla.model.config_keys import ROPE_SECTION
from phyla.model.config_reader import ConfigReader, unknown_keys
from phyla.nn.rope_form import RopeForm, rope_form

SECTIONS = ("rope_scaling", "rope_parameters")


def read_rope(reader: ConfigReader, default_base: float | None = None, more_keys: Iterable[str] = ()) -> RopeForm:
    """What `rope_form` reads; where it can't, a stand-in and a note.

    Args:
        reader: of the section with the language keys.
        default_base: for a config that names no base.
        more_keys: of the sections about rotation that the family reads itself.
    """
    reader.knows("rope_theta", "rope_traditional", *SECTIONS)
    known = ROPE_SECTION | set(more_keys)
    for name in SECTIONS:
        section = reader.get(name)
        if isinstance(section, Mapping) and (unknown := unknown_keys(section, known)):
            reader.unsupported(f"Nothing here knows {', '.join(map(repr, unknown))} in the config's '{name}'.")
    return reader.attempt(lambda: rope_form(reader.section, default_base), RopeForm(base=1.0))
