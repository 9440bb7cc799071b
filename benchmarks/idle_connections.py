"""Open keep-alive connections, in a process of their own: `python -m benchmarks.idle_connections URL COUNT`.

Each asks for /health once and stays open. Prints a line when all are, and ends with its input.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


@contextmanager
def idle_connections(url: str, count: int) -> Iterator[None]:
    """So many of them while the block runs; none needs no process."""
    if not count:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.idle_connections", url, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{count} open\n"
        yield
        # Ends the input, and with it the process.
        process.communicate()


async def opened(host: str, port: int) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /health HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
    await reader.readuntil(b'{"status": "ok"}')
    return writer


async def main(url: str, count: int) -> None:
    target = urlsplit(url)
    assert target.hostname is not None
    assert target.port is not None
    connections = [await opened(target.hostname, target.port) for _ in range(count)]
    print(f"{count} open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for writer in connections:
        writer.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
