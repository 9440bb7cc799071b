"""The `[strategy]` section: which way of computing is taken where several give the same."""

from __future__ import annotations

from collections.abc import Mapping

from phyla.backend.strategy.names import Operation, check_name
from phyla.errors import SettingsError, UnknownName
from phyla.settings import PluginSettings, setting

AUTO = "auto"
FORCIBLE: tuple[Operation, ...] = ("attention", "append", "matmul", "qmm")
"""What `--strategy` takes; a step's compiling has a flag of its own."""


class StrategySettings(PluginSettings, section="strategy"):
    """How the fast route computes, chosen by measured tables. Part of the numerical identity."""

    force: str = setting(AUTO, flag="--strategy", metavar="KIND=NAME,...")
    """`auto` takes what is fastest in the table; `attention=grouped,qmm=split16` forces some of `attention` (`fused`,
    `fused_mask`, `grouped`, `loop`, `ragged`), `append` (`scatter`, `slices`, `rotated`), `matmul` (`whole`,
    `streamed`) and `qmm` (`whole`, `streamed`, `splitN`, `unpacked`, `dense`)."""

    table: str = setting(AUTO, flag="--strategy-table", metavar="auto|none|FILE")
    """Measured times that take the place of the shipped ones: a file that `phyla bench kernels` wrote. `auto` takes the
    one it left in `~/.cache/phyla/strategies` for this device and MLX, `none` only the shipped ones."""


def parse_forced(text: str) -> Mapping[Operation, str]:
    """What `--strategy` insists on: `attention=grouped,qmm=split16`.

    Raises:
        SettingsError: it isn't written like that.
        UnknownName: no such operation or strategy.
    """
    forced: dict[Operation, str] = {}
    if text.strip() == AUTO:
        return forced
    for part in text.split(","):
        kind, equals, name = (one.strip() for one in part.partition("="))
        if not equals or not name:
            raise SettingsError(f"--strategy {text}: '{part.strip()}' isn't KIND=NAME, such as attention=grouped.")
        if kind == "decode":
            raise SettingsError(f"--strategy {text}: compiling the step is switched by --compiled-decode on|off.")
        operation: Operation | None = next((one for one in FORCIBLE if one == kind), None)
        if operation is None:
            raise UnknownName("operation with strategies", kind, FORCIBLE)
        if operation in forced:
            raise SettingsError(f"--strategy {text}: {operation} is named twice.")
        if name != AUTO:
            check_name(operation, name)
            forced[operation] = name
    return forced
