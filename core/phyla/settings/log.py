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

    level: Level = setting("warning", flag="--log-level", metavar="debug|info|warning|error")
    """Least important messages that are shown."""


def start_logging(settings: LogSettings) -> None:
    """Send messages of that level and above to stderr, unless the process has its own handlers already."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=settings.level.upper())
