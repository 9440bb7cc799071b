"""From logits to tokens: one `RowSampler` per row, and one call that draws for many positions at once.

Order: processors (bias, repetition, presence, frequency, named ones), constraint and end-of-sequence mask,
log-softmax in the dtype of the logits, then the lowest id among the largest (greedy), or filters and a draw. Greedy
rows of the fast route take their token before the log-softmax, which only those pay for who want log-probabilities.

Source:
    Order and formulas of mlx-lm's generation (0.32). We differ: the random stream is the row's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.errors import GenerationFailed
from phyla.request import SamplingParams
from phyla.sampling.declaration import LogitsProcessor, LogprobsSampler
from phyla.sampling.filters import Filters
from phyla.sampling.processors import built_in_processors
from phyla.sampling.random_stream import categorical, fresh_seed, split_keys, step_keys, uniforms
from phyla.sampling.token_mask import Words, all_allowed, allows_nothing, masked, unpacked, without

if TYPE_CHECKING:
    from phyla.model.step import Route

LOGITS_IN_A_RUN = 64
"""Runs, and ids of one, are then about as many."""

NO_TOKEN = -1
"""In place of a token where a row's logits weren't a distribution: NaN, infinite, or all forbidden."""


class RowSampler:
    """How one row's tokens are chosen. Holds no history: every call brings what it depends on.

    Args:
        params: the request's, defaults applied.
        vocab_size: V, ids that have a logit.
        eos_ids: what `min_tokens` and `ignore_eos` hold back.
        seed: replaces `params.seed`; None with no seed there draws a fresh one.
        processors: the named ones, after the built-in ones; functions of history and logits alone, since windows
            call them for positions that are taken back.
        sampler: replaces filters and temperature.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        eos_ids: Iterable[int] = (),
        *,
        seed: int | None = None,
        processors: Sequence[LogitsProcessor] = (),
        sampler: LogprobsSampler | None = None,
    ) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        self.filters = Filters.of(params)
        self.sampler = sampler
        self._built_in = built_in_processors(params, vocab_size)
        self._processors: list[LogitsProcessor] = [*self._built_in, *processors]
        given = params.seed if seed is None else seed
        self.seed = fresh_seed() if given is None else given
        self._on_device: mx.array | None = None

    @property
    def changes_drafts(self) -> bool:
        """Whether `process_draft` does anything."""
        return bool(self._built_in)

    @property
    def needs_history(self) -> bool:
        """Whether tokens already chosen change the next one's logits, so that they must be on the host first."""
        return bool(self._processors)

    def process(self, history: Sequence[int], logits: mx.array) -> mx.array:
        """Bias, penalties and named processors: (1, V) to (1, V) of the same dtype.

        Raises:
            GenerationFailed: a processor raised or gave back something else.
        """
        for process in self._processors:
            logits = _checked(process, history, logits)
        return logits

    def process_draft(self, history: Sequence[int], drafted: mx.array | None, logits: mx.array) -> mx.array:
        """As `process`, after drafts that are still on the device; named processors, which want ids, are left out.

        Args:
            history: prompt and everything emitted.
            drafted: (N,) int32 ids that follow it; None before the first.
            logits: (1, V) of the drafter.
        """
        for process in self._built_in:
            logits = process(history, logits, drafted)
        return logits

    def choose(self, logits: mx.array, step: int, mask: Words | None = None) -> Chosen:
        """One token from processed logits.

        Args:
            logits: (1, V), as `process` left them.
            step: tokens emitted so far.
            mask: what the row's constraint allows; None is everything.
        """
        return draw_tokens([Draw(self, step, (), mask)], logits)

    def holds_back_endings(self, step: int) -> bool:
        """Whether end of sequence mustn't come yet."""
        return bool(self.eos_ids) and (self.params.ignore_eos or step < self.params.min_tokens)

    def words(self, step: int, mask: Words | None) -> Words | None:
        """The constraint's mask, and end of sequence held back while the request wants that.

        Where a constraint leaves nothing but end of sequence, that wins: a complete answer can't go on.
        """
        if not self.holds_back_endings(step):
            return mask
        if mask is None:
            return self._all_but_endings
        held_back = without(mask, self.eos_ids)
        return mask if allows_nothing(held_back) else held_back

    def all_but_endings(self, num_logits: int) -> mx.array | None:
        """(1, V) booleans, made once: true but where end of sequence is held back. None if nothing else exists."""
        if self._all_but_endings is None:
            return None
        if self._on_device is None or self._on_device.shape[1] != num_logits:
            self._on_device = unpacked([self._all_but_endings], num_logits)
        return self._on_device

    @cached_property
    def _all_but_endings(self) -> Words | None:
        held_back = without(all_allowed(self.vocab_size), self.eos_ids)
        return None if allows_nothing(held_back) else held_back


