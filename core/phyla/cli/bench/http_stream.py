"""An HTTP client for load: raw streams on one event loop, so that clients cost the machine as little as they can.

Speaks as much of HTTP/1.1 as a streamed answer needs: one connection a request, bodies in chunks, of a stated length,
or up to the end of the connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from phyla.errors import UsageError

MOST_ERROR_BYTES = 2000


class HttpFailed(Exception):
    """The server refused, or the answer broke off."""


@dataclass(frozen=True)
class HttpTarget:
    """Where requests go.

    Args:
        base_url: `http://host:port`, with or without `/v1`.
        key: sent as a bearer token.

    Raises:
        UsageError: the URL isn't one.
    """

    base_url: str
    key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"'{self.base_url}' isn't the URL of a server: http://127.0.0.1:8080.")

    @asynccontextmanager
    async def send(self, method: str, path: str, body: object = None) -> AsyncIterator[HttpAnswer]:
        """Send a request; its answer can be read inside the block.

        Args:
            method: GET or POST.
            path: below `/v1`.
            body: sent as JSON.

        Raises:
            HttpFailed: the status isn't 200; the message has what the server said.
            OSError: no connection.
        """
        parts = urlsplit(self.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=parts.scheme == "https" or None)
        try:
            writer.write(self._request(method, path, body))
            await writer.drain()
            answer = await HttpAnswer.begin(reader)
            if answer.status != 200:
                raise HttpFailed(f"{answer.status}: {_said(await answer.read())}")
            yield answer
        except (asyncio.IncompleteReadError, ValueError) as error:
            raise HttpFailed(f"the answer broke off: {error}") from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def get(self, path: str) -> Any:
        """The JSON of a GET.

        Raises:
            HttpFailed: as `send`, or it isn't JSON.
            OSError: no connection.
        """
        async with self.send("GET", path) as answer:
            return json.loads(await answer.read())

    def _request(self, method: str, path: str, body: object) -> bytes:
        parts = urlsplit(self.base_url)
        root = parts.path.rstrip("/")
        sent = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {root if root.endswith('/v1') else f'{root}/v1'}{path} HTTP/1.1",
            f"host: {parts.netloc.rpartition('@')[2]}",
            "connection: close",
            "accept: text/event-stream, application/json",
        ]
        if self.key is not None:
            lines.append(f"authorization: Bearer {self.key}")
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(sent)}"]
        return "\r\n".join([*lines, "", ""]).encode() + sent


class HttpAnswer:
    """A status, and a body that is read as it comes."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self._headers = headers
        self._reader = reader

    @classmethod
    async def begin(cls, reader: asyncio.StreamReader) -> HttpAnswer:
        """Read status and headers."""
        status = (await reader.readline()).split()
        if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or not status[1].isdigit():
            raise HttpFailed("no HTTP answer came")
        headers = {}
        while line := (await reader.readline()).decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return cls(int(status[1]), headers, reader)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as the network delivers it."""
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
        elif "content-length" in self._headers:
            yield await self._reader.readexactly(int(self._headers["content-length"]))
        else:
            while data := await self._reader.read(65536):
                yield data

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[str]:
        """The data of server-sent events, line by line; comments are left out."""
        rest = b""
        async for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode("utf-8")


def _said(body: bytes) -> str:
    """The message of an error in OpenAI's form, else the beginning of the body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:MOST_ERROR_BYTES].decode("utf-8", "replace")
