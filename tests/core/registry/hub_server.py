"""A hub on the loopback interface with one repository, enough of one for the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `org/tiny`; remembers what was asked and can break a download off."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.asked: list[tuple[str, str, str | None]] = []
        self.cut_after: int | None = None
        """Bytes of the next large body that are sent before the connection closes."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    hub = Hub(files)
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path, self.headers.get("Range")))
        if path == "/api/models/org/tiny/revision/main":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
            self._send(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode(), with_body)
        elif path == f"/api/models/org/tiny/tree/{COMMIT}":
            self._send(200, json.dumps([_tree_entry(*file) for file in self.server.files.items()]).encode(), with_body)
        elif (
            path.startswith(prefix := f"/org/tiny/resolve/{COMMIT}/") and path.removeprefix(prefix) in self.server.files
        ):
            self._send_file(self.server.files[path.removeprefix(prefix)], with_body)
        else:
            self._send(404, b"{}", with_body, {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, data: bytes, with_body: bool) -> None:
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None or not with_body:
            self._send(200, data, with_body, headers)
            return
        first = int(asked.removeprefix("bytes=").partition("-")[0])
        headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self._send(206, data[first:], with_body, headers)

    def _send(self, status: int, body: bytes, with_body: bool, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.server.cut_after
        if with_body and cut is not None and len(body) > cut:
            self.server.cut_after = None
            self.wfile.write(body[:cut])
            self.wfile.flush()
            self.close_connection = True
        elif with_body:
            self.wfile.write(body)


def _tree_entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(data), "oid": sha256(data).hexdigest()}
