"""The form that a request wants its answer in, and what becomes of it where nothing can enforce it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phyla.request import ConstraintSpec

from phyla_server.errors import ApiError, bad_request

WISHES: Mapping[str, str] = {
    "json_object": "Answer with one JSON object and nothing else.",
    "json_schema": "Answer with one JSON value that satisfies this JSON Schema, and nothing else:",
    "regex": "Answer with a text that this regular expression matches whole, and nothing else:",
    "grammar": "Answer with a text of this grammar, and nothing else:",
    "choice": "Answer with exactly one of these strings, and nothing else:",
}
MAX_REASON_CHARS = 500
UNENFORCEABLE = "unenforceable_constraint"
UNTRIED = "untried_constraint"
"""The codes of what `--structured-fallback warn` would have let through: of every 400, and of every 503."""

RETRY_SECONDS = 5


@dataclass(frozen=True)
class AskedConstraint:
    """A constraint and the field that asked for it."""

    field: str
    spec: ConstraintSpec

    def refusal(self, reason: str) -> ApiError:
        """The 400 that says why."""
        return bad_request(f"{self.field} can't be enforced: {reason}", self.field, UNENFORCEABLE)

    def postponed(self, reason: str) -> ApiError:
        """The 503 of one that nothing is said against: this machine was too busy to find out."""
        headers = {"retry-after": str(RETRY_SECONDS)}
        return ApiError(503, f"{self.field} wasn't tried out: {reason}", "server_error", UNTRIED, self.field, headers)


@dataclass(frozen=True)
class Unenforced:
    """Why a constraint isn't enforced, where the server was told to go on without."""

    reason: str

    def header(self, consequence: str) -> Mapping[str, str]:
        """The Warning header of the answer."""
        reason = " ".join(self.reason.split())[:MAX_REASON_CHARS]
        text = f"grammar not enforced: {reason} - {consequence}"
        # A header takes printable ASCII only: a control character ends the connection without an answer.
        return {"warning": "".join(char if " " <= char <= "~" else "?" for char in text)}


def with_wish(
    messages: Sequence[Mapping[str, Any]], asked: AskedConstraint | None, must_call: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The messages with an instruction in front that asks for what can't be enforced."""
    wishes = []
    if must_call:
        wishes.append(f"Answer by calling {' or '.join(must_call)}, and with nothing else.")
    elif asked is not None:
        wish = WISHES.get(asked.spec.kind, "Answer in this form, and nothing else:")
        wishes.append(wish if asked.spec.kind == "json_object" else f"{wish}\n{asked.spec.source}")
    if not wishes:
        return list(messages)
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": "\n\n".join([first["content"], *wishes])}, *messages[1:]]
    return [{"role": "system", "content": "\n\n".join(wishes)}, *messages]
