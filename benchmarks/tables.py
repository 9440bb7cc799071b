"""The measured tables of the docs, made from the result files: `python -m benchmarks.tables` writes them in place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_tables import engine_rows, serve_rows
from benchmarks.grammar_tables import grammar_cost
from benchmarks.measurement import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = ("docs/kvschemes/README.md", "README.md", "docs/benchmarks.md", "docs/proposers.md")

Result = dict[str, Any]


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text()))


def filled(text: str) -> str:
    """The page with every marked table made anew.

    A mark is `<!-- measured: NAME -->`; its table goes on to the next `<!-- end -->`.
    """

    def table(mark: re.Match[str]) -> str:
        name = mark[1]
        result = json.loads((RESULTS / f"{name}.json").read_text())
        return f"<!-- measured: {name} -->\n{TABLES[script_of(name)](result)}\n<!-- end -->"

    return re.sub(r"<!-- measured: ([\w.-]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def script_of(name: str) -> str:
    """Which script, or command, wrote a result: one that measures several models keeps a file for each.

    Raises:
        LookupError: none that a table is known for.
    """
    known = [script for script in TABLES if name == script or name.startswith(f"{script}_")]
    if not known:
        raise LookupError(f"results/{name}.json: no table is known for it")
    return max(known, key=len)


def starter_vs_mlx_lm(result: Result) -> str:
    rows = ["| | Phyla | mlx-lm | ratio (95% interval) |", "| --- | --- | --- | --- |"]
    for phase, tokens in (("prefill", result["num_prompt_tokens"]), ("decode", result["num_decoded"])):
        one = result["summary"][phase]
        low, high = one["ratio_interval_95"]
        rows.append(
            f"| {phase}, {tokens} tokens | {one['phyla_tokens_per_second']} tok/s "
            f"| {one['mlx_lm_tokens_per_second']} tok/s | {one['ratio']}x ({low} to {high}) |"
        )
    return "\n".join([*rows, "", where(result)])


def server_cost(result: Result) -> str:
    rows = [
        "| clients | library | server, streamed | added by HTTP per token and client (95% interval) |",
        "| --- | --- | --- | --- |",
    ]
    for clients, one in result["summary"].items():
        low, high = one["added_interval_95"]
        rows.append(
            f"| {clients} | {one['library_ms_per_token']} ms per token | {one['server_ms_per_token']} ms per token "
            f"| {one['added_ms_per_token']} ms ({low} to {high}) |"
        )
    first = result["first_frame"]
    sentence = (
        f"From sending a prompt of {first['num_prompt_tokens']} tokens to the first byte of its stream: "
        f"{first['median_ms']} ms (median), {first['worst_ms']} ms at worst."
    )
    if "idle_connections" in result:
        idle = result["idle_connections"]
        low, high = idle["ratio_interval_95"]
        sentence += (
            f" Beside {idle['count']} idle connections a token takes {idle['ratio']}x as long "
            f"(95% interval {low} to {high})."
        )
    return "\n".join([*rows, "", sentence, "", where(result)])


def server_starter(result: Result) -> str:
    opened, decode = result["summary"]["opened"], result["summary"]["decode"]
    low, high = decode["added_interval_95"]
    rows = [
        "| a chat of | alone: validated | first byte after that | beside another prefill: validated "
        "| first byte after that |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, num_tokens in result["prompt_tokens"].items():
        companies = (opened[name][company] for company in ("alone", "beside_prefill"))
        spreads = (one[part] for one in companies for part in ("validated", "first_byte"))
        cells = " | ".join(f"{one['median_ms']} ms (at worst {one['worst_ms']})" for one in spreads)
        rows.append(f"| about {num_tokens} tokens | {cells} |")
    sentence = (
        f"A token takes {decode['library_ms_per_token']} ms through the library and {decode['server_ms_per_token']} ms "
        f"streamed by the server: {decode['added_ms_per_token']} ms more (95% interval {low} to {high})."
    )
    return "\n".join([*rows, "", sentence, "", where(result)])


def concurrency(result: Result) -> str:
    one, clients = result["summary"], result["num_clients"]
    low, high = one["ratio_interval_95"]
    alone, disturbed = one["gap_ms_undisturbed"], one["gap_ms_under_prefill"]
    rows = [
        "| | one at a time | together | ratio (95% interval) |",
        "| --- | --- | --- | --- |",
        f"| {clients} clients, {result['num_tokens']} tokens each | {one['serial_tokens_per_second']} tok/s "
        f"| {one['together_tokens_per_second']} tok/s | {one['ratio']}x ({low} to {high}) |",
        "",
        "| time between a running row's tokens | undisturbed | beside a prefill | ratio |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {alone[name]} ms | {disturbed[name]} ms | {disturbed[name] / alone[name]:.1f}x |"
            for name in ("p50", "p99")
        ),
    ]
    sentence = (
        f"The disturbing prompt has {result['long_prompt_tokens']} tokens. A lone request cancelled in the middle of "
        f"such a prompt ends within {one['cancel_in_prefill_ms']} ms, one beside a running row within "
        f"{one['cancel_in_company_ms']} ms."
    )
    return "\n".join([*rows, "", sentence, "", where(result)])


def prefix_starter(result: Result) -> str:
    one, sessions = result["summary"], result["sessions"]
    low, high = one["ratio_interval_95"]
    rows = [
        "| time to the first token | read whole | going on | ratio (95% interval) |",
        "| --- | --- | --- | --- |",
        f"| second turn of {one['conversation_tokens']} tokens | {one['cold_seconds']} s | {one['reused_seconds']} s "
        f"| {one['ratio']}x ({low} to {high}) |",
    ]
    sentence = (
        f"{sessions['num_sessions']} sessions that arrive together with {sessions['num_shared_tokens']} tokens in "
        f"common have {sessions['num_prompt_tokens']} prompt tokens, of which {sessions['num_prefilled_tokens']} were "
        f"prefilled. A lookup takes {one['lookup_ms']} ms among a thousand prefixes of 8192 tokens."
    )
    return "\n".join([*rows, "", sentence, "", where(result)])


def kv_quality(result: Result) -> str:
    rows = [
        "| scheme | times smaller than bf16 | perplexity | against plain | mean KL, nats | same first choice |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in result["schemes"].items():
        rows.append(
            f"| {name} | {one['times_smaller']} | {one['perplexity']} | {one['perplexity_change_percent']:+}% "
            f"| {one['mean_kl_nats']} | {one['same_choice_percent']}% |"
        )
    sentence = f"{result['model']} over {result['num_predicted']} tokens of prose, {result['window_tokens']} at a time."
    return "\n".join([*rows, "", sentence, "", where(result)])


def ngram_starter(result: Result) -> str:
    rows = [
        "| task | plain | with n-gram lookup | ratio (95% interval) | tokens per forward |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task, one in result["summary"].items():
        low, high = one["ratio_interval_95"]
        rows.append(
            f"| {task} | {one['plain_tokens_per_second']} tok/s | {one['ngram_tokens_per_second']} tok/s "
            f"| {one['ratio']}x ({low} to {high}) | {one['tokensPerForward']:.2f} |"
        )
    return "\n".join([*rows, "", where(result)])


def scripted_drafter(result: Result) -> str:
    rows = [
        "| rows | plain | with drafts | tokens per forward | gain (95% interval) | of its tokens at the plain rate |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for count, one in result["summary"].items():
        (low, high), share = one["gain"]["interval_95"], one["share_of_accepted_length_times_step_rate"]
        rows.append(
            f"| {count} | {one['plain_tokens_per_second']} tok/s | {one['drafted_tokens_per_second']} tok/s "
            f"| {one['tokens_per_forward']} | {one['gain']['mean']}x ({low} to {high}) | {share['mean']} "
            f"({share['interval_95'][0]} to {share['interval_95'][1]}) |"
        )
    return "\n".join([*rows, "", f"On the {result['chosen']['device']}: {where(result)}"])


def cuda_suite(result: Result) -> str:
    rows = [f"| {one['what']} | {one['worst'] / one['scale']:.2g} | {one['bound']:g} |" for one in result["right"]]
    right = ["| | worst difference | of at most |", "| --- | --- | --- |", *rows]
    company = result["company"]
    long, short = max(company["lengths"]), min(company["lengths"])
    times = company["times_as_long"]
    mixed = (
        f"A step of {len(company['lengths'])} rows of a {company['model']}, one behind {long:,} tokens and the others "
        f"behind {short}, takes {times['compiled']:.2f} times as long as one of rows behind {short} tokens (built anew "
        f"and not traced: {times['eager']:.2f})."
    )
    steps = [
        "| whole steps, tokens per second | rows | stored | built anew | traced |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in result["steps"]:
        rate = one["tokens_per_second"]
        name = f"{one['model']}, `{one['strategy']}`"
        steps.append(f"| {name} | {one['rows']} | {one['stored']} | {rate['eager']:.0f} | {rate['compiled']:.0f} |")
    return "\n".join([*right, "", mixed, "", *steps, "", where(result)])


def exact_route(result: Result) -> str:
    rows = [
        "| | Phyla | mlx-lm | ratio (95% interval) |",
        "| --- | --- | --- | --- |",
    ]
    tokens = {"prefill": result["num_prompt_tokens"], "decode": result["num_decoded_tokens"]}
    for phase, count in tokens.items():
        one = result["summary"][phase]
        low, high = one["ratio_interval_95"]
        rows.append(
            f"| {phase}, {count} tokens | {one['phyla']} tok/s | {one['mlx_lm']} tok/s "
            f"| {one['ratio']}x ({low} to {high}) |"
        )
    return "\n".join([*rows, "", f"On the {result['chosen']['device']}: {where(result)}"])


def kv_speed(result: Result) -> str:
    rows = ["| | reading the prompt | decode |", "| --- | --- | --- |"]
    for name, one in result["summary"].items():
        rows.append(f"| {name} | {one['prefill_seconds']} s | {one['decode_tokens_per_second']} tok/s |")
    rows += [f"| {name} | doesn't run | |" for name in result["cannot_run"]]
    return "\n".join([*rows, "", f"Medians on the {result['device']}: {where(result)}"])


def serve_start(result: Result) -> str:
    runs, fresh = result["serve"], result["make_serve"]
    rows = [
        "| | ready | first answer |",
        "| --- | --- | --- |",
        f"| `phyla serve`, the slowest of {len(runs)} | {max(one['ready_seconds'] for one in runs)} s "
        f"| {max(one['answered_seconds'] for one in runs)} s |",
        f"| `make serve` in a new clone with an empty home | {fresh['ready_seconds']} s "
        f"| {fresh['answered_seconds']} s |",
    ]
    return "\n".join([*rows, "", where(result)])


def mixed_prompts(result: Result) -> str:
    one = result["summary"]
    low, high = one["ratio_interval_95"]
    rows = [
        "| | in turn | together | ratio (95% interval) |",
        "| --- | --- | --- | --- |",
        f"| all answered | {one['in_turn_seconds']} s | {one['together_seconds']} s "
        f"| {one['ratio']}x ({low} to {high}) |",
    ]
    firsts = ", ".join(f"{tokens}: {seconds} s" for tokens, seconds in one["first_token_seconds_together"].items())
    sentence = f"Together, the first token comes after (by tokens of the prompt) {firsts}."
    return "\n".join([*rows, "", sentence, "", where(result)])


def bench_engine(result: Result) -> str:
    model = result["model"]
    held = f"{model['id']}, {model['weights']} weights, {model['dtype']}, on the {result['device']}"
    return "\n".join([*engine_rows(result), "", f"{held}: {where(result)}"])


def bench_serve(result: Result) -> str:
    return "\n".join([*serve_rows(result), "", where(result)])


def where(result: Result) -> str:
    """The line under a table: the command and the machine."""
    machine, versions = result["machine"], result["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "python")
    return f"`{result['command']}` on {machine['cores']} cores of an {machine['processor']}; {named}."


TABLES: dict[str, Callable[[Result], str]] = {
    "starter_vs_mlx_lm": starter_vs_mlx_lm,
    "server_cost": server_cost,
    "server_starter": server_starter,
    "serve_start": serve_start,
    "ngram_starter": ngram_starter,
    "concurrency": concurrency,
    "prefix_starter": prefix_starter,
    "kv_quality": kv_quality,
    "scripted_drafter": scripted_drafter,
    "cuda_suite": cuda_suite,
    "exact_route": exact_route,
    "kv_speed": kv_speed,
    "mixed_prompts": mixed_prompts,
    "grammar_cost": grammar_cost,
    "bench_engine": bench_engine,
    "bench_serve": bench_serve,
}
"""By the script that wrote the result, or for `bench_` ones the command."""

if __name__ == "__main__":
    main()
