"""The `[mtp]` section."""

from __future__ import annotations

from phyla import PluginSettings, setting


class MtpSettings(PluginSettings, section="mtp"):
    """How far the draft head looks."""

    depth: int | None = setting(None, flag="--mtp-depth", ge=1, le=16)
    """Tokens that it guesses at once, each from the one before; by default what its artifact says, which is 2.
    `--num-draft-tokens` goes first."""
