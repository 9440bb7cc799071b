"""`phyla bench engine [MODEL]`: tokens per second of reading prompts and decoding, beside another program if asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from phyla.backend.settings import BackendSettings
from phyla.cli.bench.cases import SUITES, SYNTAX, cases_of
from phyla.cli.bench.own_option import own_option
from phyla.cli.bench.progress import progress
from phyla.cli.bench.random_model import GEOMETRIES, RandomModel, is_random
from phyla.cli.bench.record import check_output, emit, shown_command
from phyla.cli.chosen_model import chosen_model
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.errors import UsageError
from phyla.plugins import by_name, pick

if TYPE_CHECKING:
    from phyla.baseline import Baseline
    from phyla.settings import Settings

DEFAULT_PROMPTS = (512,)
DEFAULT_STORED = (512,)
DEFAULT_ROWS = (1, 8)


def _engine(
    session: Session,
    settings: Settings,
    model: str | None,
    case: tuple[str, ...],
    suite: str | None,
    prompts: tuple[int, ...],
    stored: tuple[int, ...],
    rows: tuple[int, ...],
    tokens: int,
    pairs: int,
    seconds: float,
    against: str | None,
    text: Path | None,
    bandwidth: float | None,
    weights_folder: Path | None,
    output: Path | None,
) -> None:
    if rows and not stored:
        raise UsageError("--rows says how many rows decode behind --stored tokens: give both, or --case.")
    if suite is not None:
        case = (*case, *SUITES[suite])
    if not case and not prompts and not stored:
        prompts, stored = DEFAULT_PROMPTS, DEFAULT_STORED
    cases = cases_of(case, prompts, stored, rows or DEFAULT_ROWS)
    check_output(output)
    baseline = _baseline(session, settings, against)
    read = None if text is None else _read(text)
    if model is not None and is_random(model):
        RandomModel.parse(model)
        reference = model
    else:
        reference = chosen_model(session, settings, model)

    from phyla.backend.detect import detect

    # Before mlx, which the rest imports: a fast BLAS has to be there first.
    computing = settings.section(BackendSettings)
    backend = detect(computing.blas, computing.blas_threads)
    from phyla.cli.bench.engine_run import EngineBench, run_engine_bench
    from phyla.cli.bench.measuring import Effort

    def kept(result: dict[str, Any]) -> dict[str, Any]:
        return {"command": shown_command(["engine", reference], model), **result}

    with progress("case", len(cases)) as advance:
        bench = EngineBench(
            reference=reference,
            cases=cases,
            effort=Effort(tokens, pairs, seconds),
            baseline=baseline,
            text=read,
            bytes_per_second=None if bandwidth is None else bandwidth * 1e9,
            weights_folder=weights_folder,
            keep=lambda result: None if output is None else emit(kept(result), output, is_quiet=True),
            told=advance,
        )
        result = run_engine_bench(bench, session.manager, settings, backend)
    emit(kept(result), output)


def _baseline(session: Session, settings: Settings, name: str | None) -> Baseline | None:
    if name is None:
        return None
    return pick(by_name(session.manager.baselines(settings), "baseline"), "baseline", name).value


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {path} can't be read as UTF-8 text: {error}.") from error


def _numbers(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Several numbers with commas: 1,8,32."""
    if value is None:
        return ()
    try:
        numbers = tuple(int(one) for one in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} isn't a list of numbers such as 1,8,32.") from None
    if min(numbers) < 1:
        raise click.BadParameter(f"{value!r} has a number below 1.")
    return numbers


engine = SettingsCommand(
    "engine",
    _engine,
    arguments=[
        click.RichArgument(["model"], required=False, metavar="[MODEL]"),
        own_option(["--case"], multiple=True, metavar="CASE", help=f"May be repeated: {SYNTAX}."),
        own_option(
            ["--suite"], type=click.Choice(list(SUITES)), help="Cases that belong together: docs/bench.md lists them."
        ),
        own_option(["--prompts"], callback=_numbers, metavar="N,...", help="A pp case for each length; default: 512."),
        own_option(["--stored"], callback=_numbers, metavar="N,...", help="tg cases behind so much; default: 512."),
        own_option(["--rows"], callback=_numbers, metavar="N,...", help="Rows of each tg case; default: 1,8."),
        own_option(
            ["--tokens"],
            type=click.IntRange(min=1),
            default=64,
            show_default=True,
            help="Tokens of each row to count, in each sample of a tg case.",
        ),
        own_option(
            ["--pairs"], type=click.IntRange(min=1), default=10, show_default=True, help="Samples of each case."
        ),
        own_option(
            ["--seconds"],
            type=click.FloatRange(min=0, min_open=True),
            default=60.0,
            show_default=True,
            help="Begin no further sample of a case after so long.",
        ),
        own_option(
            ["--against"],
            metavar="NAME",
            help="Measure another program beside, on the same files in this process, by turns: mlx-lm.",
        ),
        own_option(["--text"], type=click.Path(path_type=Path), help="Prompts are its tokens, not random ids."),
        own_option(
            ["--bandwidth"],
            type=click.FloatRange(min=0, min_open=True),
            metavar="GB",
            help="Of memory, per second: adds the share of it that each decode case reaches.",
        ),
        own_option(
            ["--weights-folder"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Keep random weights here and use them again; by default they are thrown away.",
        ),
        own_option(["--output"], type=click.Path(path_type=Path), help="Write the JSON here, after each case."),
    ],
    help="Measure prompt processing and decoding, in tokens per second, and peak memory.\n\n"
    f"MODEL may be random:GEOMETRY or random:GEOMETRY@BITS, weights drawn on the spot: {', '.join(GEOMETRIES)}.",
)
