"""Declaring a constraint engine must cost nothing: the libraries are imported when a constraint is compiled."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("plugin", "library"), [("phyla_llguidance", "llguidance"), ("phyla_xgrammar", "xgrammar")])
def test_declaring_an_engine_imports_no_library(plugin: str, library: str) -> None:
    program = (
        f"import sys, {plugin}; from phyla import Settings; "
        f"{plugin}.phyla_proposers(Settings()); sys.exit('{library}' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
