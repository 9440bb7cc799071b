"""`phyla bench serve [MODEL]`: throughput and latency of a server under load, one that runs or one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from phyla.cli.bench.own_option import own_option
from phyla.cli.bench.progress import progress
from phyla.cli.bench.record import check_output, emit, machine, shown_command, versions
from phyla.cli.chosen_model import chosen_model
from phyla.cli.command import SettingsCommand
from phyla.cli.session import CONFIG_FLAG, Session
from phyla.errors import MeasurementFailed, RefusedCombination, UsageError

if TYPE_CHECKING:
    from phyla.cli.bench.asked import Asked, Endpoint
    from phyla.cli.bench.load import Answered, Client, Load
    from phyla.settings import Settings

FREE_PORT = "0"


@dataclass(frozen=True)
class ServeBench:
    """One load on one server."""

    client: Client
    asked: Sequence[Asked]
    warmup: Sequence[Asked]
    load: Load
    goals: Mapping[str, float]


async def run_serve_bench(bench: ServeBench) -> tuple[list[Answered], float]:
    """Warm up, then send the load.

    Raises:
        MeasurementFailed: a warm-up failed, or no request was answered.
    """
    from phyla.cli.bench.load import run_load

    for one in bench.warmup:
        answered = await bench.client.ask(one, bench.load.timeout_seconds)
        if answered.error is not None:
            raise MeasurementFailed(f"The server failed at the first request: {answered.error}")
    with progress("request", len(bench.asked)) as advance:
        answers, duration = await run_load(bench.client, bench.asked, bench.load, advance)
    failures = [one.error for one in answers if one.error is not None]
    if len(failures) == len(answers):
        raise MeasurementFailed(f"None of {len(answers)} requests was answered. The first failed with: {failures[0]}")
    return answers, duration


def _serve(
    session: Session,
    settings: Settings,
    flags: Mapping[str, Any],
    model: str | None,
    base_url: str | None,
    served_model: str | None,
    key_file: Path | None,
    endpoint: Endpoint,
    num_prompts: int,
    prompts: Path | None,
    input_len: int,
    output_len: int,
    range_ratio: float,
    ids: tuple[int, int],
    request_rate: float | None,
    max_concurrency: int | None,
    seed: int,
    warmup: int,
    goodput: tuple[str, ...],
    stop_at_eos: bool,
    timeout: float,
    detailed: bool,
    output: Path | None,
) -> None:
    from phyla.cli.bench.asked import RandomPrompts, read_prompts
    from phyla.cli.bench.http_stream import HttpTarget
    from phyla.cli.bench.load import Client, Load
    from phyla.cli.bench.serve_metrics import parse_goodput, serve_metrics

    if base_url is not None and (model is not None or flags):
        given = ", ".join([*([] if model is None else [model]), *flags])
        raise RefusedCombination(f"--base-url measures a server that runs: {given} can't change it. Leave one away.")
    check_output(output)
    goals = parse_goodput(goodput)
    key = None if key_file is None else _read_key(key_file)
    random = RandomPrompts(input_len, output_len, range_ratio, _ids(ids))
    if prompts is None:
        asked = random.draw(num_prompts, endpoint, seed)
    else:
        asked = read_prompts(prompts, num_prompts, endpoint, output_len)
    # Warm-up prompts are others: the measured ones must not find themselves in the prefix cache.
    warm = random.draw(warmup, endpoint, seed + 1)
    load = Load(float("inf") if request_rate is None else request_rate, max_concurrency, seed, timeout)
    with _server(session, settings, flags, model, base_url) as url:
        target = HttpTarget(url, key)
        named = served_model or asyncio.run(_first_model(target))
        client = Client(target, endpoint, named, {} if stop_at_eos else {"ignore_eos": True})
        answers, duration = asyncio.run(run_serve_bench(ServeBench(client, asked, warm, load, goals)))
    result = {
        "command": shown_command(["serve", base_url or model or ""], model),
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "machine": machine(),
        "versions": versions("phyla"),
        "endpoint": endpoint,
        "model_id": named,
        "num_prompts": num_prompts,
        "request_rate": "inf" if request_rate is None else request_rate,
        "max_concurrency": max_concurrency,
        "seed": seed,
        "goodput": goals,
        **{name: _rounded(value) for name, value in serve_metrics(answers, duration, goals).items()},
    }
    emit(result | (_details(answers) if detailed else {}), output)


@contextmanager
def _server(
    session: Session, settings: Settings, flags: Mapping[str, Any], model: str | None, base_url: str | None
) -> Iterator[str]:
    if base_url is not None:
        yield base_url
        return
    from phyla.cli.bench.child_server import child_server

    words = [word for flag, value in flags.items() for word in _words(flag, value)]
    if session.config is not None:
        words += [CONFIG_FLAG, str(session.config)]
    port = [] if "--port" in flags else ["--port", FREE_PORT]
    with child_server([chosen_model(session, settings, model), *words, *port]) as url:
        yield url


def _words(flag: str, value: Any) -> Iterator[str]:
    if value is True:
        yield flag
        return
    for one in value if isinstance(value, list) else [value]:
        yield f"{flag}={one}"


async def _first_model(target: Any) -> str:
    """What the server serves.

    Raises:
        MeasurementFailed: it can't be asked.
    """
    from phyla.cli.bench.http_stream import HttpFailed

    try:
        listed = await target.get("/models")
        return str(listed["data"][0]["id"])
    except (OSError, HttpFailed, ValueError, KeyError, IndexError, TypeError) as error:
        raise MeasurementFailed(
            f"{target.base_url} doesn't list its models: {error}. Is it running? A model it serves under another name "
            "is --served-model; a server with a key needs --key-file."
        ) from error


def _details(answers: Sequence[Answered]) -> dict[str, Any]:
    """vLLM's names for what each request did."""
    return {
        "input_lens": [one.num_input for one in answers],
        "output_lens": [one.num_output for one in answers],
        "ttfts": [one.ttft for one in answers],
        "itls": [one.gaps for one in answers],
        "generated_texts": [one.text for one in answers],
        "errors": [one.error or "" for one in answers],
    }


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _read_key(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--key-file {path} can't be read: {error}.") from error


def _ids(ids: tuple[int, int]) -> tuple[int, int]:
    if ids[0] > ids[1]:
        raise UsageError(f"--ids {ids[0]} {ids[1]}: the lowest comes first.")
    return ids


def _positive_rate(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """None for `inf`: all at once."""
    if value is None or value == "inf":
        return None
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise click.BadParameter(f"{value!r} isn't a number of requests a second, or inf.")
    return rate


COUNT = click.IntRange(min=1)

serve = SettingsCommand(
    "serve",
    _serve,
    wants_flags=True,
    arguments=[
        click.RichArgument(["model"], required=False, metavar="[MODEL]"),
        own_option(["--base-url"], metavar="URL", help="Of a server that runs; by default one is started."),
        own_option(["--served-model"], metavar="NAME", help="To ask for; by default the first it lists."),
        own_option(["--key-file"], type=click.Path(path_type=Path), help="File with the server's API key."),
        own_option(
            ["--endpoint"], type=click.Choice(["completions", "chat"]), default="completions", show_default=True
        ),
        own_option(["--num-prompts"], type=COUNT, default=100, show_default=True, help="Requests to send."),
        own_option(
            ["--prompts"],
            type=click.Path(path_type=Path),
            help='File with a prompt a line: text, {"prompt": ...} or {"messages": [...]}, maybe with "output_tokens".',
        ),
        own_option(["--input-len"], type=COUNT, default=512, show_default=True, help="Of random prompts."),
        own_option(["--output-len"], type=COUNT, default=128, show_default=True, help="Tokens of an answer."),
        own_option(
            ["--range-ratio"],
            type=click.FloatRange(min=0, max=1, max_open=True),
            default=0.0,
            help="Draw lengths of random prompts from so much less to so much more; 0 to below 1.",
        ),
        own_option(
            ["--ids"], type=(int, int), default=(3, 500), show_default=True, help="Ids of random prompts: LOW HIGH."
        ),
        own_option(
            ["--request-rate"],
            callback=_positive_rate,
            metavar="RATE",
            help="Open loop: requests a second, as a Poisson process. Default: inf, all at once.",
        ),
        own_option(
            ["--max-concurrency"], type=COUNT, help="Closed loop: so many under way, the next when one has ended."
        ),
        own_option(["--seed"], type=int, default=0, help="Of random prompts and arrivals."),
        own_option(
            ["--warmup"], type=click.IntRange(min=0), default=1, show_default=True, help="Requests that don't count."
        ),
        own_option(
            ["--goodput"],
            multiple=True,
            metavar="GOALS",
            help='Count requests within these milliseconds: "ttft:200 tpot:50 e2el:2000", any of them.',
        ),
        own_option(
            ["--stop-at-eos"], is_flag=True, help="Answers may end early; by default each has --output-len tokens."
        ),
        own_option(
            ["--timeout"],
            type=click.FloatRange(min=0, min_open=True),
            default=600.0,
            show_default=True,
            help="Seconds until a request counts as failed.",
        ),
        own_option(["--detailed"], is_flag=True, help="Also lengths, times, texts and errors of each request."),
        own_option(["--output"], type=click.Path(path_type=Path), help="Write the JSON to this file."),
    ],
    help="Measure a server under load: throughput, goodput, and the spread of times, as vLLM names them.\n\n"
    "Starts `phyla serve MODEL` with the flags that are given, or measures the server at --base-url.",
)
