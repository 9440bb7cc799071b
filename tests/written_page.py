"""A plugin whose files a page of the documentation spells out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@contextmanager
def written_plugin(page: str, names: Sequence[str], folder: Path) -> Iterator[None]:
    """Write to a folder what the page has in the code block behind each name; its modules can be imported meanwhile.

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
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
        for name in names:
            sys.modules.pop(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"), None)
