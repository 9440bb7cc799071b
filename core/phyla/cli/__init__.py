"""The `phyla` command line: a group that plugins add to, and commands whose options are the settings."""

from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session

__all__ = ["Session", "SettingsCommand"]