@dataclass(frozen=True)
class Draw:
    """One token to be chosen: a row's next one, or one position of its window."""

    sampler: RowSampler
    step: int
    """Tokens emitted before this one, drafts of the window included."""

    history: Sequence[int] = ()
    """Prompt and everything before this token; only read by processors."""

    mask: Words | None = None


@dataclass(frozen=True)
class Chosen:
    """What came of M draws."""

    tokens: mx.array
    """(M,) integers; anything where `ids` says `NO_TOKEN`."""

    logprobs: mx.array
    """(M, V), after processors and masks, before filters and temperature."""

    evidence: mx.array
    """(M, 1) a number per row, not finite where its logits weren't a distribution: the logarithm of its whole mass, or
    its largest logit."""

    failures: Mapping[int, GenerationFailed] = field(default_factory=dict)
    """Draws whose processors or sampler failed; the other draws stand."""

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate so that `ids` doesn't compute."""
        return [self.tokens, self.evidence]

    def ids(self) -> list[int]:
        """The tokens on the host; `NO_TOKEN` where a draw failed or a row's logits weren't a distribution.

        Told apart here: on the device it would be six more kernels in every step.
        """
        ids: list[int] = self.tokens.tolist()  # type: ignore[assignment]
        evidence: list[list[float]] = self.evidence.tolist()  # type: ignore[assignment]
        return [
            token_id if math.isfinite(number) and index not in self.failures else NO_TOKEN
            for index, (token_id, (number,)) in enumerate(zip(ids, evidence, strict=True))
        ]


def choose(draws: Sequence[Draw], logits: mx.array, *, vectorised: bool = True, route: Route = "exact") -> Chosen:
    """Process and choose for M draws at once, or one after the other: the same bits either way.

    Args:
        draws: one per row of `logits`.
        logits: (M, V); not modified.
        vectorised: false takes the slower twin.
        route: what the logits came by.
    """
    processed, failures = process_rows(draws, logits)
    if vectorised:
        return draw_tokens(draws, processed, failures, route)
    singles = [draw_tokens([draw], processed[index : index + 1], route=route) for index, draw in enumerate(draws)]
    failures = {**failures, **{index: one.failures[0] for index, one in enumerate(singles) if one.failures}}
    return Chosen(
        tokens=mx.concatenate([one.tokens for one in singles]),
        logprobs=mx.concatenate([one.logprobs for one in singles]),
        evidence=mx.concatenate([one.evidence for one in singles]),
        failures=failures,
    )


def process_rows(draws: Sequence[Draw], logits: mx.array) -> tuple[mx.array, dict[int, GenerationFailed]]:
    """Each draw's processors on its own row: (M, V) to (M, V), and the draws that failed."""
    if not any(draw.sampler.needs_history for draw in draws):
        return logits, {}
    failures: dict[int, GenerationFailed] = {}
    rows = []
    for index, draw in enumerate(draws):
        row = logits[index : index + 1]
        if draw.sampler.needs_history:
            try:
                row = draw.sampler.process(draw.history, row)
            except GenerationFailed as error:
                failures[index] = error
        rows.append(row)
    return mx.concatenate(rows) if len(rows) > 1 else rows[0], failures


def draw_tokens(
    draws: Sequence[Draw],
    logits: mx.array,
    failures: Mapping[int, GenerationFailed] | None = None,
    route: Route = "exact",
) -> Chosen:
    """Mask, normalise and draw from processed (M, V) logits.

    Log-softmax keeps the dtype of the logits, as mlx-lm does: bfloat16 logits and their log-softmax rank differently.
    In float32 only those could that differ in their last bits, and the fast route has other last bits anyway.
    """
    logits = _masked(draws, logits)
    # Computed only if something below depends on it, or somebody reads the log-probabilities.
    totals = mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs = logits - totals
    by_logits = route == "fast" and logits.dtype == mx.float32
    failed = dict(failures or {})
    parts: list[tuple[list[int], mx.array]] = []
    evidence = totals
    for filters, indices in groups(draws):
        if filters is None:
            parts.append((indices, _named_draw(draws, indices, logprobs, failed)))
        elif filters.is_greedy and by_logits:
            likeliest, largest = _likeliest(_of(logits, indices))
            parts.append((indices, likeliest))
            if len(indices) == len(draws):
                evidence = largest
        elif filters.is_greedy:
            parts.append((indices, mx.argmax(_of(logprobs, indices), axis=-1)))
        else:
            flattened, keys = flatten(filters, [draws[index] for index in indices], _of(logprobs, indices))
            parts.append((indices, categorical(flattened, keys)))
    return Chosen(_in_order(parts), logprobs, evidence, failed)


def flatten(filters: Filters, draws: Sequence[Draw], logprobs: mx.array) -> tuple[mx.array, mx.array]:
    """What these rows draw from, and with which keys: (M, V) unnormalised log-probabilities, (M, 2) keys."""
    keys = step_keys([(draw.sampler.seed, draw.step) for draw in draws])
    if not filters.uses_xtc:
        return filters.apply(logprobs), keys
    xtc_keys, draw_keys = split_keys(keys)
    return filters.apply(logprobs, uniforms(xtc_keys)), draw_keys


