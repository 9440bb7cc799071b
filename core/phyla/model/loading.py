"""Strict loading: every tensor of the checkpoint is used once, has the shape the model says, and is evaluated here.

A family gives a function that builds its modules from a `WeightLoader`. It's called twice: first against the headers,
so that everything wrong is one error before anything is read; then with the tensors, group by group, so that a model's
stored and held forms exist side by side for one group only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

import mlx.core as mx

from phyla.model.quantization import QuantSection, parse_quant_section
from phyla.model.tensor_source import HeaderSource, StoredSource, TensorGroup, TensorSource
from phyla.nn.embedding import Embedding
from phyla.nn.experts import ExpertLinear
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.norm import RMSNorm
from phyla.nn.products import FastProducts
from phyla.nn.weight import Weight

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint
    from phyla.model.load_options import LoadOptions
    from phyla.nn.form import QuantForm

FLOATS = (mx.float32, mx.float16, mx.bfloat16)


class HoldsArrays(Protocol):
    """Anything built from loaded tensors."""

    @property
    def arrays(self) -> Sequence[mx.array]: ...


BuiltT = TypeVar("BuiltT")
ModuleT = TypeVar("ModuleT", bound=HoldsArrays)


def load_weights(
    checkpoint: Checkpoint,
    options: LoadOptions,
    build: Callable[[WeightLoader], BuiltT],
    ignored: Sequence[str] = (),
    section: QuantSection | None = None,
) -> BuiltT:
    """Build a model's modules from a checkpoint; everything is evaluated on the calling thread.

    Args:
        checkpoint: where the tensors are.
        options: the dtype to hold them in, whether to dequantise, whom to tell about progress.
        build: asks for every tensor once, the same ones at each call; must not look at values.
        ignored: patterns of tensors that the family knows and doesn't use.
        section: which form each module is in; by default as the config has it. For families whose modules go by
            several names.

    Raises:
        WeightMismatch: tensors that are missing, unused, misshapen or of the wrong kind of number; all of them,
            before any is read.
    """
    if section is None:
        section = parse_quant_section(checkpoint.config)
    groups = _asked_for(checkpoint, build, ignored, section, options)
    stored = StoredSource(checkpoint, groups, options.progress)
    built = build(WeightLoader(stored, section, options))
    stored.close()
    return built


def check_headers(checkpoint: Checkpoint, build: Callable[[WeightLoader], object], ignored: Sequence[str] = ()) -> None:
    """What `load_weights` looks at before it reads anything, for those who have to know sooner.

    Raises:
        WeightMismatch: as `load_weights` does.
        UnsupportedModel: weights in a form that other tools write.
        DamagedCheckpoint: a form that MLX doesn't have.
    """
    _asked_for(checkpoint, build, ignored, parse_quant_section(checkpoint.config), None)


def _asked_for(
    checkpoint: Checkpoint,
    build: Callable[[WeightLoader], object],
    ignored: Sequence[str],
    section: QuantSection,
    options: LoadOptions | None,
) -> Sequence[TensorGroup]:
    """The tensors that are to be read, after a look at the headers of all."""
    headers = HeaderSource(checkpoint, ignored)
    build(WeightLoader(headers, section, options))
    headers.check()
    return headers.groups


class WeightLoader:
    """Hands out a checkpoint's tensors as modules, in the dtype and form that the options ask for.

    Without options, where nobody computes with them, as float32 and in the form that they are stored in.
    """

    def __init__(self, source: TensorSource, section: QuantSection, options: LoadOptions | None) -> None:
        self._source = source
        self._section = section
        self._dtype: mx.Dtype = mx.float32 if options is None else getattr(mx, options.dtype)
        self._is_dense = options is not None and options.weights == "dense"
        self._products = FastProducts(None if options is None else options.strategies)

    @contextmanager
    def group(self, label: str) -> Iterator[None]:
        """What is asked for inside is looked up and reported together: a layer, or another part of modest size."""
        self._source.enter(label)
        yield
        self._source.leave()

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return name in self._source.infos

    def tensor(self, name: str, shape: tuple[int, ...], keeps_dtype: bool = False) -> mx.array:
        """A tensor in the model's dtype, or in its stored one if `keeps_dtype`."""
        stored = self._floats(name, shape)
        array = stored if keeps_dtype else self._cast(stored)
        self._source.hold([array])
        return array

    def hold(self, module: ModuleT) -> ModuleT:
        """Evaluate what was made of this group's tensors together with them; returns it."""
        return self._held(module)

    def linear(self, path: str, num_inputs: int, num_outputs: int, bias: bool = False) -> Linear:
        """`path.weight` (quantised if `path.scales` is there) and `path.bias`."""
        return self._held(self._linear(path, num_inputs, num_outputs, bias))

    def fused(
        self, paths: Sequence[str], num_inputs: int, num_outputs: Iterable[int], bias: bool = False
    ) -> FusedLinear:
        """Several layers of one input, stored as one."""
        sized = zip(paths, num_outputs, strict=True)
        parts = (self._linear(path, num_inputs, size, bias) for path, size in sized)
        return self._held(FusedLinear(parts, self._source.join))

    def embedding(self, path: str, num_rows: int, width: int) -> Embedding:
        """`path.weight`, quantised or not."""
        return self._held(Embedding(self._weight(path, num_rows, width), self._products))

    def norm(self, path: str, width: int, eps: float, adds_one: bool = False) -> RMSNorm:
        """`path.weight`, of one axis."""
        return self._held(RMSNorm(self._cast(self._floats(f"{path}.weight", (width,))), eps, adds_one))

    def experts(self, path: str, num_experts: int, num_inputs: int, num_outputs: int) -> ExpertLinear:
        """`path.weight` of (experts, outputs, inputs), quantised or not."""
        weight = self._weight(path, num_outputs, num_inputs, num_experts)
        return self._held(ExpertLinear(weight, num_experts))

    def _linear(self, path: str, num_inputs: int, num_outputs: int, bias: bool) -> Linear:
        weight = self._weight(path, num_outputs, num_inputs)
        shift = self._cast(self._floats(f"{path}.bias", (num_outputs,))) if bias else None
        return Linear(weight, shift, self._products)

    def _weight(self, path: str, num_rows: int, num_columns: int, num_stacked: int | None = None) -> Weight:
        """One matrix, or `num_stacked` of them below each other, which are stored along a leading axis."""
        leading = () if num_stacked is None else (num_stacked,)
        form = self._section.form_of(path)
        if not self.has(f"{path}.scales"):
            return Weight(_below(self._cast(self._floats(f"{path}.weight", (*leading, num_rows, num_columns)))))
        if form is None:
            # Taken as if it were dense: the shape, and the scales left over, then become problems of their own.
            self._source.refuse(f"quantised, but the config says full precision: {path}")
            return Weight(_below(self._cast(self._source.take(f"{path}.weight", (*leading, num_rows, num_columns)))))
        packed = self._packed(path, (*leading, num_rows), num_columns, form)
        if self._is_dense:
            # From the scales as stored: casting them first would round twice.
            return packed.dense(self._dtype)
        return replace(packed, scales=self._cast(packed.scales), biases=self._cast(packed.biases))

    def _packed(self, path: str, rows: tuple[int, ...], num_columns: int, form: QuantForm) -> Weight:
        group_shape = (*rows, num_columns // form.group_size)
        data = self._of_dtype(f"{path}.weight", (*rows, num_columns * form.bits // 32), (mx.uint32,))
        scale_dtypes = FLOATS if form.has_biases else (mx.uint8,)
        scales = self._of_dtype(f"{path}.scales", group_shape, scale_dtypes)
        if not form.has_biases:
            return Weight(_below(data), _below(scales), None, form)
        biases = self._floats(f"{path}.biases", group_shape)
        return Weight(_below(data), _below(scales), _below(biases), form)

    def _floats(self, name: str, shape: tuple[int, ...]) -> mx.array:
        return self._of_dtype(name, shape, FLOATS)

    def _of_dtype(self, name: str, shape: tuple[int, ...], allowed: Sequence[mx.Dtype]) -> mx.array:
        array = self._source.take(name, shape)
        if array.dtype not in allowed:
            self._source.refuse(f"dtype: {name} is {_names([array.dtype])}, it has to be {_names(allowed)}")
        return array

    @overload
    def _cast(self, array: mx.array) -> mx.array: ...

    @overload
    def _cast(self, array: None) -> None: ...

    def _cast(self, array: mx.array | None) -> mx.array | None:
        if array is None:
            return None
        return array.astype(self._dtype) if array.dtype in FLOATS and array.dtype != self._dtype else array

    def _held(self, module: ModuleT) -> ModuleT:
        self._source.hold(module.arrays)
        return module


def _below(array: mx.array) -> mx.array:
    """Matrices of a leading axis below each other; one matrix as it is."""
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])


def _names(dtypes: Sequence[mx.Dtype]) -> str:
    return " or ".join(str(dtype).removeprefix("mlx.core.") for dtype in dtypes)
