"""Reading a JSON body that may be hostile: bounded in bytes, in time, in nesting, compressed or not."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from phyla_server.errors import ApiError, bad_request

MAX_NESTING = 128
CLOSING = {"connection": "close"}
"""For answers to a request that isn't read to its end."""


Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before its body was complete."""


async def read_body(headers: Mapping[str, str], receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """The whole body, decompressed.

    Raises:
        ApiError: 415 for another content type or encoding, 413 past `max_bytes`, 408 if it isn't whole in `seconds`.
        ClientGone: it never arrived.
    """
    _check_content_type(headers.get("content-type", ""))
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    inflate = _Inflater(headers.get("content-encoding", "identity"), max_bytes)
    try:
        async with asyncio.timeout(seconds):
            return await _collect(receive, inflate, max_bytes)
    except TimeoutError as error:
        raise ApiError(408, "the request body did not arrive in time", headers=CLOSING) from error


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        ApiError: 400 for anything that isn't strict JSON in UTF-8, isn't an object, or nests too deeply.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request("invalid JSON body") from error
    if not isinstance(value, dict):
        raise bad_request("invalid JSON body")
    check_values(value)
    return value


def check_values(value: Any) -> None:
    """Refuse nesting past the limit, and lone surrogates, which no tokenizer can encode."""
    pending = [(value, 1)]
    while pending:
        one, depth = pending.pop()
        if isinstance(one, str):
            _check_text(one)
        elif isinstance(one, dict | list):
            if depth > MAX_NESTING:
                raise bad_request(f"the body nests more than {MAX_NESTING} deep")
            members = [*one.keys(), *one.values()] if isinstance(one, dict) else one
            pending += [(member, depth + 1) for member in members]


async def _collect(receive: Receive, inflate: _Inflater, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = inflate.add(message.get("body", b""))
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            inflate.check_complete()
            return b"".join(parts)


class _Inflater:
    """Undoes `Content-Encoding: gzip` without ever producing more than `max_bytes` plus one."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip"):
            raise ApiError(415, "content-encoding must be gzip or absent")
        self._gzip = zlib.decompressobj(wbits=31) if name == "gzip" else None
        self._room = max_bytes + 1

    def add(self, data: bytes) -> bytes:
        if self._gzip is None:
            return data
        if self._room <= 0 or not data:
            return b""
        try:
            part = self._gzip.decompress(data, self._room)
        except zlib.error as error:
            raise bad_request("the gzip body is damaged") from error
        self._room -= len(part)
        return part

    def check_complete(self) -> None:
        if self._gzip is not None and not self._gzip.eof:
            raise bad_request("the gzip body is damaged")


def _check_content_type(content_type: str) -> None:
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() != "application/json":
        raise ApiError(415, "content-type must be application/json")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if parameters.strip().lower().startswith("charset=") and charset not in ("utf-8", "utf8"):
        raise ApiError(415, "the body must be UTF-8")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise bad_request("the body holds a lone surrogate, which is not a character") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", headers=CLOSING)
