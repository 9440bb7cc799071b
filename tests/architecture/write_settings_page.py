"""Writes docs/settings.md from the settings in the box: `python -m tests.architecture.write_settings_page`."""

from __future__ import annotations

import sys

from tests.architecture.sources import REPOSITORY, ROOTS

if __name__ == "__main__":
    sys.path[:0] = [str(REPOSITORY / root) for root in ROOTS]
    from phyla.settings.page import settings_page

    from tests.architecture.test_settings import everything_in_the_box

    text = settings_page(everything_in_the_box().settings_sections())
    (REPOSITORY / "docs" / "settings.md").write_text(text, encoding="utf-8")
