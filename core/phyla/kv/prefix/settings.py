"""The `[prefix]` section: what is kept of computed tokens, and for how long."""

from __future__ import annotations

from typing import Literal

from phyla.settings import PluginSettings, setting
from phyla.settings.values import BinaryGiB, OnOff


class PrefixSettings(PluginSettings, section="prefix"):
    """Prefix reuse in memory."""

    cache_bytes: BinaryGiB = setting("8GiB", flag="--prompt-cache", lever="PROMPT_CACHE", metavar="GIB", ge=0)
    """Memory for retained prefixes; a number without a suffix is in GiB. 0 keeps nothing."""

    retention: Literal["lru", "cost-size"] = setting("lru", lever="CACHE_RETENTION")
    """Who goes first when it is full: the longest unused (`lru`), or what saves least for its bytes (`cost-size`)."""

    sessions: OnOff = setting(True, lever="SESSION_CACHE")
    """Keep prefixes of open sessions longer than others."""

    max_boundaries: int = setting(8, ge=0, le=4096)
    """Lengths per prefix at which sliding and recurrent layers can be reused."""

    remembered_texts: int = setting(16, ge=0, le=4096)
    """Finished texts per API key whose exact tokens are remembered, so that the next turn finds them."""
