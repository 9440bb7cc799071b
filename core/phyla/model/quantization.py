"""The `quantization` section of a checkpoint: which form each module's weights are in. No mlx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.model.headers import text_section
from phyla.nn.form import QuantForm, QuantMode

FORM_KEYS = ("group_size", "bits", "mode")


@dataclass(frozen=True)
class QuantSection:
    """The section, parsed: one form for all, and modules that differ."""

    default: QuantForm | None
    overrides: Mapping[str, QuantForm | None]
    """Module path to its form; None where the config says full precision."""

    def form_of(self, path: str) -> QuantForm | None:
        """The form a quantised module at `path` must have, or None if it mustn't be quantised."""
        return self.overrides.get(path, self.default)

    def renamed(self, rename: Callable[[str], str]) -> QuantSection:
        """The same section for modules that the checkpoint has under other names."""
        return QuantSection(self.default, {rename(path): form for path, form in self.overrides.items()})


def quant_section(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The checkpoint's own section, or None for one in full precision.

    Raises:
        UnsupportedModel: a form that other tools write (`quant_method`).
    """
    for holder in (config, text_section(config)):
        for key in ("quantization", "quantization_config"):
            section = holder.get(key)
            if not isinstance(section, Mapping):
                continue
            if "bits" in section and "quant_method" not in section:
                return section
            method = section.get("quant_method", "unknown")
            raise UnsupportedModel(
                f"'{key}' is of the form '{method}', which isn't read here; convert the checkpoint to MLX's own "
                "form (`mlx_lm.convert -q`), or use one in full precision."
            )
    return None


def parse_quant_section(config: Mapping[str, Any]) -> QuantSection:
    """Read the section.

    Raises:
        UnsupportedModel: a form that other tools write.
        DamagedCheckpoint: a mode, width or group size that MLX doesn't have.
    """
    section = quant_section(config)
    if section is None:
        return QuantSection(None, {})
    overrides: dict[str, QuantForm | None] = {}
    default = _form("quantization", section, section)
    for path, entry in section.items():
        if path in FORM_KEYS:
            continue
        if isinstance(entry, Mapping):
            overrides[path] = _form(path, entry, section)
        elif entry is False:
            overrides[path] = None
        elif entry is True:
            overrides[path] = default
    return QuantSection(default, overrides)


def _form(path: str, entry: Mapping[str, Any], section: Mapping[str, Any]) -> QuantForm:
    mode = entry.get("mode", "affine")
    group_size = entry.get("group_size", section.get("group_size"))
    bits = entry.get("bits", section.get("bits"))
    if mode not in get_args(QuantMode):
        raise DamagedCheckpoint(f"'{path}' is quantised in mode '{mode}'; known are {', '.join(get_args(QuantMode))}.")
    allowed_bits, allowed_groups = _ALLOWED[mode]
    if bits not in allowed_bits or group_size not in allowed_groups:
        raise DamagedCheckpoint(
            f"'{path}' is quantised to {bits} bits in groups of {group_size}; mode '{mode}' has "
            f"{allowed_bits} bits in groups of {allowed_groups}."
        )
    return QuantForm(group_size, bits, mode)


_ALLOWED: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "affine": ((2, 3, 4, 5, 6, 8), (32, 64, 128)),
    "mxfp4": ((4,), (32,)),
    "mxfp8": ((8,), (32,)),
    "nvfp4": ((4,), (16,)),
}
