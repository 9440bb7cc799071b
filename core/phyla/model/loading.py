"""Strict loading: every tensor of the checkpoint is used once, has the shape the model says, and is evaluated here.

A family builds its modules from a `WeightLoader` lazily; `finish` first checks everything that was asked against the
checkpoint's headers, in one error, and only then reads the tensors, group by group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import mlx.core as mx

from phyla.errors import WeightMismatch
from phyla.model.headers import is_ignored
from phyla.model.quantization import parse_quant_section
from phyla.nn.embedding import Embedding
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.norm import RMSNorm
from phyla.nn.weight import Weight

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint, TensorInfo
    from phyla.model.load_options import LoadOptions
    from phyla.nn.form import QuantForm

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
MOST_LISTED = 40


class HoldsArrays(Protocol):
    """Anything built from loaded tensors."""

    @property
    def arrays(self) -> Sequence[mx.array]: ...


ModuleT = TypeVar("ModuleT", bound=HoldsArrays)


class WeightLoader:
    """Hands out a checkpoint's tensors as modules. One loader per model; used on one thread.

    Args:
        checkpoint: where the tensors are.
        options: the dtype to hold them in, whether to dequantise, whom to tell about progress.
        ignored: patterns of tensors that the family knows and doesn't use.
    """

    def __init__(self, checkpoint: Checkpoint, options: LoadOptions, ignored: Sequence[str] = ()) -> None:
        self._checkpoint = checkpoint
        self._infos = checkpoint.tensor_infos()
        self._quantization = parse_quant_section(checkpoint.config)
        self._ignored = ignored
        self._dtype: mx.Dtype = getattr(mx, options.dtype)
        self._is_dense = options.weights == "dense"
        self._progress = options.progress
        self._lazy: dict[str, mx.array] = {}
        self._used: set[str] = set()
        self._problems: list[str] = []
        self._groups: list[_Group] = [_Group("model")]

    @contextmanager
    def group(self, label: str) -> Iterator[None]:
        """What is asked for inside is evaluated together: a layer, or another part of modest size."""
        self._groups.append(_Group(label))
        yield
        self._groups.append(_Group("model"))

    def has(self, name: str) -> bool:
        return name in self._infos

    def tensor(self, name: str, shape: tuple[int, ...], keeps_dtype: bool = False) -> mx.array:
        """A tensor in the model's dtype, or in its stored one if `keeps_dtype`."""
        array = self._take(name, shape)
        self._hold([array := array if keeps_dtype else self._cast(array)])
        return array

    def linear(self, path: str, num_inputs: int, num_outputs: int, bias: bool = False) -> Linear:
        """`path.weight` (quantised if `path.scales` is there) and `path.bias`."""
        return self._held(self._linear(path, num_inputs, num_outputs, bias))

    def fused(
        self, paths: Sequence[str], num_inputs: int, num_outputs: Sequence[int], bias: bool = False
    ) -> FusedLinear:
        """Several layers of one input, stored as one."""
        sized = zip(paths, num_outputs, strict=True)
        return self._held(FusedLinear([self._linear(path, num_inputs, size, bias) for path, size in sized]))

    def embedding(self, path: str, num_rows: int, width: int) -> Embedding:
        return self._held(Embedding(self._weight(path, num_rows, width)))

    def norm(self, path: str, width: int, eps: float, adds_one: bool = False) -> RMSNorm:
        return self._held(RMSNorm(self._cast(self._take(f"{path}.weight", (width,))), eps, adds_one))

    def finish(self) -> None:
        """Check, then read everything that was handed out.

        Raises:
            WeightMismatch: tensors that are missing, unused or misshapen; all of them, before any is read.
        """
        self._check()
        total = sum(info.num_bytes for name, info in self._infos.items() if name in self._used)
        done = 0
        for group in self._groups:
            # One group at a time: the tensors as stored and as held exist side by side only for this one.
            mx.eval(group.arrays)
            group.arrays.clear()
            done += sum(self._infos[name].num_bytes for name in group.names)
            self._progress(group.label, done, total)
        mx.clear_cache()

    def _check(self) -> None:
        unused = [name for name in self._infos if name not in self._used and not is_ignored(name, self._ignored)]
        problems = [*self._problems, *(f"unused: {name} {self._infos[name].shape}" for name in sorted(unused))]
        if not problems:
            return
        listed = problems[:MOST_LISTED]
        if len(problems) > len(listed):
            listed.append(f"and {len(problems) - len(listed)} more")
        lines = "\n".join(f"  {problem}" for problem in listed)
        raise WeightMismatch(
            f"The tensors of {self._checkpoint.model_id} don't fit its config ({len(problems)} problems):\n{lines}\n"
            "Fetch the checkpoint again, or use the config that belongs to these weights."
        )

    def _linear(self, path: str, num_inputs: int, num_outputs: int, bias: bool) -> Linear:
        weight = self._weight(path, num_outputs, num_inputs)
        return Linear(weight, self._cast(self._take(f"{path}.bias", (num_outputs,))) if bias else None)

    def _weight(self, path: str, num_rows: int, num_columns: int) -> Weight:
        if not self.has(f"{path}.scales"):
            return Weight(self._cast(self._take(f"{path}.weight", (num_rows, num_columns))))
        form = self._quantization.form_of(path)
        if form is None:
            self._problems.append(f"quantised, but the config says full precision: {path}")
            self._used.update(f"{path}.{part}" for part in ("weight", "scales", "biases"))
            return Weight(mx.zeros((num_rows, num_columns), self._dtype))
        packed = self._packed(path, num_rows, num_columns, form)
        return packed.dense(self._dtype) if self._is_dense else packed

    def _packed(self, path: str, num_rows: int, num_columns: int, form: QuantForm) -> Weight:
        group_shape = (num_rows, num_columns // form.group_size)
        data = self._take(f"{path}.weight", (num_rows, num_columns * form.bits // 32))
        scales = self._take(f"{path}.scales", group_shape)
        if not form.has_biases:
            return Weight(data, scales, None, form)
        return Weight(data, self._cast(scales), self._cast(self._take(f"{path}.biases", group_shape)), form)

    def _take(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """The stored tensor, lazy; a stand-in of zeros if there is a problem, which `finish` will raise."""
        info = self._infos.get(name)
        problem = self._problem_with(name, shape, info)
        self._used.add(name)
        if problem is not None:
            self._problems.append(problem)
            return mx.zeros(shape, self._dtype)
        self._groups[-1].names.append(name)
        return self._lazy_array(name)

    def _lazy_array(self, name: str) -> mx.array:
        # All of a file at once: each call to `load` parses the file's header again.
        if name not in self._lazy:
            shard = self._infos[name].shard
            wanted = [
                other
                for other, info in self._infos.items()
                if info.shard == shard and other not in self._used - {name} and not is_ignored(other, self._ignored)
            ]
            self._lazy |= self._checkpoint.load(wanted)
        return self._lazy.pop(name)

    def _problem_with(self, name: str, shape: tuple[int, ...], info: TensorInfo | None) -> str | None:
        if info is None:
            return f"missing: {name} {shape}"
        if info.shape != shape:
            return f"shape: {name} is {info.shape} in {info.shard}, the config says {shape}"
        if name in self._used:
            return f"used twice: {name}"
        return None

    def _cast(self, array: mx.array) -> mx.array:
        return array.astype(self._dtype) if array.dtype in FLOATS and array.dtype != self._dtype else array

    def _held(self, module: ModuleT) -> ModuleT:
        self._hold(module.arrays)
        return module

    def _hold(self, arrays: Iterable[mx.array]) -> None:
        self._groups[-1].arrays.extend(arrays)


class _Group:
    def __init__(self, label: str) -> None:
        self.label = label
        self.names: list[str] = []
        self.arrays: list[mx.array] = []
