"""The server on a thread of its own, for programs that bring their model along and for tests."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import TracebackType

from phyla import Settings

from phyla_server.http_server import HttpServer
from phyla_server.keys import KeyRing
from phyla_server.listening import open_listener
from phyla_server.local_library import ListsModels
from phyla_server.served import ServedModel
from phyla_server.settings import ServerSettings

START_SECONDS = 60.0


class EmbeddedServer:
    """`with EmbeddedServer(model, settings) as server:` serves until the block ends."""

    def __init__(
        self,
        model: ServedModel,
        settings: Settings,
        keys: KeyRing | None = None,
        others: ListsModels | None = None,
    ) -> None:
        self._keys = keys if keys is not None else KeyRing.from_settings(settings.section(ServerSettings))
        self._listener: socket.socket = open_listener(settings.section(ServerSettings), self._keys)
        self._server = HttpServer(model, settings, self._keys, self._listener, owner="embedded", others=others)
        self._is_ready = threading.Event()
        self._server.on_ready(self._is_ready.set)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="phyla-server", daemon=True)
        self.exit_code: int | None = None

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        """Returns once requests are taken.

        Raises:
            TimeoutError: it didn't come up.
        """
        self._thread.start()
        if not self._is_ready.wait(START_SECONDS):
            raise TimeoutError("the server did not start")

    def stop(self) -> None:
        """Drain and stop. Safe to call twice."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._server.stop)
        self.join()

    def join(self) -> None:
        """Wait until it has ended by itself."""
        self._thread.join()

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.exit_code = await self._server.run()
