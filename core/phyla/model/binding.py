"""A loaded model: three methods per family, and the loop over them that core owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from phyla.errors import UsageError
from phyla.model.step import Route, StepInput, StepOutput, Tap

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.model.facts import ModelFacts

LayerStates = Sequence[Any]
"""One object per layer that speaks its kind's protocol for the whole group; a reader where the layer borrows."""


class Forward(Protocol):
    """A step under way, so that the engine can look up between layer spans."""

    @property
    def done(self) -> bool: ...

    @property
    def output(self) -> StepOutput:
        """Only once `done`."""
        ...

    def advance(self, num_layers: int) -> list[mx.array]:
        """Run up to `num_layers` more layers and return what to evaluate before going on."""
        ...

    def finish(self) -> StepOutput:
        """Run all layers that are left, unevaluated."""
        ...

    def leave_exact_route(self) -> None:
        """Run the layers that are left on the fast route."""
        ...

    @property
    def carried(self) -> list[mx.array]:
        """All that the layers that are left need from those that ran, but for what is in the states."""
        ...

    def resume(self, num_layers: int, carried: Sequence[mx.array]) -> None:
        """Go on behind the first layers, which ran elsewhere: in another forward, begun with the same step.

        Args:
            num_layers: that ran there.
            carried: what that forward said then.
        """
        ...


class ModelBinding(ABC):
    """What a family's `bind` returns. Lives on the engine thread.

    A family gives `embed`, `layer` and `head`; `start` loops over the layers, records taps and cuts spans.
    Hidden rows are matrices, (B*L, E), so that each projection runs once over all tokens of the step and is one
    operation: with an axis in front, MLX takes it off and puts it back around every product. Nothing else goes from
    layer to layer, since steps may be traced in pieces; a family whose layers share more overrides `start`, and its
    `Forward` carries that.
    """

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts

    @property
    def name(self) -> str:
        return self.facts.family

    @abstractmethod
    def embed(self, step: StepInput) -> mx.array:
        """Embeddings of `step.ids`, overlay applied: (B*L, E)."""

    @abstractmethod
    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        """Layer `index`: (B*L, E) in and out. Reads and appends `states[index]`."""

    @abstractmethod
    def head(self, hidden: mx.array) -> mx.array:
        """Final norm and output projection, softcap included: (1, M, E) to (1, M, V)."""

    def logits_of(self, hidden: mx.array, route: Route) -> mx.array:
        """`head` of rows that a step of that route gave; overridden where the routes multiply differently."""
        return self.head(hidden)

    def final_norm(self, hidden: mx.array) -> mx.array:
        """The norm that `head` applies first; families that offer post-norm taps override it."""
        raise UsageError(f"Model family '{self.name}' offers no hidden rows after the final norm.")

    def start(self, step: StepInput, states: LayerStates) -> Forward:
        """Begin a step; nothing is evaluated until the caller does it."""
        return LayerwiseForward(self, step, states)

    def forward(self, step: StepInput, states: LayerStates) -> StepOutput:
        """Run the whole step, unevaluated. The same graph, and so the same bits, as running it span by span."""
        return self.start(step, states).finish()

    def adapter_identity(self, name: str) -> str:
        """Content hash and scale of a mounted adapter: what was computed under it is reused under no other.

        Raises:
            UsageError: no adapter of that name is mounted.
        """
        raise UsageError(f"Model family '{self.name}' has no adapter '{name}' mounted.")

    def adapted(self, adapters: Sequence[str]) -> Self:
        """A view of this binding with an adapter set applied.

        Raises:
            UsageError: this family mounts none of these adapters.
        """
        if adapters:
            raise UsageError(f"Model family '{self.name}' has no adapters mounted; asked for {', '.join(adapters)}.")
        return self


class LayerwiseForward:
    """The ordinary way to run a step: embed, then one layer after the other."""

    def __init__(self, binding: ModelBinding, step: StepInput, states: LayerStates) -> None:
        self._binding = binding
        self._step = step
        self._states = states
        self._hidden = binding.embed(step)
        self._next_layer = 0
        self._taps: dict[Tap, mx.array] = {}
        self._tapped_layers = {tap.layer for tap in step.taps}

    @property
    def done(self) -> bool:
        return self._next_layer == len(self._binding.facts.layout)

    @property
    def output(self) -> StepOutput:
        assert self.done, "the forward hasn't run all its layers"
        return StepOutput(hidden=wanted_rows(self._hidden, self._step)[None], taps=self._taps)

    def leave_exact_route(self) -> None:
        if self._step.route == "exact":
            self._step = replace(self._step, route="fast")

    @property
    def carried(self) -> list[mx.array]:
        return [self._hidden]

    def resume(self, num_layers: int, carried: Sequence[mx.array]) -> None:
        [self._hidden] = carried
        self._next_layer = num_layers

    def advance(self, num_layers: int) -> list[mx.array]:
        layout = self._binding.facts.layout
        start, stop = self._next_layer, min(self._next_layer + num_layers, len(layout))
        self._run(stop)
        owned = [self._states[index] for index in range(start, stop) if layout[index].owns_state]
        return [self._hidden, *(array for state in owned for array in state.evaluate())]

    def finish(self) -> StepOutput:
        self._run(len(self._binding.facts.layout))
        return self.output

    def _run(self, stop: int) -> None:
        for index in range(self._next_layer, stop):
            self._hidden = self._binding.layer(index, self._hidden, self._step, self._states)
            if index in self._tapped_layers:
                self._record_taps(index)
        self._next_layer = stop

    def _record_taps(self, index: int) -> None:
        for tap in self._step.taps:
            if tap.layer == index:
                hidden = self._hidden if tap.norm == "pre" else self._binding.final_norm(self._hidden)
                self._taps[tap] = hidden[None]


def wanted_rows(hidden: mx.array, step: StepInput) -> mx.array:
    """The rows of (B*L, E) that the step asked for; by default each row's last real position.

    A dead seat gives its first position, so that the shape depends on B alone.
    """
    if step.wanted is not None:
        return hidden[step.wanted]
    if step.width == 1:
        return hidden
    if step.num_rows == 1:
        last = step.num_real[0] - 1
        return hidden[last : last + 1]
    import mlx.core as mx

    flat = [row * step.width + max(num_real - 1, 0) for row, num_real in enumerate(step.num_real)]
    return hidden[mx.array(flat, dtype=mx.int32)]
