"""How far a measurement is: a bar on a terminal, a line per step elsewhere, on stderr either way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich_click as click

Advance = Callable[[str], None]
"""Called when one of them is done, with what to say about it."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """Show that `total` things are being done."""
    if not sys.stderr.isatty():
        done = iter(range(1, total + 1))
        yield lambda line: click.echo(f"{label} {next(done)} of {total}{': ' if line else ''}{line}", err=True)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)

        def advance(line: str) -> None:
            if line:
                bar.console.print(line)
            bar.advance(task)

        yield advance
