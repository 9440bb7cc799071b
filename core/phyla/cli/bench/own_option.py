"""Options of a measurement, which its help shows before the settings that every command takes."""

from __future__ import annotations

from functools import partial

import rich_click as click

own_option = partial(click.RichOption, panel="measurement")
