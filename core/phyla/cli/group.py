"""A group of commands that helps with misspelt ones."""

from __future__ import annotations

import rich_click as click

from phyla.errors import UnknownName


class PhylaGroup(click.RichGroup):
    """Names the near match of a command that doesn't exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command.

        Raises:
            UnknownName: there is none of that name.
        """
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownName("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)
