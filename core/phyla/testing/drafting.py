"""Drafting without an engine: a model that is a table, sources that say what a test tells them, and the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from phyla.draft.constraint import Constraint
from phyla.draft.method import DraftFacts, DraftProvider
from phyla.draft.span import Observed, RowProposal, Span, SpanSource
from phyla.draft.usage import Round, SpeculationUsage
from phyla.draft.verify import Acceptance, RowRound, Verdict, plan, settle, verify
from phyla.kv.state import LayerState
from phyla.model.step import Tap
from phyla.request import Request
from phyla.sampling.sampler import RowSampler


class TableModel:
    """Logits that depend on the last `num_context` tokens alone, drawn once per context from a seed."""

    def __init__(self, vocab_size: int, *, seed: int = 0, num_context: int = 2, spread: float = 2.0) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._num_context = num_context
        self._spread = spread

    def logits(self, history: Sequence[int]) -> mx.array:
        """(V,) float32 for the token after `history`."""
        draw = np.random.default_rng([self._seed, *history[-self._num_context :]])
        return mx.array((draw.normal(0, self._spread, self.vocab_size)).astype(np.float32))

    def greedy(self, history: Sequence[int]) -> int:
        """The most likely next token."""
        return int(np.argmax(np.array(self.logits(history))))


Script = Callable[[Sequence[int], int], Sequence[int]]
"""`(history, room) -> drafts`."""


@dataclass
class ScriptedSource:
    """Proposes what `script` says, and remembers what it was told."""

    script: Script
    observed: list[Observed] = field(default_factory=list)

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        drafts = tuple(self.script(history, room))
        return Span(drafts, source="scripted") if drafts else None

    def observe(self, step: Observed) -> None:
        self.observed.append(step)


class ScriptedProvider(DraftProvider):
    """Opens scripted sources; keeps them, so that a test can ask what they observed.

    Args:
        script: what every row proposes.
        taps: hidden rows that the sources want to observe.
        is_lookup: what its facts say; scripts run on the host.
    """

    def __init__(self, script: Script, taps: tuple[Tap, ...] = (), *, is_lookup: bool = False) -> None:
        self.facts = DraftFacts(taps=taps, is_lookup=is_lookup)
        self.sources: dict[str, ScriptedSource] = {}
        self._script = script

    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        source = ScriptedSource(self._script)
        self.sources[request.request_id] = source
        return source


@dataclass(frozen=True)
class Transcript:
    """What came out of `generate`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token that was drawn, from its own position."""

    computed: tuple[int, ...]
    """What the target's state would hold at the end."""

    verdicts: tuple[Verdict, ...]
    usage: SpeculationUsage


def generate(
    model: TableModel,
    sampler: RowSampler,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    source: SpanSource | None = None,
    provider: DraftProvider | None = None,
    eos_ids: frozenset[int] = frozenset(),
    constraint: Constraint | None = None,
    acceptance: Acceptance = "exact",
    goes_on: Callable[[int], bool] | None = None,
) -> Transcript:
    """One row through the verifier, as the engine would run it.

    Args:
        model: the target.
        sampler: the row's.
        prompt: at least one token.
        num_tokens: most to emit.
        source: what drafts; None decodes plainly.
        provider: gets the question as the engine puts it, with the row's sampler; None asks the source itself, which
            drafts without one.
        eos_ids: what ends the row.
        constraint: of the row.
        acceptance: how drafts are judged.
        goes_on: as `settle` takes it.
    """
    history = list(prompt)
    num_prompt = len(prompt)
    computed = list(prompt[:-1])
    logprobs: list[float] = []
    verdicts: list[Verdict] = []
    usage = SpeculationUsage("scripted")
    if source is not None:
        source.observe(Observed(tuple(computed), is_prefill=True))
    while not verdicts or (verdicts[-1].ended is None and verdicts[-1].error is None):
        row = RowRound(
            sampler,
            history,
            len(history) - num_prompt,
            num_tokens - len(history) + num_prompt,
            eos_ids,
            constraint,
        )
        planned = plan(row, None if source is None else _proposed(source, provider, row))
        entered = [*history, *planned.context]
        rows = [model.logits([*entered, *planned.drafts[:position]]) for position in range(len(planned.drafts) + 1)]
        chosen = verify([planned], mx.stack(rows), acceptance=acceptance)
        ids = chosen.ids()
        verdict = settle(planned, ids, failure=chosen.failures.get(0), goes_on=goes_on)
        kept = planned.tokens[: verdict.num_kept]
        computed.extend(kept)
        history.extend(verdict.tokens)
        drawn = verdict.tokens[verdict.num_asserted :]
        logprobs.extend(float(np.array(chosen.logprobs[i, token])) for i, token in enumerate(drawn))
        verdicts.append(verdict)
        usage.record(Round(len(verdict.tokens), verdict.num_drafted, verdict.num_accepted, verdict.num_asserted))
        if source is not None:
            source.observe(Observed(kept, len(computed) - len(kept), verdict.num_drafted, verdict.num_accepted))
    return Transcript(tuple(history[num_prompt:]), tuple(logprobs), tuple(computed), tuple(verdicts), usage)


def _proposed(source: SpanSource, provider: DraftProvider | None, row: RowRound) -> Span | None:
    if provider is None:
        return source.propose(row.history, row.room)
    [span] = provider.propose([RowProposal(0, source, row.history, row.room, row.sampler, row.step)])
    return span
