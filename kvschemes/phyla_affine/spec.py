"""What follows the colon in `affine:8g64s5000`: bits, group size, start; or `config`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phyla.errors import SettingsError
from phyla.kv import Plane

BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
"""Those that MLX has kernels for."""

PREFERRED_GROUPS = (64, 32)
CONFIG = "config"

_UNIFORM = re.compile(r"(?P<bits>\d+)(?:g(?P<group>\d+))?(?:s(?P<start>\d+))?(?P<fused>\+fused)?")
_CONFIG = re.compile(CONFIG + r"(?:-(?P<digest>[0-9a-f]+))?(?:s(?P<start>\d+))?(?P<unfused>\+unfused)?")


@dataclass(frozen=True)
class LayerForm:
    """How one layer is quantised."""

    bits: int
    group_size: int


@dataclass(frozen=True)
class UniformSpec:
    """The same bits in every layer."""

    bits: int = 8
    group_size: int | None = None
    """None: as large as the layer's head sizes allow, at most 64."""

    start: int = 0
    """Tokens that a row stores before any of them is quantised."""

    is_fused: bool = False
    """Steps of several queries attend with the fused kernel."""

    def __str__(self) -> str:
        group = "" if self.group_size is None else f"g{self.group_size}"
        return f"{self.bits}{group}{_delay(self.start)}{'+fused' if self.is_fused else ''}"

    def form(self, planes: tuple[Plane, ...]) -> LayerForm:
        """Of a layer that stores these planes; the group may not fit, which `misfit` says."""
        fitting = (size for size in PREFERRED_GROUPS if all(plane.width % size == 0 for plane in planes))
        return LayerForm(self.bits, self.group_size or next(fitting, PREFERRED_GROUPS[0]))


@dataclass(frozen=True)
class ConfigSpec:
    """What a file beside the checkpoint says for each layer."""

    digest: str | None = None
    """Of the file; None until it was read."""

    start: int = 0
    is_fused: bool = True

    def __str__(self) -> str:
        digest = "" if self.digest is None else f"-{self.digest}"
        return f"{CONFIG}{digest}{_delay(self.start)}{'' if self.is_fused else '+unfused'}"


def parsed_config(text: str, default: ConfigSpec) -> ConfigSpec | None:
    """The spec that follows the file, or None if the text is another one."""
    found = _CONFIG.fullmatch(text)
    if found is None:
        return None
    start = found["start"]
    return ConfigSpec(
        found["digest"], default.start if start is None else int(start), default.is_fused and not found["unfused"]
    )


def parsed(text: str, default: UniformSpec) -> UniformSpec:
    """A uniform spec; what it leaves out is as in `default`.

    Raises:
        SettingsError: it isn't one, or has bits or a group size that MLX can't pack.
    """
    found = _UNIFORM.fullmatch(text)
    if found is None:
        raise SettingsError(
            f"KV scheme 'affine:{text}' isn't bits with an optional group size and start, such as affine:8, "
            f"affine:4g32 or affine:4g64s5000, nor affine:{CONFIG}."
        )
    bits, group, start = int(found["bits"]), found["group"], found["start"]
    check_numbers(bits, None if group is None else int(group), f"KV scheme 'affine:{text}'")
    return UniformSpec(
        bits,
        default.group_size if group is None else int(group),
        default.start if start is None else int(start),
        default.is_fused or found["fused"] is not None,
    )


def _delay(start: int) -> str:
    return f"s{start}" if start else ""


def check_numbers(bits: int, group_size: int | None, where: str) -> None:
    """Raise SettingsError unless MLX can pack it."""
    if bits not in BITS:
        raise SettingsError(f"{where} asks for {bits} bits; affine storage has {' and '.join(map(str, BITS))}.")
    if group_size is not None and group_size not in GROUP_SIZES:
        raise SettingsError(f"{where} asks for groups of {group_size}; they can be {', '.join(map(str, GROUP_SIZES))}.")


def misfit(form: LayerForm, planes: tuple[Plane, ...]) -> str | None:
    """Why the group size doesn't go with the head sizes and what would, or None."""
    for plane in planes:
        if plane.width % form.group_size:
            fitting = [str(size) for size in GROUP_SIZES if all(one.width % size == 0 for one in planes)]
            remedy = f"groups of {' or '.join(fitting)} would" if fitting else "no group size does"
            return f"its {plane.name} are {plane.width} wide, which groups of {form.group_size} don't divide; {remedy}"
    return None


def quantised_planes(planes: tuple[Plane, ...], form: LayerForm) -> tuple[Plane, ...]:
    """What is stored per token of planes in that form: codes, scales and biases of each."""
    return tuple(
        stored
        for plane in planes
        for stored in (
            Plane(plane.name, plane.num_heads, plane.width * form.bits // 32, dtype="uint32"),
            Plane(f"{plane.name}_scales", plane.num_heads, plane.width // form.group_size),
            Plane(f"{plane.name}_biases", plane.num_heads, plane.width // form.group_size),
        )
    )
