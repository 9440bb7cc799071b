"""The table a user measured: named by a setting, or left in the cache folder by `phyla bench kernels`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phyla.backend.device import BackendFacts
from phyla.backend.private_folder import CACHE_FOLDER, is_private_file
from phyla.backend.strategy.settings import AUTO, StrategySettings, parse_forced
from phyla.backend.strategy.strategies import Strategies
from phyla.backend.strategy.table import StrategyTable, read_table, shipped_table
from phyla.errors import UsageError

NONE = "none"


@dataclass(frozen=True)
class LoadedStrategies:
    """What counts here, and what a user should know about how it came about."""

    strategies: Strategies
    notices: tuple[str, ...] = ()


def load_strategies(settings: StrategySettings, backend: BackendFacts, folder: Path | None = None) -> LoadedStrategies:
    """The shipped table, a user's over it, and what is forced.

    Args:
        settings: the section.
        backend: the device in use.
        folder: where `auto` looks; by default under the user's cache folder.

    Raises:
        UsageError: a strategy that doesn't exist, or a named table that can't be used here.
    """
    forced = parse_forced(settings.force)
    table = shipped_table(backend.device)
    notices: tuple[str, ...] = ()
    if settings.table == AUTO:
        found, notices = _cached(user_table_path(backend, folder), backend)
    elif settings.table == NONE:
        found = None
    else:
        found = _named(Path(settings.table).expanduser(), backend)
    return LoadedStrategies(Strategies(table if found is None else table.overridden_by(found), forced), notices)


def user_table_path(backend: BackendFacts, folder: Path | None = None) -> Path:
    """Where `phyla bench kernels` leaves its table for a device."""
    parent = folder if folder is not None else Path.home() / CACHE_FOLDER / "strategies"
    return parent / f"{backend.device}.json"


def measured_on(backend: BackendFacts, dtype: str) -> str:
    """What a table is measured on, as it is written into it."""
    return ", ".join(one for one in (backend.device_name, f"MLX {backend.mlx_version}", backend.blas, dtype) if one)


def _named(path: Path, backend: BackendFacts) -> StrategyTable:
    table = read_table(path)
    if table.device != backend.device:
        raise UsageError(
            f"--strategy-table {path} was measured on {table.device}, this device is {backend.device}. "
            "Measure here with `phyla bench kernels`, or use --strategy-table none."
        )
    return table


def _cached(path: Path, backend: BackendFacts) -> tuple[StrategyTable | None, tuple[str, ...]]:
    """A cached table is a convenience: what is wrong with it is a notice, not an error."""
    if not path.exists():
        return None, ()
    if not is_private_file(path):
        return None, (f"The strategy table {path} can be written by others and isn't used: chmod 600 it.",)
    try:
        table = read_table(path)
    except UsageError as error:
        return None, (f"The strategy table in the cache isn't used: {error}",)
    here = measured_on(backend, "")
    if table.device != backend.device or not table.measured_on.startswith(here):
        return None, (
            f"The strategy table {path} isn't used: it was measured on {table.measured_on}, this is {here}. "
            "Measure again with `phyla bench kernels`.",
        )
    return table, ()
