"""The first byte of streams, seen from a process of its own: `python -m benchmarks.first_bytes URL < BODIES`.

One request a line, one after the other, each on a connection that is already open. Prints, as JSON, the milliseconds
that the server took to validate it, by the server's own `Server-Timing`, and those from sending the request to the role
chunk without them: the way there and back, and what the server did once the request was validated. The answer is read
to its end: the next request would otherwise be measured beside the prefill of the one before.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

PREPARED = re.compile(rb"\r\nserver-timing: prepare;dur=([0-9.]+)\r\n")


def first_bytes(url: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Of each body, sent from another process."""
    command = [sys.executable, "-m", "benchmarks.first_bytes", url]
    lines = "\n".join(map(json.dumps, bodies))
    answer = subprocess.run(command, input=lines, check=True, capture_output=True, text=True, timeout=300)
    measured: list[dict[str, float]] = json.loads(answer.stdout)
    return measured


def milliseconds(url: str, body: str) -> dict[str, float]:
    target = urlsplit(url)
    head = f"POST {target.path} HTTP/1.1\r\nhost: {target.netloc}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
    with socket.create_connection((target.hostname, target.port), timeout=60) as connection:
        began = time.perf_counter()
        connection.sendall(request)
        received = b""
        while b"data: {" not in received:
            received += more(connection, received)
        elapsed = (time.perf_counter() - began) * 1e3
        while b"data: [DONE]" not in received:
            received += more(connection, received)
        prepared = PREPARED.search(received)
        assert prepared is not None, received
        validated = float(prepared[1])
        return {"validated": validated, "first_byte": round(elapsed - validated, 2)}


def more(connection: socket.socket, received: bytes) -> bytes:
    """What comes next of a stream; an answer that is none ends the program instead of being waited for."""
    data = connection.recv(65536)
    if not data or not (received + data).startswith(b"HTTP/1.1 200"[: len(received + data)]):
        raise SystemExit(f"no stream: {(received + data)[:500]!r}")
    return data


if __name__ == "__main__":
    print(json.dumps([milliseconds(sys.argv[1], line.rstrip("\n")) for line in sys.stdin]))
