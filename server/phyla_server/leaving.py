"""Clients that hang up before they have their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from phyla_server.body import ClientGone

ResultT = TypeVar("ResultT")


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(work: Coroutine[Any, Any, ResultT], receive: Receive) -> ResultT:
    """What `work` gives, for as long as somebody waits for it.

    Raises:
        ClientGone: nobody does any more; what hasn't begun of the work never will.
    """
    working, watcher = asyncio.create_task(work), asyncio.create_task(until_disconnect(receive))
    try:
        await asyncio.wait((working, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watcher.cancel()
