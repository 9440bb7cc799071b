"""Dialects: how the answers of each family spell reasoning and tool calls.

A dialect is a small grammar, written top-down as a generator over the growing text (`source.py`). Families name one;
other models get theirs by their chat template.
"""

from phyla import OutputParserFactory, Settings, hookimpl

phyla_api = 1


@hookimpl
def phyla_output_parsers(settings: Settings) -> list[OutputParserFactory]:
    from phyla_dialects.catalog import DIALECTS

    return list(DIALECTS)