def groups(draws: Sequence[Draw]) -> Iterator[tuple[Filters | None, list[int]]]:
    """Draws that agree on their filters, by index; None for those with a sampler of their own."""
    found: dict[Filters | None, list[int]] = {}
    for index, draw in enumerate(draws):
        found.setdefault(None if draw.sampler.sampler else draw.sampler.filters, []).append(index)
    return iter(found.items())


def checked_token(token_id: int) -> int:
    """A drawn id on the host.

    Raises:
        GenerationFailed: it is `NO_TOKEN`.
    """
    if token_id == NO_TOKEN:
        raise GenerationFailed(
            "The model's logits are no probability distribution (NaN, infinite, or every token forbidden)."
        )
    return token_id


def _likeliest(logits: mx.array) -> tuple[mx.array, mx.array]:
    """The lowest id among each row's largest logits, (M,), and that logit, (M, 1): NaN where there is one in the row.

    By runs of ids: one pass that compares, where an argmax beside a maximum are two, and slower ones on a CPU.
    """
    num_rows, num_logits = logits.shape
    width = LOGITS_IN_A_RUN if num_logits % LOGITS_IN_A_RUN == 0 else num_logits
    runs = logits.reshape(num_rows, -1, width)
    largest = runs.max(axis=-1)
    run = mx.argmax(largest, axis=-1, keepdims=True)
    place = mx.argmax(mx.take_along_axis(runs, run[..., None], axis=1), axis=-1)
    return (run * width + place).squeeze(1), largest.max(axis=-1, keepdims=True)


def _of(rows: mx.array, indices: list[int]) -> mx.array:
    """Those of (M, V), in ascending order; all of them as they are."""
    return rows if len(indices) == rows.shape[0] else rows[mx.array(indices)]


def _masked(draws: Sequence[Draw], logits: mx.array) -> mx.array:
    first = draws[0].sampler
    if all(draw.mask is None and draw.sampler.eos_ids == first.eos_ids for draw in draws):
        # The usual rows: nothing is held back, or the same from all of them, which is on the device already.
        held_back = [draw.sampler.holds_back_endings(draw.step) for draw in draws]
        if not any(held_back):
            return logits
        if all(held_back):
            allowed = first.all_but_endings(logits.shape[-1])
            return logits if allowed is None else masked(logits, allowed)
    words = [draw.sampler.words(draw.step, draw.mask) for draw in draws]
    if all(one is None for one in words):
        return logits
    return masked(logits, unpacked(words, logits.shape[-1]))


def _named_draw(
    draws: Sequence[Draw], indices: Sequence[int], logprobs: mx.array, failed: dict[int, GenerationFailed]
) -> mx.array:
    keys = step_keys([(draws[index].sampler.seed, draws[index].step) for index in indices])
    tokens = []
    for position, index in enumerate(indices):
        sampler = draws[index].sampler.sampler
        assert sampler is not None
        try:
            tokens.append(_checked_draw(sampler, logprobs[index], keys[position]))
        except GenerationFailed as error:
            failed[index] = error
            tokens.append(mx.array(0, dtype=mx.int32))
    return mx.stack(tokens)


def _checked(process: LogitsProcessor, history: Sequence[int], logits: mx.array) -> mx.array:
    # A fresh handle: a processor that assigns into its argument must not reach the model's logits.
    changed: object = _guarded(lambda: process(history, logits[:]), "logits processor")
    if not isinstance(changed, mx.array) or changed.shape != logits.shape:
        raise GenerationFailed(f"A logits processor gave back {_what(changed)} instead of logits {logits.shape}.")
    return changed.astype(logits.dtype)


def _checked_draw(sampler: LogprobsSampler, logprobs: mx.array, key: mx.array) -> mx.array:
    token: object = _guarded(lambda: sampler(logprobs[:], key), "sampler")
    if not isinstance(token, mx.array) or token.size != 1:
        raise GenerationFailed(f"A sampler gave back {_what(token)} instead of one token id.")
    return token.reshape(()).astype(mx.int32)


def _guarded(call: Callable[[], object], role: str) -> object:
    """Whatever a plugin's function raises becomes this row's failure."""
    try:
        return call()
    except Exception as error:
        # The class alone: what it says may quote the prompt, and this message reaches the client.
        raise GenerationFailed(f"A {role} raised {type(error).__name__}.") from error


def _what(value: object) -> str:
    return f"an array {value.shape}" if isinstance(value, mx.array) else type(value).__name__


def _in_order(parts: Sequence[tuple[list[int], mx.array]]) -> mx.array:
    if len(parts) == 1:
        return parts[0][1]
    order = [index for indices, _ in parts for index in indices]
    places = [0] * len(order)
    for place, index in enumerate(order):
        places[index] = place
    return mx.concatenate([tokens.astype(mx.int32) for _, tokens in parts])[mx.array(places)]
