"""Runs the command line in this process, with exactly the plugins that a test gives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from phyla.cli.main import main
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.toy import ToyConfig, toy_config, toy_shapes

TOY_PLUGIN = """
from phyla import PluginSettings, hookimpl, setting
from phyla.testing.toy import ToyFamily

phyla_api = 1

class ToySettings(PluginSettings, section="toy"):
    wheels: int = setting(4, flag="--wheels", ge=1)

@hookimpl
def phyla_settings():
    return ToySettings

@hookimpl
def phyla_families():
    return [ToyFamily()]

@hookimpl
def phyla_report(plan):
    return [f"{plan.facts.architecture} has wheels"]

@hookimpl
def phyla_commands(group):
    import click
    from phyla.cli import SettingsCommand

    def serve(session, settings, model):
        click.echo(f"serving {model} on {settings.section(ToySettings).wheels} wheels")

    group.add_command(SettingsCommand("serve", serve, arguments=[click.Argument(["model"], required=False)]))
"""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str


RunPhyla = Callable[..., Ran]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], EntryPoint]:
    """Writes a plugin package and gives its entry point."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, text: str) -> EntryPoint:
        module = f"cli_{name}"
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return EntryPoint(name, module, "phyla")

    return make


@pytest.fixture
def phyla(
    plugin: Callable[[str, str], EntryPoint],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> RunPhyla:
    """`phyla(*arguments, env=..., more=...)` with the toy plugin, in an empty working folder."""
    toy = plugin("toy", TOY_PLUGIN)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*arguments: str, env: dict[str, str] | None = None, more: tuple[EntryPoint, ...] = ()) -> Ran:
        status = main(arguments, env=env or {}, entry_points=(toy, *more))
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def toy_folder(tmp_path: Path) -> Path:
    config = toy_config("FSF")
    return tiny_checkpoint(
        tmp_path / "toy-model", config, shapes=toy_shapes(ToyConfig.from_dict(config)), tokenizer=False
    )
