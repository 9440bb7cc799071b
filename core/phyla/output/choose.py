"""Which dialect reads a model's answers."""

from __future__ import annotations

from collections.abc import Iterable

from phyla.errors import UnknownName, UsageError
from phyla.output.parser import OutputParserFactory
from phyla.output.plain import PLAIN


def choose_parser(
    factories: Iterable[OutputParserFactory],
    *,
    asked: str | None = None,
    family_default: str | None = None,
    template: str | None = None,
) -> OutputParserFactory:
    """The parser asked for by name, else the family's, else the best match of the chat template, else the plain one.

    Raises:
        UnknownName: `asked` or the family's name isn't among the factories.
        UsageError: two factories of the highest rank match the template.
    """
    by_name = {PLAIN.name: PLAIN} | {one.name: one for one in factories}
    name = asked or family_default
    if name is not None:
        if name not in by_name:
            raise UnknownName("output parser", name, by_name)
        return by_name[name]
    matching = sorted(
        (one for one in by_name.values() if template is not None and one.matches_template(template)),
        key=lambda one: -one.rank,
    )
    if len(matching) > 1 and matching[0].rank == matching[1].rank:
        raise UsageError(
            f"Output parsers '{matching[0].name}' and '{matching[1].name}' both claim this chat template. "
            f"Name one with --output-parser."
        )
    return matching[0] if matching else PLAIN
