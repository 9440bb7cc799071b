"""From a body to what can be submitted: prepared, and its constraint compiled, refused or reduced to a wish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from phyla.draft.compiling import Enforced
from phyla.errors import ConstraintError, ConstraintUntried

from phyla_server.asked import UNENFORCEABLE, UNTRIED, AskedConstraint, Unenforced
from phyla_server.errors import ApiError
from phyla_server.incoming import Incoming
from phyla_server.serving import Serving


class Prepared(Protocol):
    """A prepared request of any protocol."""

    @property
    def asked(self) -> AskedConstraint | None: ...


PreparedT = TypeVar("PreparedT", bound=Prepared)


@dataclass(frozen=True)
class Ready(Generic[PreparedT]):
    """To be submitted as it is."""

    prepared: PreparedT
    headers: Mapping[str, str]
    """For the answer."""

    enforced: Enforced | None = None
    """Hold it until the request has ended."""


async def made_ready(
    serving: Serving,
    incoming: Incoming,
    prepare: Callable[[Serving, Incoming, Unenforced | None], PreparedT],
    consequence: str,
) -> Ready[PreparedT]:
    """Prepare a request and compile its constraint.

    Args:
        serving: the server.
        incoming: the request.
        prepare: runs in a preparation thread; told why its constraint isn't enforced, it goes on without.
        consequence: what then happens instead, for the Warning header.

    Raises:
        ApiError: it can't be served, 400 for a constraint that nothing here enforces, or 503 for one that wasn't tried.
    """
    began = time.perf_counter()
    preparation, num_bytes = serving.preparation, len(incoming.raw)
    try:
        prepared = await preparation.run(lambda: prepare(serving, incoming, None), num_bytes)
        enforced = None if prepared.asked is None else await _compiled(serving, prepared.asked)
        return Ready(prepared, _timing(began), enforced)
    except ApiError as error:
        if error.code not in (UNENFORCEABLE, UNTRIED) or not serving.warns_of_fallback:
            raise
        unenforced = Unenforced(error.message)
    prepared = await preparation.run(lambda: prepare(serving, incoming, unenforced), num_bytes)
    return Ready(prepared, {**_timing(began), **unenforced.header(consequence)})


def _timing(began: float) -> Mapping[str, str]:
    """How long all of it took: what a client can subtract to see the engine's share of its wait."""
    return {"server-timing": f"prepare;dur={(time.perf_counter() - began) * 1e3:.1f}"}


async def _compiled(serving: Serving, asked: AskedConstraint) -> Enforced:
    try:
        return await serving.enforcing.compile(asked)
    except ConstraintUntried as error:
        raise asked.postponed(str(error)) from error
    except ConstraintError as error:
        raise asked.refusal(str(error)) from error
