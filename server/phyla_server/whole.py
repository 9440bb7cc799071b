"""Answers in one piece: wait for all samples, give up when the client does."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar.types import Receive

from phyla_server.body import ClientGone
from phyla_server.encoder import WholeEncoder
from phyla_server.errors import interruption
from phyla_server.generation import Ticket
from phyla_server.leaving import until_disconnect


async def collect(ticket: Ticket, encoder: WholeEncoder, receive: Receive) -> dict[str, Any]:
    """The encoder's body once every sample has ended.

    Raises:
        ApiError: a sample failed.
        ClientGone: nobody waits for the answer any more; the requests are cancelled.
    """
    watcher = asyncio.create_task(until_disconnect(receive))
    watcher.add_done_callback(lambda _: ticket.poke())
    try:
        while not ticket.is_finished:
            for event in await ticket.take():
                error = interruption(event, ticket.is_cut)
                if error is not None:
                    raise error
                encoder.event(event)
            if watcher.done():
                raise ClientGone
            if encoder.has_all():
                ticket.cut()
    finally:
        ticket.close()
        watcher.cancel()
    return encoder.body()
