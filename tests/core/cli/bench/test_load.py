"""The client of a load against answers written by hand, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from phyla.cli.bench.asked import Asked, Endpoint
from phyla.cli.bench.http_stream import HttpFailed, HttpTarget
from phyla.cli.bench.load import Answered, Client, Load, run_load
from phyla.errors import UsageError

ASKED = Asked("Hello", 5)
Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 6}}


def event(data: object) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"text": text}]}


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in [*pieces, b""])


def saying(*parts: bytes) -> Reply:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.writelines(parts)

    return reply


def streaming(*data: object) -> Reply:
    return saying(OK, chunked(*map(event, data)))


class Served:
    """A loopback server that answers every request with one reply, and remembers what it was sent."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.heads: list[str] = []
        self.bodies: list[Any] = []
        self._answering: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Served:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        for one in self._answering:
            one.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.append(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            sizes = [int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length")]
            for size in sizes:
                self.bodies.append(json.loads(await reader.readexactly(size)))
            await self._reply(writer)
        finally:
            writer.close()


def answered(reply: Reply, endpoint: Endpoint = "completions", timeout_seconds: float = 20.0) -> Answered:
    async def run() -> Answered:
        async with Served(reply) as served:
            return await Client(HttpTarget(served.url), endpoint, "m").ask(ASKED, timeout_seconds)

    return asyncio.run(run())


def test_pieces_are_counted_and_usage_wins() -> None:
    got = answered(streaming(piece(""), piece("Hel"), piece("lo"), piece("!"), USAGE, "[DONE]"))
    assert (got.error, got.text) == (None, "Hello!")
    assert (got.num_input, got.num_output, len(got.gaps)) == (11, 6, 2)
    assert 0 < got.ttft <= got.latency
    assert got.latency == pytest.approx(got.ttft + sum(got.gaps))


def test_without_usage_pieces_are_tokens() -> None:
    assert answered(streaming(piece("a"), piece("b"), "[DONE]")).num_output == 2


def test_an_event_may_be_cut_anywhere() -> None:
    whole = event(piece("naïve")) + b": a comment\n\n" + event(USAGE) + event("[DONE]")
    cut = [whole[start : start + 3] for start in range(0, len(whole), 3)]
    got = answered(saying(OK, chunked(*cut)))
    assert (got.error, got.text, got.num_output) == (None, "naïve", 6)


def test_a_body_may_end_with_the_connection() -> None:
    got = answered(saying(b"HTTP/1.1 200 OK\r\n\r\n", event(piece("a")), event("[DONE]")))
    assert (got.error, got.text) == (None, "a")


def test_reasoning_and_tool_calls_are_text_too() -> None:
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm. "},
        {"content": "Yes"},
        {"tool_calls": [{"function": {"arguments": "{}"}}]},
    ]
    got = answered(streaming(*({"choices": [{"delta": delta}]} for delta in deltas), "[DONE]"), "chat")
    assert (got.text, got.num_output) == ("Hm. Yes{}", 3)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (streaming(piece("a")), "the stream ended early"),
        (streaming(piece("a"), {"error": {"message": "out of memory"}}), "out of memory"),
        (streaming("{nonsense"), "isn't JSON"),
        (streaming("[1]"), "isn't an object"),
        (saying(OK, b"ff\r\ndata: "), "broke off"),
        (saying(OK, b"zz\r\n"), "broke off"),
        (saying(b""), "no HTTP answer came"),
        (saying(b'HTTP/1.1 429 No\r\ncontent-length: 31\r\n\r\n{"error": {"message": "full"} }'), "429: full"),
        (saying(b"HTTP/1.1 502 No\r\ncontent-length: 3\r\n\r\nbad"), "502: bad"),
    ],
)
def test_whatever_goes_wrong_is_in_the_answer(reply: Reply, error: str) -> None:
    got = answered(reply)
    assert got.error is not None
    assert error in got.error


def test_an_answer_that_does_not_end_is_given_up() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        await asyncio.Event().wait()

    assert answered(silent, timeout_seconds=0.05).error == "no end within 0.05 seconds"


@pytest.mark.parametrize(
    ("given", "path"), [("", "/v1/completions"), ("/v1", "/v1/completions"), ("/a/", "/a/v1/completions")]
)
def test_the_key_and_the_path_are_sent(given: str, path: str) -> None:
    async def run() -> Served:
        async with Served(streaming(piece("a"), "[DONE]")) as served:
            await Client(HttpTarget(served.url + given, "secret"), "completions", "m").ask(ASKED, 20.0)
            return served

    served = asyncio.run(run())
    assert served.heads[0].startswith(f"POST {path} HTTP/1.1\r\n")
    assert "authorization: Bearer secret\r\n" in served.heads[0]
    assert served.bodies[0]["model"] == "m"


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="isn't the URL of a server"):
        HttpTarget(url)


def test_a_status_that_is_not_ok_raises_for_a_get() -> None:
    async def run() -> None:
        async with Served(saying(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")) as served:
            await HttpTarget(served.url).get("/models")

    with pytest.raises(HttpFailed, match="404"):
        asyncio.run(run())


class Counting:
    """Replies once as many requests are under way as there may be, and notes the most there were."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_open = 0
        self._is_full = asyncio.Event()
        self.seen = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        self.seen = max(self.seen, self._num_open)
        if self._num_open == self._most:
            self._is_full.set()
        await self._is_full.wait()
        await streaming(piece("a"), "[DONE]")(writer)
        self._num_open -= 1


@pytest.mark.parametrize(("load", "most"), [(Load(max_concurrency=3), 3), (Load(), 8), (Load(request_rate=1e4), 8)])
def test_a_closed_loop_keeps_its_bound_and_an_open_one_has_none(load: Load, most: int) -> None:
    async def run() -> tuple[int, Sequence[Answered]]:
        counting = Counting(most)
        async with Served(counting) as served:
            client = Client(HttpTarget(served.url), "completions", "m")
            answers, duration = await run_load(client, [ASKED] * 8, load, lambda line: None)
        assert duration > 0
        return counting.seen, answers

    seen, answers = asyncio.run(run())
    assert seen == most
    assert [one.text for one in answers] == ["a"] * 8


def test_arrivals_are_poisson_seeded_and_begin_at_once() -> None:
    times = list(Load(request_rate=4.0, seed=1).arrivals(4000))
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert times[0] == 0.0
    assert times == list(Load(request_rate=4.0, seed=1).arrivals(4000))
    assert times != list(Load(request_rate=4.0, seed=2).arrivals(4000))
    assert mean == pytest.approx(1 / 4, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(1 / 16, rel=0.15)


def test_without_a_rate_all_arrive_at_once() -> None:
    assert list(Load().arrivals(3)) == [0.0, 0.0, 0.0]
