"""Clients of a streaming server in a process of their own: `python -m benchmarks.stream_clients URL COUNT BODY`.

Prints, as JSON, the milliseconds per token that each client saw. One event loop reads raw sockets, so that the clients
cost the machine as little as they can.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit


async def per_token_milliseconds(url: str, body: bytes) -> float:
    """Of one stream, from its first content to its last."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    head = f"POST {target.path} HTTP/1.1\r\nhost: {target.netloc}\r\nconnection: close\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    num_tokens, first, last = 0, 0.0, 0.0
    while data := await reader.read(65536):
        last = time.perf_counter()
        first = first or last
        num_tokens += data.count(b"data: {")
    writer.close()
    return (last - first) / (num_tokens - 1) * 1e3


async def main(url: str, count: int, body: bytes) -> None:
    print(json.dumps(await asyncio.gather(*(per_token_milliseconds(url, body) for _ in range(count)))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()))
