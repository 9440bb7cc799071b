"""Which requests can be served at all, and up to how many tokens: decided before they are queued."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phyla.engine.memory import FitEquation
from phyla.errors import ContextOverflow, OverBudget, RequestError
from phyla.request import Request


@dataclass(frozen=True)
class Admission:
    """Limits of one loaded model under the given budgets."""

    vocab_size: int
    context_limit: int
    """Of the model, lowered by the operator."""

    fit: FitEquation
    usable_bytes: int
    memory_budget_bytes: int | None = None
    kv_budget_bytes: int | None = None
    default_max_tokens: int | None = None
    why_no_text: str | None = None
    """Why answers are token ids alone, where they are."""

    @property
    def max_safe_context(self) -> int:
        """Longest context that fits into memory; enforced only with a memory budget."""
        return self.fit.max_safe_context(self.usable_bytes, self.context_limit)

    def checked(self, request: Request) -> Request:
        """The request with its cap settled: never past the context.

        Raises:
            ContextOverflow: the prompt leaves no room for a single token.
            OverBudget: the prompt, or what it may come to store, is more than a budget allows.
            RequestError: the request can never be served.
        """
        self._check_ids(request)
        if request.num_samples < 1:
            raise RequestError(f"{request.num_samples} samples can't be generated; ask for at least one.")
        if any(not stop for stop in request.stop):
            raise RequestError("An empty stop string would stop everything; leave it out.")
        if request.stop and self.why_no_text is not None:
            raise RequestError(f"Stop strings are looked for in text. {self.why_no_text}")
        room = self._room(len(request.rendered.ids))
        asked = request.max_tokens if request.max_tokens is not None else self.default_max_tokens
        if asked is not None and asked < 1:
            raise RequestError(f"max_tokens is {asked}; at least one token must be allowed.")
        settled = replace(request, max_tokens=room if asked is None else min(asked, room))
        self._check_kv_budget(settled, stated=asked is not None)
        return settled

    def projected_bytes(self, request: Request) -> int:
        """What a checked request may come to store: each sample at prompt plus cap."""
        assert request.max_tokens is not None
        return request.num_samples * self.fit.row_bytes(len(request.rendered.ids) + request.max_tokens)

    def _check_ids(self, request: Request) -> None:
        ids = request.rendered.ids
        if not ids:
            raise RequestError("The prompt has no tokens; there is nothing to continue.")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise RequestError(f"The prompt has token ids outside the vocabulary (0 to {self.vocab_size - 1}).")

    def _room(self, num_prompt: int) -> int:
        if num_prompt >= self.context_limit:
            raise ContextOverflow(
                f"The prompt has {num_prompt} tokens and the context limit is {self.context_limit}: "
                "no token can be generated. Shorten the prompt."
            )
        if self.memory_budget_bytes is None:
            return self.context_limit - num_prompt
        safe = self.max_safe_context
        if num_prompt >= safe:
            raise OverBudget(
                f"The prompt has {num_prompt} tokens and the memory budget allows a context of {safe}: no token can be "
                "generated. Shorten the prompt, raise --memory-budget, or store keys and values smaller (--kv-scheme)."
            )
        return safe - num_prompt

    def _check_kv_budget(self, settled: Request, *, stated: bool) -> None:
        if self.kv_budget_bytes is None:
            return
        needed = self.projected_bytes(settled)
        if needed > self.kv_budget_bytes:
            remedy = "State a smaller max_tokens" if stated else "State max_tokens (or start with --max-tokens)"
            raise OverBudget(
                f"The request may come to store {needed} bytes and --kv-budget allows {self.kv_budget_bytes}. "
                f"{remedy}, or raise the budget."
            )
