"""`phyla generate MODEL --prompt ...`: one answer to the terminal, without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import rich_click as click

from phyla.cli.chosen_model import chosen_model
from phyla.cli.command import SettingsCommand, write_note
from phyla.cli.session import Session
from phyla.engine.settings import EngineSettings
from phyla.errors import UsageError
from phyla.sampling.defaults import GREEDY, SamplingDefaults
from phyla.sampling.settings import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phyla.engine.answers import Piece
    from phyla.library import Model
    from phyla.plugins import PluginManager
    from phyla.request import Usage
    from phyla.settings import Settings

DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True)
class GenerateOptions:
    """What the command itself takes; everything else is a setting."""

    prompt: str
    raw: bool = False
    """Continue the prompt as it is, without the chat template."""

    seed: int | None = None
    stop: tuple[str, ...] = ()


def run_generate(
    reference: str,
    options: GenerateOptions,
    manager: PluginManager,
    settings: Settings,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> Usage:
    """Load, note what the plan has to say beyond the settings, write the answer as it comes, and close again.

    Greedy unless a setting says otherwise: a model's own sampling defaults are for its server.

    Raises:
        PhylaError: whatever stands in the way.
    """
    from phyla.library import load_with

    with load_with(reference, manager, settings) as model:
        for notice in model.plan.notices:
            if notice not in settings.notices:
                note(notice)
        usage: Usage | None = None
        for piece in _pieces(model, options, settings):
            if not piece.special:
                write(piece.text)
            usage = piece.usage or usage
    assert usage is not None, "an answer ends with its usage"
    return usage


def _pieces(model: Model, options: GenerateOptions, settings: Settings) -> Iterator[Piece]:
    fields: dict[str, Any] = {
        "defaults": _defaults(settings.section(SamplingSettings)),
        "max_tokens": settings.section(EngineSettings).max_tokens or DEFAULT_MAX_TOKENS,
        "seed": options.seed,
        "stop": options.stop,
    }
    if options.raw or not model.renderer.has_template:
        return model.stream(options.prompt, **fields)
    return model.stream_chat([{"role": "user", "content": options.prompt}], **fields)


def _defaults(chosen: SamplingSettings) -> SamplingDefaults:
    return replace(GREEDY, temperature=chosen.temperature or 0.0, top_p=chosen.top_p or 0.0, top_k=chosen.top_k or 0)


def _generate(
    session: Session,
    settings: Settings,
    model: str,
    words: str | None,
    prompt: str | None,
    raw: bool,
    seed: int | None,
    stop: tuple[str, ...],
) -> int:
    text = prompt if prompt is not None else words
    if not text:
        raise UsageError("There is nothing to answer: phyla generate MODEL --prompt TEXT.")
    options = GenerateOptions(text, raw, seed, stop)
    reference = chosen_model(session, settings, model)
    usage = run_generate(reference, options, session.manager, settings, _write, write_note)
    _write("\n")
    click.echo(
        f"{usage.num_prompt_tokens} prompt tokens in {usage.prompt_seconds:.2f} s, "
        f"{usage.num_completion_tokens} answered in {usage.decode_seconds:.2f} s",
        err=True,
    )
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


generate = SettingsCommand(
    "generate",
    _generate,
    arguments=[
        click.RichArgument(["model"]),
        click.RichArgument(["words"], required=False, metavar="[PROMPT]"),
        click.RichOption(["--prompt"], metavar="TEXT", help="What to answer; or the second argument."),
        click.RichOption(["--raw"], is_flag=True, help="Continue the prompt as it is, without the chat template."),
        click.RichOption(["--seed"], type=int, metavar="N", help="Of the random stream; a fresh one by default."),
        click.RichOption(["--stop"], multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
    ],
    help="Answer one prompt and exit. Greedy, up to 256 tokens, unless flags say otherwise.",
)
