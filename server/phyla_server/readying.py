"""From a body to what can be submitted: prepared, and its constraint compiled, refused or reduced to a wish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from phyla.draft.compiling import Enforced
from phyla.errors import ConstraintError

from phyla_server.asked import AskedConstraint, Unenforced
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
    enforced: Enforced | None = None
    """Hold it until the request has ended."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """For the answer."""


async def made_ready(
    serving: Serving, prepare: Callable[[Unenforced | None], PreparedT], consequence: str
) -> Ready[PreparedT]:
    """Prepare a request and compile its constraint.

    Args:
        serving: the server.
        prepare: runs in a preparation thread; told why its constraint isn't enforced, it goes on without.
        consequence: what then happens instead, for the Warning header.

    Raises:
        ApiError: it can't be served, or 400 for a constraint that nothing here enforces.
    """
    prepared = await serving.preparation.run(lambda: prepare(None))
    asked = prepared.asked
    if asked is None:
        return Ready(prepared)
    try:
        return Ready(prepared, await serving.enforcing.compile(asked))
    except ConstraintError as error:
        if not serving.warns_of_fallback:
            raise asked.refusal(str(error)) from error
        unenforced = Unenforced(str(error))
    prepared = await serving.preparation.run(lambda: prepare(unenforced))
    return Ready(prepared, headers=unenforced.header(consequence))
