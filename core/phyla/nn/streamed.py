"""Products of a few rows by a kernel of our own on CUDA: the matrix streams through the tensor cores once.

A product of two to 32 rows is bound by reading the matrix. cuBLAS reads it as fast, but choosing and preparing its
algorithm costs the host more, for each product of each step, than the device needs for it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias, cast

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phyla.nn.weight import Weight

Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"

TILE, ROWS = 16, 8
"""Outputs and rows that a tensor core multiplies at once."""

DTYPES = (mx.bfloat16, mx.float16)


def takes_form(weight: Weight, dtype: mx.Dtype) -> bool:
    """Whether the kernel is written for such numbers; which sizes it takes is `why_not_streamed`'s."""
    if dtype not in DTYPES:
        return False
    form = weight.form
    if form is None or weight.scales is None:
        return weight.data.dtype == dtype
    return form.mode == "affine" and form.bits == 4 and form.group_size % 32 == 0 and weight.scales.dtype == dtype


def streamed(weight: Weight, x: mx.array) -> mx.array:
    """(..., inputs) to (..., outputs); sums are float32."""
    return _launched(weight, x, is_gated=False)


def gates(weight: Weight) -> bool:
    """Whether `streamed_gated` is written for this matrix."""
    return weight.num_rows % (2 * TILE) == 0


def streamed_gated(weight: Weight, x: mx.array) -> mx.array:
    """`silu(gate) * up` of a matrix whose first half of outputs is the gate: (..., inputs) to (..., outputs / 2).

    One launch in place of two, and half as much to write. The product is rounded before it is gated.
    """
    return _launched(weight, x, is_gated=True)


def _launched(weight: Weight, x: mx.array, *, is_gated: bool) -> mx.array:
    num_rows = x.size // x.shape[-1]
    rows = x.reshape(num_rows, x.shape[-1])
    chunks = 1 << (-(-num_rows // ROWS) - 1).bit_length()
    is_dense = weight.form is None
    # As measured on an H200: more outputs of a block share what is read of the rows, and fewer blocks are at work.
    is_wide = is_gated or (weight.num_rows % (2 * TILE) == 0 and (chunks == 4 or not is_dense))
    tiles = 2 if is_wide else 1
    warps = 8 if is_dense else 4
    template: list[tuple[str, object]] = [
        ("T", x.dtype),
        ("HALF", x.dtype == mx.float16),
        ("CHUNKS", chunks),
        ("TILES", tiles),
        ("WARPS", warps),
        ("GATED", is_gated),
    ]
    if weight.form is not None:
        template.append(("GROUP", weight.form.group_size))
    kernel = _dense_kernel() if is_dense else _packed_kernel()
    num_outputs = weight.num_rows // 2 if is_gated else weight.num_rows
    product = kernel(
        inputs=[rows, *weight.arrays],
        template=template,
        grid=(weight.num_rows // (TILE * tiles) * warps * 32, 1, 1),
        threadgroup=(warps * 32, 1, 1),
        output_shapes=[(num_rows, num_outputs)],
        output_dtypes=[x.dtype],
    )[0]
    return product.reshape(*x.shape[:-1], num_outputs)


@cache
def _dense_kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_streamed_dense",
        input_names=["x", "matrix"],
        output_names=["product"],
        source=_source("streamed_dense.cu"),
    )
    return cast("Kernel", kernel)


@cache
def _packed_kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_streamed_packed",
        input_names=["x", "matrix", "scales", "biases"],
        output_names=["product"],
        source=_source("streamed_packed.cu"),
    )
    return cast("Kernel", kernel)


def _source(name: str) -> str:
    return "\n".join(files("phyla.nn").joinpath(part).read_text() for part in (name, "streamed_sums.cu"))
