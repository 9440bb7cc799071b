"""One HTTP server over one engine: starts, serves, drains, stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from phyla import Settings
from phyla.engine.front import Shutdown

from phyla_server.app import create_app
from phyla_server.connection import PatienceConfig
from phyla_server.enforcing import Enforcing
from phyla_server.generation import GenerationService
from phyla_server.guard import GuardRules
from phyla_server.keys import KeyRing
from phyla_server.listening import is_loopback
from phyla_server.local_library import ListsModels, NoOtherModels
from phyla_server.preparation import Preparation
from phyla_server.served import ServedModel
from phyla_server.serving import Owner, Serving
from phyla_server.settings import ServerSettings

HEALTH_SECONDS = 0.25
DEAD_GRACE_SECONDS = 1.0
"""How long a server with a dead engine still answers 503, so that clients learn why."""

IDLE_CONNECTION_SECONDS = 75
CUT_SECONDS = 5
"""What cancelled requests get to send their last frame once the time to drain is over."""

EXIT_CLEAN, EXIT_FAILED = 0, 1


class HttpServer:
    """Serves `model` on an already listening socket."""

    def __init__(
        self,
        model: ServedModel,
        settings: Settings,
        keys: KeyRing,
        listener: socket.socket,
        *,
        owner: Owner = "serve",
        plugin_routes: Sequence[Any] = (),
        others: ListsModels | None = None,
    ) -> None:
        self._model = model
        self._all_settings = settings
        self._settings = settings.section(ServerSettings)
        self._keys = keys
        self._listener = listener
        self._owner = owner
        self._plugin_routes = plugin_routes
        self._others = others or NoOtherModels()
        self._uvicorn: _Uvicorn | None = None
        self._generation: GenerationService | None = None
        self._log = logging.getLogger("phyla.server")
        self._ready: list[Callable[[], None]] = []
        self._stopped_at: float | None = None

    @property
    def url(self) -> str:
        """Base address for clients on this machine."""
        if self._listener.family == socket.AF_UNIX:
            return "http://localhost"
        host, port = self._listener.getsockname()[:2]
        shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}"

    def on_ready(self, call: Callable[[], None]) -> None:
        """Call this once requests are taken."""
        self._ready.append(call)

    def stop(self) -> None:
        """Stop admission and drain. From the event loop's thread; safe to call twice."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            if self._generation is not None:
                asyncio.get_running_loop().call_later(self._budget_seconds, self._cut_short, self._generation)
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def run(self) -> int:
        """Serve until stopped or the engine dies, then drain and close the engine; returns the exit code."""
        loop = asyncio.get_running_loop()
        generation = GenerationService(self._model.engine, loop)
        self._generation = generation
        preparation = Preparation()
        enforcing = Enforcing(self._model.constraints)
        serving = Serving(
            self._model, self._all_settings, generation, preparation, enforcing, self._owner, self._others
        )
        self._uvicorn = _Uvicorn(self._config(serving), self._ready)
        self._uvicorn.should_exit = self._stopped_at is not None
        watchdog = asyncio.create_task(self._watch(generation))
        try:
            await self._uvicorn.serve(sockets=[self._listener])
        finally:
            is_dead = not self._model.engine.health().ok
            watchdog.cancel()
            generation.stop()
            preparation.close()
            enforcing.close()
        outcome = await asyncio.to_thread(self._close_engine)
        return EXIT_FAILED if is_dead or outcome.is_stuck else EXIT_CLEAN

    def _config(self, serving: Serving) -> uvicorn.Config:
        settings = self._settings
        is_unix = self._listener.family == socket.AF_UNIX
        rules = GuardRules(
            keys=self._keys,
            allowed_hosts=frozenset(name.lower() for name in (*settings.allowed_host, settings.host)),
            allowed_origins=frozenset(settings.allowed_origin),
            is_unix=is_unix,
            trusts_local_admin=is_unix or is_loopback(settings.host),
        )
        return PatienceConfig(
            create_app(serving, rules, self._plugin_routes),
            head_seconds=settings.head_seconds,
            body_seconds=settings.body_seconds,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Nothing in front of us is trusted to say who the client is.
            proxy_headers=False,
            timeout_keep_alive=IDLE_CONNECTION_SECONDS,
            timeout_graceful_shutdown=int(self._budget_seconds) + CUT_SECONDS,
        )

    async def _watch(self, generation: GenerationService) -> None:
        """A dead engine ends every open request with its reason, and then the server."""
        while (health := self._model.engine.health()).ok:
            await asyncio.sleep(HEALTH_SECONDS)
        reason = health.reason or "the engine has stopped"
        self._log.error("the engine died: %s", reason)
        generation.fail_all(reason)
        await asyncio.sleep(DEAD_GRACE_SECONDS)
        self.stop()

    @property
    def _budget_seconds(self) -> float:
        return self._settings.shutdown_timeout_ms / 1000

    def _cut_short(self, generation: GenerationService) -> None:
        """Draining took too long: what still runs is cancelled, and its clients are told so."""
        if generation.num_open:
            self._log.warning("shutdown timed out: %d requests are cancelled", generation.num_open)
            generation.cancel_all()

    def _close_engine(self) -> Shutdown:
        """Within what draining the connections left of the budget."""
        spent = 0.0 if self._stopped_at is None else time.monotonic() - self._stopped_at
        outcome = self._model.engine.close(max(0.0, self._budget_seconds - spent))
        if outcome.timed_out:
            self._log.warning("shutdown timed out: %d requests were cancelled", outcome.num_cancelled)
        return outcome


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs the process, and says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Sequence[Callable[[], None]]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for call in self._ready:
            call()
