"""The `[affine]` section."""

from __future__ import annotations

from phyla import PluginSettings, setting
from pydantic import field_validator

from phyla_affine.spec import GROUP_SIZES


class AffineSettings(PluginSettings, section="affine"):
    """What an affine spec that doesn't say it means."""

    group_size: int | None = setting(None, flag="--kv-group-size", metavar="NUMBERS")
    """Numbers that share a scale and a bias: 32, 64 or 128. By default 64, or 32 in layers whose head size 64 doesn't
    divide."""

    @field_validator("group_size")
    @classmethod
    def _kernels_exist_for_it(cls, size: int | None) -> int | None:
        if size is not None and size not in GROUP_SIZES:
            raise ValueError(f"there are kernels for groups of {', '.join(map(str, GROUP_SIZES))} only")
        return size
