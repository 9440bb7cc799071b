"""A cache codec from another repository keeps the contract that every codec is held to."""

from __future__ import annotations

import sys
from pathlib import Path

from phyla.testing.codec import CodecContract

sys.path.insert(0, str(Path(__file__).parent / "phyla-abacus"))

from phyla_logbook.pages import PAGES


class TestPages(CodecContract):
    codec = PAGES


def test_the_installed_plugin_offers_its_codec(run_outside) -> None:
    program = (
        "from phyla.plugins import discover; from phyla.settings import Settings; "
        "print([one.value.name for one in discover().cache_codecs(Settings())])"
    )
    assert "pages" in run_outside(program).stdout
