"""A distribution from another repository, installed with pip, enters through the same door as what is in the box."""

from __future__ import annotations

from pathlib import Path

import pytest
from phyla.testing.tiny import tiny_checkpoint

from tests.outside.abacus_model import CONFIG, shapes
from tests.outside.conftest import RunOutside


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "abacus", CONFIG, shapes=shapes())


def test_its_plugins_are_found_and_loaded(phyla: RunOutside) -> None:
    ran = phyla("plugins")
    assert ran.returncode == 0, ran.stderr
    rows = {line.split()[0]: line.split() for line in ran.stdout.splitlines()}
    assert rows["abacus"][:4] == ["abacus", "phyla-abacus", "0.3.0", "loaded"]
    assert rows["logbook"][3] == "loaded"


def test_its_family_is_chosen_and_its_report_is_shown(phyla: RunOutside, folder: Path) -> None:
    ran = phyla("explain", str(folder))
    assert ran.returncode == 0, ran.stderr
    family = next(line for line in ran.stdout.splitlines() if line.strip().startswith("Family"))
    assert family.split() == ["Family", "abacus", "(auto:", "its", "claim", "is", "exact)"]
    assert "abacus is in the logbook" in ran.stdout


def test_switched_off_it_is_gone(phyla: RunOutside, folder: Path) -> None:
    ran = phyla("explain", str(folder), "--disable", "abacus")
    assert ran.returncode == 1
    assert "No model family knows abacus (model_type 'abacus')" in ran.stderr


def test_its_settings_are_flags_variables_and_answers_of_the_plan(
    phyla: RunOutside, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "phyla.toml"
    file.write_text("[logbook]\ndtype = 'float16'\n")
    ran = phyla("explain", str(folder), "--config", str(file))
    assert ran.returncode == 0, ran.stderr
    assert "(plugin logbook: the logbook says so)" in ran.stdout


def test_its_command_runs(phyla: RunOutside, folder: Path) -> None:
    ran = phyla("logbook", str(folder / "config.json"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(" lines\n")


def test_discovery_in_a_library_loads_nothing_heavy(run_outside: RunOutside) -> None:
    program = (
        "import sys\n"
        "from phyla.plugins import discover\n"
        "names = [info.name for info in discover().plugins()]\n"
        "print('abacus' in names, 'logbook' in names, sorted({'mlx', 'litestar', 'transformers'} & set(sys.modules)))\n"
    )
    ran = run_outside(program)
    assert ran.stdout == "True True []\n", ran.stderr


def test_its_declarations_and_listeners_reach_the_manager(run_outside: RunOutside) -> None:
    program = (
        "import logging, sys\n"
        "from phyla.engine import EngineStarted, RequestFinished, StepFinished\n"
        "from phyla.plugins import discover\n"
        "from phyla.settings import Settings\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "manager = discover()\n"
        "print([one.value.name for one in manager.samplers(Settings())], len(manager.routes(Settings())) >= 1)\n"
        "manager.engine_started(EngineStarted('org/model', 'abacus', 0.1, 10))\n"
        "manager.step_finished(StepFinished('decode', 2, 2, 0.1))\n"
        "manager.request_finished(RequestFinished('r', 'stop', None))\n"
        "manager.close()\n"
    )
    ran = run_outside(program)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "['contrary'] True",
        "engine started: org/model",
        "step: decode of 2 rows",
        "request: stop",
    ]


def test_its_family_generates_and_its_listeners_hear(run_outside: RunOutside, folder: Path) -> None:
    program = (
        "import logging, sys\n"
        "import phyla.library\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "with phyla.library.load(sys.argv[1]) as model:\n"
        "    made = model.generate([3, 5, 8], max_tokens=6, ignore_eos=True)\n"
        # said once the engine's thread, whose listeners print too, has ended: two threads' lines can run into one
        "print(model.plan.family.name, len(made.token_ids))\n"
    )
    ran = run_outside(program, str(folder))
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "abacus 6" in lines
    assert "engine started: abacus" in lines
    assert "request: length" in lines
