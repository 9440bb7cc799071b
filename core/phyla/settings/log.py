"""The `[log]` section: what the program says on stderr while it runs."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from pydantic import BeforeValidator

from phyla.settings.section import PluginSettings, setting

Level = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class LogSettings(PluginSettings, section="log"):
    """What the program says on stderr while it runs. No level logs prompts or answers."""

    level: Level = setting("info", flag="--log-level", metavar="debug|info|warning|error")
    """Least important messages that are shown. `info` has one line per request; libraries start at warnings."""


def start_logging(settings: LogSettings) -> None:
    """Send messages of that level and above to stderr, unless the process has its own handlers already."""
    own = logging.getLevelNamesMapping()[settings.level.upper()]
    # What libraries tell at info is about themselves, and some of it names paths and addresses.
    libraries = own if settings.level == "debug" else max(own, logging.WARNING)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=libraries)
    logging.getLogger("phyla").setLevel(own)
