"""The trace stream: each lever its own kind of line, and nothing of what was said."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from phyla.engine.engine import Engine
from phyla.engine.trace import TraceSettings, open_trace
from phyla.errors import UsageError
from phyla.request import ConstraintSpec, SamplingParams
from phyla.settings import load_settings
from phyla.testing.constraint import WordList
from phyla.testing.engines import TOY_VOCAB, a_request, running, scripted_spec, toy_spec
from phyla.testing.row_equality import alone
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


def test_a_constraint_writes_how_it_is_advanced(capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings((TraceSettings,), env={"PHYLA_GRAMMAR_DEBUG": "1"}).section(TraceSettings)
    words = WordList([[5, 6, 7]], eos_ids=(2,), vocab_size=TOY_VOCAB)
    spec = toy_spec("F", trace=settings, open_constraint=lambda request: words.open())
    with running(spec) as (engine, log):
        engine.submit(a_request("a", [1, 2], 8, constraint=ConstraintSpec("words", "")))
        assert log.wait("a").ids == [5, 6, 7]
    written = lines(capsys.readouterr().err)
    assert {(line["kind"], line["request"], line["sample"]) for line in written} == {("grammar", "a", 0)}
    assert [(line["event"], line.get("token"), line.get("is_satisfied")) for line in written] == [
        ("opened", None, None),
        ("advanced", 5, False),
        ("advanced", 6, False),
        ("advanced", 7, True),
    ]


def test_waiting_for_the_device_changes_no_token() -> None:
    request = a_request("a", range(3, 20), 6, SamplingParams(temperature=1.0, seed=2, ignore_eos=True))
    synced = alone(toy_spec("FR", trace=TraceSettings(sync=True)), [request])
    assert synced["a"].ids == alone(toy_spec("FR"), [request])["a"].ids


def test_standard_error_stays_open_even_if_it_is_another_one_by_then() -> None:
    at_start = io.StringIO()
    with contextlib.redirect_stderr(at_start):
        trace = open_trace(TraceSettings(phases=True), time.monotonic)
    trace.close()
    trace.ended("a", 0, "stop")
    assert [line["request"] for line in lines(at_start.getvalue())] == ["a"]


def test_its_own_file_is_closed(tmp_path: Path) -> None:
    trace = open_trace(TraceSettings(trace=str(tmp_path / "trace.jsonl")), time.monotonic)
    trace.close()
    trace.close()
    trace.ended("a", 0, "stop")
    assert (tmp_path / "trace.jsonl").read_text() == ""


def test_a_file_that_cant_be_written_is_refused_when_the_engine_starts(tmp_path: Path) -> None:
    engine = Engine(toy_spec("F", trace=TraceSettings(trace=str(tmp_path / "nowhere" / "trace"))))
    with pytest.raises(UsageError, match="--trace can't write"):
        engine.start()


def test_without_a_lever_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    traced(TraceSettings())
    assert capsys.readouterr().err == ""
