"""From handlers to the engine and back: one sink for all requests, one wake-up of the event loop per step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phyla.engine import EngineFront
from phyla.errors import PhylaError
from phyla.request import EngineEvent, Failed, Finished, Request


class Ticket:
    """One client's requests in flight (several for a batch of prompts), as a queue of their events."""

    def __init__(self, service: GenerationService, requests: Sequence[Request], held: object = None) -> None:
        self._service = service
        self._num_open = {request.request_id: request.num_samples for request in requests}
        self._events: list[EngineEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._held = held
        self.is_cut = False
        """Whether its requests were ended because the answer was complete."""

    @property
    def is_finished(self) -> bool:
        """Whether every sample has ended and everything was taken."""
        return not self._num_open and not self._events

    @property
    def open_ids(self) -> tuple[str, ...]:
        return tuple(self._num_open)

    async def take(self) -> list[EngineEvent]:
        """All events since the last call; waits for some. Empty after `poke`."""
        if not self._events and self._num_open:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        return events

    def poke(self) -> None:
        """Let a waiting `take` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cut(self) -> None:
        """End what still runs; the last events still come. Safe to call twice."""
        if not self.is_cut:
            self.is_cut = True
            self._service.cancel(self)

    def close(self) -> None:
        """Cancel what still runs. Safe to call twice."""
        self._service.close(self)

    def put(self, event: EngineEvent) -> None:
        self._events.append(event)
        if isinstance(event, Failed):
            self._num_open.pop(event.request_id, None)
        elif isinstance(event, Finished):
            self._end_sample(event.request_id)
        self.poke()

    def _end_sample(self, request_id: str) -> None:
        num_open = self._num_open.get(request_id, 0) - 1
        if num_open > 0:
            self._num_open[request_id] = num_open
        else:
            self._num_open.pop(request_id, None)


class GenerationService:
    """Belongs to one event loop; only `_on_step` runs elsewhere."""

    def __init__(self, front: EngineFront, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._tickets: dict[str, Ticket] = {}
        self._unsubscribe = front.subscribe(self._on_step)

    @property
    def num_open(self) -> int:
        return len(self._tickets)

    def open(self, requests: Sequence[Request], held: object = None) -> Ticket:
        """Submit requests that belong together: all of them or none.

        Args:
            requests: of one client.
            held: kept alive with the ticket, such as their compiled constraint.

        Raises:
            QueueFull, EngineStopped, RequestError: from the engine's front.
        """
        ticket = Ticket(self, requests, held)
        for request in requests:
            self._tickets[request.request_id] = ticket
            try:
                self._front.submit(request, wake=False)
            except PhylaError:
                del self._tickets[request.request_id]
                self.close(ticket)
                raise
        # After this turn of the loop, in which a stream sends its opening: it would wait for the lock that an engine
        # takes to begin a prompt.
        self._loop.call_soon(self._front.wake)
        return ticket

    def close(self, ticket: Ticket) -> None:
        for request_id in ticket.open_ids:
            if self._tickets.pop(request_id, None) is not None:
                self._front.cancel(request_id)

    def cancel(self, ticket: Ticket) -> None:
        for request_id in ticket.open_ids:
            self._front.cancel(request_id)

    def cancel_all(self) -> None:
        """Cancel every open request; each still gets its last event."""
        for request_id in tuple(self._tickets):
            self._front.cancel(request_id)

    def fail_all(self, reason: str) -> None:
        """The engine is gone: end every open request with the reason."""
        for request_id in tuple(self._tickets):
            self._deliver([Failed(request_id, error=reason, kind="EngineStopped")])

    def stop(self) -> None:
        self._unsubscribe()

    def _on_step(self, events: Sequence[EngineEvent]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            ticket = self._tickets.get(event.request_id)
            if ticket is None:
                continue
            ticket.put(event)
            if event.request_id not in ticket.open_ids:
                del self._tickets[event.request_id]
                if isinstance(event, Failed):
                    # One sample's failure ends the answer: its siblings would decode for nobody.
                    self._front.cancel(event.request_id)
