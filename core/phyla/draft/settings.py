"""The `[draft]` section: how proposals are judged and how many are made."""

from __future__ import annotations

from typing import Literal

from phyla.settings import OnOff, PluginSettings, setting


class DraftSettings(PluginSettings, section="draft"):
    """What holds for every draft method."""

    acceptance: Literal["exact", "rejection"] = setting("exact", flag="--spec-acceptance")
    """`exact` gives the tokens of plain decoding, seeds included. `rejection` keeps their distribution but not a
    seed's tokens, and accepts more of a drafter that samples."""

    adaptive: OnOff = setting(True, flag="--draft-adaptive")
    """Draft fewer tokens, or none for a while, where checking them costs more than it saves. Never changes what is
    accepted; `--batch 1` turns it off, since the width of a check may move low bits."""

    def adapts(self, batch: int) -> bool:
        """Whether lengths adapt where up to `batch` rows share steps."""
        return self.adaptive and batch > 1
