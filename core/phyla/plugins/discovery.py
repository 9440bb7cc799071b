"""Finding what is installed: the same in every process, and nothing is imported that was switched off."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Collection, Iterable, Sequence

from phyla.errors import DuplicatePlugin, PluginError, PluginImportError, UnknownName
from phyla.hookspecs import PROJECT
from phyla.plugins.manager import PluginInfo, PluginManager

ENTRY_POINT_GROUP = "phyla"


def discover(
    disabled: Collection[str] = (),
    no_plugins: bool = False,
    *,
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
    keep_going: bool = False,
) -> PluginManager:
    """A manager with core's own declarations and every installed plugin that isn't switched off.

    Args:
        disabled: names that are not even imported.
        no_plugins: import none at all.
        entry_points: what is installed; None looks.
        keep_going: a plugin that can't be loaded is noted instead of raised, for `phyla plugins`.

    Raises:
        UnknownName: a disabled name that isn't installed.
        DuplicatePlugin: two distributions offer one name.
        PluginImportError: a plugin raised while it was imported.
        PluginError: a plugin doesn't keep its side of the contract.
    """
    found = _sorted_and_unique(
        importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if entry_points is None else entry_points
    )
    names = {entry_point.name for entry_point in found}
    for name in disabled:
        if name not in names:
            raise UnknownName("plugin", name, names)
    manager = PluginManager()
    _register_core(manager)
    for entry_point in found:
        if no_plugins or entry_point.name in disabled:
            manager.note(_info(entry_point, "disabled", "--no-plugins" if no_plugins else "--disable"))
            continue
        try:
            _load(manager, entry_point)
        except PluginError as error:
            if not keep_going:
                raise
            manager.note(_info(entry_point, "failed", str(error)))
    return manager


def _sorted_and_unique(
    entry_points: Iterable[importlib.metadata.EntryPoint],
) -> Sequence[importlib.metadata.EntryPoint]:
    found = sorted(entry_points, key=lambda one: (one.name, one.value))
    for one, other in itertools.pairwise(found):
        # pluggy would skip the second silently, and which one is second depends on the file system.
        if one.name == other.name:
            raise DuplicatePlugin(
                one.name,
                f"two distributions offer it: {_distribution(one)} ({one.value}) and {_distribution(other)} "
                f"({other.value}). Uninstall one of them.",
            )
    return found


def _register_core(manager: PluginManager) -> None:
    from phyla import builtin

    manager.register(PROJECT, builtin, distribution=PROJECT, version=importlib.metadata.version(PROJECT))


def _load(manager: PluginManager, entry_point: importlib.metadata.EntryPoint) -> None:
    try:
        plugin = entry_point.load()
    except (Exception, SystemExit) as error:
        raise PluginImportError(
            entry_point.name,
            f"importing {entry_point.value} ({_distribution(entry_point)}) raised {type(error).__name__}: {error}. "
            f"Run with --disable {entry_point.name} to go on without it.",
        ) from error
    dist = entry_point.dist
    manager.register(
        entry_point.name,
        plugin,
        distribution=dist.name if dist else "",
        version=dist.version if dist else "",
    )


def _distribution(entry_point: importlib.metadata.EntryPoint) -> str:
    return f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else "an unknown distribution"


def _info(entry_point: importlib.metadata.EntryPoint, state: str, reason: str) -> PluginInfo:
    dist = entry_point.dist
    return PluginInfo(
        name=entry_point.name,
        package=entry_point.value,
        distribution=dist.name if dist else "",
        version=dist.version if dist else "",
        state="failed" if state == "failed" else "disabled",
        reason=reason,
    )
