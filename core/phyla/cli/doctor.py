"""`phyla doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

import rich_click as click

from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.errors import BackendError
from phyla.settings import Settings


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    is_good: bool = True


def _doctor(session: Session, settings: Settings) -> int:
    findings = [*_system(), *_mlx(settings), *_plugins(session)]
    for finding in findings:
        click.echo(f"{'ok     ' if finding.is_good else 'PROBLEM'} {finding.what}")
    return 0 if all(finding.is_good for finding in findings) else 1


def _system() -> Iterator[Finding]:
    yield Finding(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")


def _mlx(settings: Settings) -> Iterator[Finding]:
    from phyla.backend.detect import detect, installed_suppliers, remedy
    from phyla.backend.settings import BackendSettings

    suppliers = installed_suppliers()
    if len(suppliers) > 1:
        yield Finding(remedy(suppliers), is_good=False)
    section = settings.section(BackendSettings)
    try:
        backend = detect(section.blas, section.blas_threads)
    except BackendError as error:
        yield Finding(str(error), is_good=False)
        return
    yield Finding(f"MLX {backend.mlx_version} computes on {backend.device_name} ({backend.device})")
    yield Finding(
        f"{backend.working_set_bytes / 1e9:.1f} GB of {backend.memory_bytes / 1e9:.1f} GB for models and caches"
    )
    if backend.blas:
        yield Finding(f"Matrix products: {backend.blas}", is_good=not backend.notices)
    for notice in backend.notices:
        yield Finding(notice, is_good=False)


def _plugins(session: Session) -> Iterator[Finding]:
    infos = session.manager.plugins()
    loaded = sum(info.state == "loaded" for info in infos)
    yield Finding(f"{loaded} plugins loaded of {len(infos)}")
    for info in infos:
        if info.state == "failed":
            yield Finding(info.reason, is_good=False)


doctor = SettingsCommand(
    "doctor",
    _doctor,
    help="Check this machine: MLX, its device and libraries, and the plugins.\n\nEvery problem comes with its remedy.",
)
