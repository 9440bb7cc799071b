"""`phyla bench serve` against a real server over a scripted engine, and against one it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from phyla.cli.main import main
from phyla_server.keys import KeyRing

QUICK = ("--num-prompts", "6", "--input-len", "12", "--output-len", "4")


def test_a_running_server_is_measured(serve, tokenizer, capsys):
    running = serve(lambda request, sample: tokenizer.encode("abcdefgh" * 9))
    words = ["bench", "serve", "--base-url", running.server.url, *QUICK, "--goodput", "ttft:60000", "--detailed"]

    assert main(words, env={}) == 0

    got = json.loads(capsys.readouterr().out)
    assert (got["model_id"], got["completed"], got["failed"]) == ("phyla/scripted", 6, 0)
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (6 * 12, 6 * 4)
    assert got["request_goodput"] == got["request_throughput"] > 0
    assert got["total_token_throughput"] > got["output_throughput"] > got["request_throughput"]
    assert got["output_lens"] == [4] * 6
    assert got["errors"] == [""] * 6
    # One more for the warm-up, which read another prompt.
    assert len({request.rendered.ids for request in running.front.received}) == 7
    assert all(request.sampling.ignore_eos for request in running.front.received)


def test_a_file_of_chats_is_asked_in_its_order(serve, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('Hello\n{"messages": [{"role": "user", "content": "Goodbye"}], "output_tokens": 2}\n', "utf-8")
    running = serve("Hello there, friend.")
    url, output = f"{running.server.url}/v1", tmp_path / "result.json"
    words = ["bench", "serve", "--base-url", url, "--endpoint", "chat", "--prompts", str(prompts), "--num-prompts", "2"]

    assert main([*words, "--warmup=0", "--max-concurrency=1", "--stop-at-eos", f"--output={output}"], env={}) == 0

    got = json.loads(output.read_text("utf-8"))
    assert [request.max_tokens for request in running.front.received] == [128, 2]
    assert (got["completed"], got["max_concurrency"], got["request_goodput"]) == (2, 1, None)
    assert str(tmp_path) not in output.read_text("utf-8")
    assert capsys.readouterr().out == ""


def test_a_key_opens_a_server_that_has_one(serve, tmp_path, capsys):
    (tmp_path / "key").write_text("a-secret-key\n")
    running = serve("Hello", keys=KeyRing(["a-secret-key"]))
    words = ["bench", "serve", "--base-url", running.server.url, *QUICK]

    assert main(words, env={}) == 1
    assert "a server with a key needs --key-file" in capsys.readouterr().err
    assert main([*words, "--key-file", str(tmp_path / "key")], env={}) == 0


def test_a_server_that_answers_nothing_is_a_failure_with_its_reason(serve, capsys):
    running = serve("Hello")

    words = ["bench", "serve", "--base-url", running.server.url, *QUICK, "--warmup", "0", "--ids", "4000", "4000"]
    assert main(words, env={}) == 1
    assert "None of 6 requests was answered. The first failed with: 400" in capsys.readouterr().err


def test_a_server_of_its_own_is_started_with_the_flags_and_ends(checkpoint, capsys):
    words = ["bench", "serve", str(checkpoint.folder), *QUICK, "--batch", "2", "--request-rate", "50"]

    assert main(words) == 0

    got = json.loads(capsys.readouterr().out)
    assert (got["model_id"], got["completed"], got["request_rate"]) == ("tiny-model", 6, 50.0)


def test_a_server_that_does_not_start_gives_its_last_words(checkpoint, capsys):
    assert main(["bench", "serve", str(checkpoint.folder), "--kv-scheme", "nonsense"]) == 1
    assert "didn't start" in (said := capsys.readouterr().err)
    assert "There is no KV scheme 'nonsense'" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base-url", "http://127.0.0.1:9", "model"), "model can't change it"),
        (("--base-url", "http://127.0.0.1:9", "--batch", "4"), "--batch can't change it"),
        (("--base-url", "nowhere"), "isn't the URL of a server"),
        (("--goodput", "speed:5"), "ttft:MILLISECONDS"),
        (("--request-rate", "0"), "isn't a number of requests a second"),
        (("--request-rate", "often"), "isn't a number of requests a second"),
        (("--max-concurrency", "0"), "not in the range"),
        (("--ids", "9", "3"), "the lowest comes first"),
        (("--prompts", "absent.txt"), "can't be read"),
        (("--key-file", "absent.txt"), "can't be read"),
        (("--endpoint", "embeddings"), "is not one of"),
        (("--output", "absent/result.json"), "name a file in a folder that exists"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, message
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "serve", *arguments], env={}) == 2
    assert message in " ".join(capsys.readouterr().err.split())
