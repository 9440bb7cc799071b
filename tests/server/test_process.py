"""The real command in a process of its own, with a tiny real model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import httpx
import openai
import pytest

RUN = "import sys; from phyla.cli.main import main; sys.exit(main())"


class Process:
    """`phyla serve` with a tiny model on a free port."""

    def __init__(self, folder, *arguments, env=None):
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, "serve", str(folder), "--port", "0", "--route", "exact", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def wait_until_ready(self):
        """The API's address, out of the ready card."""
        card = []
        for line in self.process.stdout:
            card.append(line)
            if line.strip().startswith("API"):
                return line.split()[-1]
        raise AssertionError("".join(card) + self.process.stderr.read())

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(checkpoint):
    started = []

    def run(*arguments, env=None):
        started.append(Process(checkpoint.reference, *arguments, env=env))
        return started[-1]

    yield run
    for one in started:
        one.end()


def test_the_official_client_streams_from_the_real_server(start):
    url = start().wait_until_ready()
    question = [{"role": "user", "content": "Hello"}]

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="m", messages=question, max_tokens=8, temperature=0)
        chunks = list(
            client.chat.completions.create(model="m", messages=question, max_tokens=8, temperature=0, stream=True)
        )

    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"


def test_a_signal_lets_the_running_stream_end_and_exits_cleanly(start):
    running = start()
    url = running.wait_until_ready()

    with httpx.stream(
        "POST", f"{url}/completions", json={"prompt": "Hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]

    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert running.process.wait(30) == 0


def test_a_shutdown_that_takes_too_long_tells_the_client_and_ends(start):
    running = start(env={"PHYLA_SHUTDOWN_TIMEOUT_MS": "300"})
    url = running.wait_until_ready()

    with httpx.stream(
        "POST", f"{url}/completions", json={"prompt": "Hello", "ignore_eos": True, "stream": True}, timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        running.process.send_signal(signal.SIGINT)
        running.process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]

    assert rest[-1] == "data: [DONE]"
    assert "shutting down" in rest[-2]

    assert running.process.wait(30) == 0


def test_a_port_that_serves_already_is_named_before_anything_is_loaded(start):
    port = start().wait_until_ready().rsplit(":", 1)[1].split("/")[0]

    second = start("--port", port)
    _, errors = second.process.communicate(timeout=60)

    assert second.process.returncode == 1
    assert f"Port {port} is already serving" in errors


def test_a_port_taken_by_something_else_is_a_clear_error(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        second = start("--port", str(taken.getsockname()[1]))
        _, errors = second.process.communicate(timeout=60)

    assert second.process.returncode == 1
    assert "--port" in errors
    assert "Traceback" not in errors


def test_listening_beyond_loopback_without_a_key_is_refused(start):
    refused = start("--host", "0.0.0.0")
    _, errors = refused.process.communicate(timeout=60)

    assert refused.process.returncode == 2
    assert "--insecure" in errors


def test_a_unix_socket_serves_everything_and_replaces_a_stale_one(start, tmp_path):
    path = tmp_path / "phyla.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    start("--unix", str(path)).wait_until_ready()

    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://anything") as client:
        assert client.get("/v1/models").status_code == 200
        assert client.post("/admin/cache/flush").status_code == 200
    assert path.stat().st_mode & 0o077 == 0


def test_a_key_on_the_command_line_works_and_warns(start):
    running = start("--api-key", "secret-key-1")
    url = running.wait_until_ready()

    refused = httpx.get(f"{url}/models")
    served = httpx.get(f"{url}/models", headers={"authorization": "Bearer secret-key-1"})
    running.process.send_signal(signal.SIGTERM)
    _, errors = running.process.communicate(timeout=60)

    assert refused.status_code == 401
    assert served.status_code == 200
    assert "Warning: --api-key" in errors
    assert "secret-key-1" not in errors


def test_the_log_has_a_line_per_request_and_no_prompt(start):
    running = start()
    url = running.wait_until_ready()

    httpx.post(f"{url}/completions", json={"prompt": "a-very-private-prompt", "max_tokens": 1}, timeout=60)
    running.process.send_signal(signal.SIGTERM)
    _, errors = running.process.communicate(timeout=60)

    assert '"path": "/v1/completions", "status": 200' in errors
    assert "a-very-private-prompt" not in errors


@pytest.mark.parametrize(("level", "is_logged"), [("info", True), ("warning", False)])
def test_the_log_level_decides_about_the_line_per_request(start, level, is_logged):
    running = start("--log-level", level)
    url = running.wait_until_ready()
    httpx.get(f"{url}/models")
    running.process.send_signal(signal.SIGTERM)

    _, errors = running.process.communicate(timeout=60)

    assert ('"path": "/v1/models"' in errors) == is_logged
