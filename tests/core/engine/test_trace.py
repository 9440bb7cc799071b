"""The trace stream: each lever its own kind of line, and nothing of what was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from phyla.engine.trace import TraceSettings
from phyla.settings import load_settings
from phyla.testing.engines import a_request, running, scripted_spec
from phyla.testing.scripted import CharacterTokenizer, replies, scripted_binding

TOKENIZER = CharacterTokenizer()


def traced(settings: TraceSettings) -> None:
    binding = scripted_binding(TOKENIZER, replies(TOKENIZER, {"hello": "secret"}))
    with running(scripted_spec(binding, TOKENIZER, trace=settings)) as (engine, log):
        engine.submit(a_request("a", TOKENIZER.encode("hello")))
        log.wait("a")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_file_gets_every_kind(tmp_path: Path) -> None:
    traced(TraceSettings(trace=str(tmp_path / "trace.jsonl")))
    text = (tmp_path / "trace.jsonl").read_text()
    assert {line["kind"] for line in lines(text)} == {"phase", "step", "lane", "memory"}
    assert [line["event"] for line in lines(text) if line["kind"] == "phase"] == ["admitted", "prefill", "end"]
    assert "secret" not in text


@pytest.mark.parametrize(
    ("lever", "kind"),
    [("P2R_TRACE", "phase"), ("BATCH_STEP_TRACE", "step"), ("LANE_DEBUG", "lane"), ("PREFILL_MEM_LOG", "memory")],
)
def test_each_lever_is_a_filter(lever: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    traced(load_settings((TraceSettings,), env={f"PHYLA_{lever}": "1"}).section(TraceSettings))
    assert {line["kind"] for line in lines(capsys.readouterr().err)} == {kind}


def test_without_a_lever_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    traced(TraceSettings())
    assert capsys.readouterr().err == ""
