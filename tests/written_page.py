"""Files that a page of the documentation spells out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write_files(page: str, names: Sequence[str], folder: Path) -> None:
    """Write to a folder what the page has in the code block behind each name.

    Args:
        page: under `docs`.
        names: of the files, each at the start of a line of the page, in backticks.
        folder: exists.
    """
    text = (DOCS / page).read_text("utf-8")
    for name in names:
        found = re.search(rf"^`{re.escape(name)}`.*?```\w+\n(.*?)```", text, re.DOTALL | re.MULTILINE)
        assert found is not None, f"the page has no {name}"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(found[1])
