"""A checkpoint's tensors into mlx-lm's module: its own `sanitize`, its quantised layers, and one error for the rest."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from phyla import Checkpoint, LoadOptions, ModelFacts
from phyla.errors import UnsupportedModel, WeightMismatch
from phyla.model.quantization import QuantSection, parse_quant_section

Weights = dict[str, mx.array]


@runtime_checkable
class Quantisable(Protocol):
    """A layer that has a quantised form."""

    def to_quantized(self, *args: Any, **kwargs: Any) -> Any: ...


@runtime_checkable
class Sanitising(Protocol):
    """A model that brings published tensors into its own names and shapes."""

    def sanitize(self, weights: Weights) -> Weights: ...


def load_model(architecture: ModuleType, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> Any:
    """Make the module, give it its tensors and evaluate them.

    Raises:
        UnsupportedModel: the class can't be made from the config; says what mlx-lm said.
        WeightMismatch: tensors that are missing, unused or misshapen, all of them.
    """
    config = dict(checkpoint.config)
    try:
        model = architecture.Model(architecture.ModelArgs.from_dict(config))
    except Exception as error:
        raise UnsupportedModel(f"mlx-lm's {facts.architecture} can't be made from this config: {error}") from error
    weights = _as_asked(_sanitised(model, checkpoint), facts, options)
    section = parse_quant_section(config)
    if options.weights == "dense":
        weights = _dense(weights, section, getattr(mx, options.dtype))
    else:
        _quantise(model, weights, section)
    model.eval()
    _check(model, weights)
    model.load_weights(list(weights.items()))
    mx.eval(model.parameters())
    return model


def _sanitised(model: Any, checkpoint: Checkpoint) -> Weights:
    stored = checkpoint.load(checkpoint.tensor_infos())
    if not isinstance(model, Sanitising):
        return stored
    try:
        return dict(model.sanitize(stored))
    except (KeyError, IndexError, ValueError) as error:
        raise WeightMismatch(f"mlx-lm can't arrange the tensors of {checkpoint.model_id}: {error!r}.") from error


def _as_asked(weights: Weights, facts: ModelFacts, options: LoadOptions) -> Weights:
    """In the dtype asked for; tensors that were stored in another than most, for precision, stay so."""
    if options.dtype == facts.stored_dtype:
        return weights
    stored, asked = getattr(mx, facts.stored_dtype), getattr(mx, options.dtype)
    return {name: one.astype(asked) if one.dtype == stored else one for name, one in weights.items()}


def _quantise(model: Any, weights: Weights, section: QuantSection) -> None:
    """Give each layer whose scales are there its quantised form, whose numbers the tensors then replace."""

    def form_of(path: str, module: Any) -> bool | dict[str, Any]:
        form = section.form_of(path)
        if form is None or f"{path}.scales" not in weights or not isinstance(module, Quantisable):
            return False
        return {"group_size": form.group_size, "bits": form.bits, "mode": form.mode}

    if section.default is not None:
        default = section.default
        quantize(model, default.group_size, default.bits, mode=default.mode, class_predicate=form_of)


def _dense(weights: Weights, section: QuantSection, dtype: mx.Dtype) -> Weights:
    """Quantised matrices multiplied out."""
    made = dict(weights)
    for path in (name.removesuffix(".scales") for name in weights if name.endswith(".scales")):
        form = section.form_of(path)
        if form is not None:
            packed, scales, biases = (made.pop(f"{path}.{part}", None) for part in ("weight", "scales", "biases"))
            if packed is None or scales is None:
                raise WeightMismatch(f"'{path}' has scales and no weight.")
            plain = mx.dequantize(packed, scales, biases, group_size=form.group_size, bits=form.bits, mode=form.mode)
            made[f"{path}.weight"] = plain.astype(dtype)
    return made


def _check(model: Any, weights: Weights) -> None:
    expected = dict(tree_flatten(model.parameters()))
    problems = [f"missing: {name}" for name in sorted(set(expected) - set(weights))]
    problems += [f"unused: {name}" for name in sorted(set(weights) - set(expected))]
    problems += [
        f"shape: {name} is {weights[name].shape}, it has to be {one.shape}"
        for name, one in sorted(expected.items())
        if name in weights and weights[name].shape != one.shape
    ]
    problems += [
        f"dtype: {name} is {_dtype(weights[name])}, it has to be {_dtype(one)} or of its kind"
        for name, one in sorted(expected.items())
        if name in weights and _is_float(weights[name]) is not _is_float(one)
    ]
    if problems:
        raise WeightMismatch("The tensors don't fit mlx-lm's class:\n  " + "\n  ".join(problems))


def _is_float(array: mx.array) -> bool:
    return bool(mx.issubdtype(array.dtype, mx.floating))


def _dtype(array: mx.array) -> str:
    return str(array.dtype).removeprefix("mlx.core.")
