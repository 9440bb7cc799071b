"""The `usage` block of answers with several choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import phyla
from phyla import Settings
from phyla.draft.usage import Round, SpeculationUsage
from phyla.request import Usage
from phyla.sampling.settings import SamplingSettings
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla_server.embedded import EmbeddedServer
from phyla_server.served import served_by
from phyla_server.settings import ServerSettings
from phyla_server.usage import UsageTotal

REPEATED = [30, 31, 32, 33, 34, 35] * 4


def drafted(*rounds: Round, lane: str = "serial+spec", reason: str | None = None, **extras: Any) -> Usage:
    usage = SpeculationUsage("ngram")
    usage.reason = reason
    for one in rounds:
        usage.record(one)
    return Usage(10, usage.num_emitted, lane=lane, speculation=usage.report(), extras=extras)


def block_of(*samples: Usage) -> dict[str, Any]:
    total = UsageTotal()
    for usage in samples:
        total.add("r", usage)
    return total.block()


def test_counts_of_choices_add_up_and_the_ratio_is_that_of_the_sums() -> None:
    plain, long, short = Round(1), Round(4, num_drafted=3, num_accepted=3), Round(2, 2, 1, source="grammar")

    block = block_of(drafted(plain, long, long, short), drafted(plain, short))

    assert block["completion_tokens"] == 14
    assert block["speculation"] == drafted(plain, long, long, short, plain, short).speculation


def test_what_happened_to_any_choice_is_said_once() -> None:
    block = block_of(
        drafted(Round(1), lane="batched", reason="cold"),
        drafted(Round(2, 1, 1), lane="serial+spec", reason="cold"),
        drafted(Round(1), lane="serial", reason="off"),
        Usage(10, 0),
    )

    assert block["lane"] == "batched+spec"
    assert (block["speculation"]["method"], block["speculation"]["reason"]) == ("ngram", "cold; off")
    assert block["speculation"]["tokensPerForward"] == 4 / 3


def test_fills_of_choices_add_up_too() -> None:
    ones, others = {"proposals": 2, "refused": ["echo"]}, {"proposals": 3, "refused": ["echo", "form"], "failed": ["x"]}

    block = block_of(drafted(fill=ones), drafted(fill=others))

    assert block["fill"] == {"proposals": 5, "refused": ["echo", "form"], "failed": ["x"]}


def test_choices_without_a_method_have_no_speculation() -> None:
    assert "speculation" not in block_of(Usage(10, 3), Usage(10, 4))


def test_served_choices_are_all_in_the_counts(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny-llama", tiny_config("llama"))
    settings = Settings([ServerSettings(port=0), SamplingSettings()])
    body = {"prompt": [REPEATED, REPEATED[1:]], "n": 2, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with (
        phyla.load(str(folder), method="ngram", draft_adaptive="off") as model,
        EmbeddedServer(served_by(model, model.manager, settings), settings) as server,
    ):
        usage = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["usage"]

    report = usage["speculation"]
    assert report["drafted"] > 0
    assert usage["completion_tokens"] == 4 * 12
    assert report["targetCalls"] + report["forwardsSaved"] == 4 * 12
    assert sum(report["acceptanceLengths"]) == report["rounds"] == report["targetCalls"]
