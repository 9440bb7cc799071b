"""What follows the colon in `turbo:k8v3`: bits of keys and of values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phyla.errors import SettingsError
from phyla.kv import Plane

SIGNED_BITS = 8
KEY_BITS = (2, 4, 5, 8)
VALUE_BITS = (2, 3, 4, 5, 8)
GROUP_SIZE = 32
HEAD_DIMS = (64, 128, 256, 512)
"""Those that a rotation is written down for."""

_PATTERN = re.compile(r"k(?P<keys>\d+)v(?P<values>\d+)(?:s(?P<start>\d+))?")


@dataclass(frozen=True)
class TurboSpec:
    """Bits of keys and values."""

    key_bits: int = 8
    value_bits: int = 3
    start: int = 0
    """Tokens that a row stores before any of them is encoded."""

    def __str__(self) -> str:
        return f"k{self.key_bits}v{self.value_bits}{f's{self.start}' if self.start else ''}"


def parsed(text: str, default: TurboSpec) -> TurboSpec:
    """A spec; a start that it leaves out is as in `default`.

    Raises:
        SettingsError: it isn't one, or no codebook has that many bits.
    """
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise SettingsError(f"KV scheme 'turboquant:{text}' isn't bits of keys and values, such as turboquant:k8v3.")
    keys, values, start = int(found["keys"]), int(found["values"]), found["start"]
    for what, bits, known in (("keys", keys, KEY_BITS), ("values", values, VALUE_BITS)):
        if bits not in known:
            raise SettingsError(
                f"KV scheme 'turboquant:{text}' asks for {bits} bits of {what}; they can have "
                f"{', '.join(map(str, known))}."
            )
    return TurboSpec(keys, values, default.start if start is None else int(start))


def misfit(keys: Plane, values: Plane) -> str | None:
    """Why a layer with these planes can't be stored, or None."""
    for plane in (keys, values):
        if plane.width not in HEAD_DIMS:
            return (
                f"its {plane.name} are {plane.width} wide, and turboquant stores heads of "
                f"{', '.join(map(str, HEAD_DIMS))}; affine storage takes any multiple of 32"
            )
    return None


def encoded_planes(keys: Plane, values: Plane, spec: TurboSpec) -> tuple[Plane, ...]:
    """What is stored per token: codes, scale and zero point of keys, codes and size of values."""
    key_groups, value_groups = keys.width // GROUP_SIZE, values.width // GROUP_SIZE
    key_dtype = "int8" if spec.key_bits == SIGNED_BITS else "uint8"
    return (
        Plane("keys", keys.num_heads, keys.width * spec.key_bits // 8, dtype=key_dtype),
        Plane("keys_scales", keys.num_heads, key_groups, dtype="float16"),
        Plane("keys_zeros", keys.num_heads, key_groups, dtype="float16"),
        Plane("values", values.num_heads, values.width * spec.value_bits // 8, dtype="uint8"),
        Plane("values_sizes", values.num_heads, value_groups, dtype="float16"),
    )
