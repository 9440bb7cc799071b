"""`phyla bench kv MODEL --text FILE`: what a KV scheme does to predictions, against plain storage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from phyla.cli.chosen_model import chosen_model
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.errors import UsageError
from phyla.selection.settings import SelectionSettings

if TYPE_CHECKING:
    from phyla.plugins import PluginManager
    from phyla.settings import Settings

PLAIN = "plain"


@dataclass(frozen=True)
class QualityOptions:
    """How much of a text is read, and how."""

    num_tokens: int | None = None
    """None: all of it."""

    window_tokens: int = 512
    chunk_tokens: int = 128
    progress: Callable[[int, int], None] = lambda num_read, num_tokens: None


def measure_kv_quality(
    reference: str,
    text: str,
    schemes: tuple[str, ...],
    options: QualityOptions,
    manager: PluginManager,
    settings: Settings,
) -> dict[str, Any]:
    """Read the text with plain storage and with each scheme, and compare their predictions.

    Args:
        reference: of the model.
        text: what is predicted.
        schemes: as `--kv-scheme` takes them; none means the one that the settings choose.
        options: how much is read, and how.
        manager: whose schemes there are.
        settings: all the rest.

    Raises:
        PhylaError: a scheme can't store this model, the text is too short, or the model can't be loaded.
    """
    from phyla.backend.detect import detect
    from phyla.backend.settings import BackendSettings
    from phyla.selection import resolve, select

    backend_settings = settings.section(BackendSettings)
    backend = detect(backend_settings.blas, backend_settings.blas_threads)
    # Not before: it imports mlx, and a fast BLAS has to be there first.
    from phyla.cli.bench.kv_quality import QualityReader

    def parts_of(settings: Settings) -> Any:
        return resolve(select(reference, manager, settings, backend), manager, settings)

    def storing(spec: str) -> Settings:
        return settings.with_flag(SelectionSettings, "kv_scheme", spec, "--scheme")

    plain = parts_of(storing(PLAIN))
    compared = {spec: parts_of(storing(spec)) for spec in schemes}
    if not schemes:
        chosen = parts_of(settings)
        if set(chosen.plan.layer_schemes) == {PLAIN}:
            raise UsageError("There is nothing to compare with plain storage: name a scheme, --scheme affine:8.")
        compared[chosen.plan.kv_scheme.name] = chosen
    return QualityReader(plain, compared, text, options).measure()


def _kv(
    session: Session,
    settings: Settings,
    model: str | None,
    text: Path,
    scheme: tuple[str, ...],
    output: Path | None,
    tokens: int | None,
    window: int,
    chunk: int,
) -> None:
    def progress(num_read: int, num_tokens: int) -> None:
        click.echo(f"{num_read} of {num_tokens} tokens", err=True)

    options = QualityOptions(tokens, window, chunk, progress)
    reference = chosen_model(session, settings, model)
    result = measure_kv_quality(reference, _read(text), scheme, options, session.manager, settings)
    written = json.dumps(result, indent=2)
    if output is None:
        click.echo(written)
    else:
        output.write_text(written + "\n", "utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {path} can't be read as UTF-8 text: {error}.") from error


kv = SettingsCommand(
    "kv",
    _kv,
    arguments=[
        click.RichArgument(["model"], required=False, metavar="[MODEL]"),
        click.RichOption(["--text"], required=True, type=click.Path(path_type=Path), help="What is predicted, UTF-8."),
        click.RichOption(
            ["--scheme"],
            multiple=True,
            metavar="NAME[:SPEC]",
            help="Compared with plain storage; may be repeated. By default what --kv-scheme chooses.",
        ),
        click.RichOption(["--output"], type=click.Path(path_type=Path), help="Write the JSON to this file."),
        click.RichOption(["--tokens"], type=click.IntRange(min=2), help="Read so much of the text; by default all."),
        click.RichOption(
            ["--window"],
            type=click.IntRange(min=2),
            default=512,
            help="Tokens that are read as one row; the next begin with nothing stored.",
        ),
        click.RichOption(
            ["--chunk"], type=click.IntRange(min=1), default=128, help="Tokens of a step; each meets what is stored."
        ),
    ],
    help="Compare a KV scheme's predictions with plain storage's: perplexity and KL divergence, as JSON.",
)
