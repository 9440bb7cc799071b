"""What a fresh interpreter loads for `import phyla` and `phyla --help`: nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "mlx",
    "mlx_lm",
    "transformers",
    "torch",
    "numpy",
    "litestar",
    "uvicorn",
    "tokenizers",
    "llguidance",
    "xgrammar",
)

COUNT = f"""
import sys
loaded = sorted({{name.split(".")[0] for name in sys.modules}} & set({HEAVY!r}))
print("LOADED", *loaded)
"""


@pytest.mark.parametrize(
    "program",
    [
        "import phyla",
        "import phyla; [getattr(phyla, name) for name in phyla.__all__]",
        "from phyla.cli.main import main; assert main(['--help']) == 0",
        "from phyla.cli.main import main; assert main(['plugins']) == 0",
    ],
)
def test_nothing_heavy_is_loaded(program: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", program + COUNT], check=False, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "LOADED"
