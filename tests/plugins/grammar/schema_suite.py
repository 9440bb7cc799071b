"""The official JSON Schema test suite, as the source distribution of `jsonschema` carries it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DISTRIBUTION = "jsonschema"
VERSION = "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
DRAFT = "draft2020-12"


@dataclass(frozen=True)
class Case:
    """One value and what a schema says of it."""

    file: str
    """Named for the keyword that it is about."""

    what: str
    schema: Any
    value: Any
    is_valid: bool


def suite(folder: Path) -> list[Case]:
    """Every required case of the draft; fetched into `folder` once, checked by its hash, nothing in it is run."""
    archive = folder / f"{DISTRIBUTION}-{VERSION}.tar.gz"
    if not archive.exists():
        _fetch(folder)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest == SHA256, f"{archive.name} isn't the pinned one: {digest}"
    return list(_cases(archive))


def _fetch(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", DISTRIBUTION]
    subprocess.run([*command, f"{DISTRIBUTION}=={VERSION}", "-d", str(folder)], check=True, capture_output=True)


def _cases(archive: Path) -> Iterator[Case]:
    beginning = f"{DISTRIBUTION}-{VERSION}/json/tests/{DRAFT}/"
    with tarfile.open(archive) as opened:
        for member in sorted(opened.getmembers(), key=lambda one: one.name):
            name = member.name.removeprefix(beginning)
            if name == member.name or "/" in name or not name.endswith(".json"):
                continue
            held = opened.extractfile(member)
            assert held is not None
            for group in json.load(held):
                for test in group["tests"]:
                    what = f"{group['description']}: {test['description']}"
                    yield Case(name.removesuffix(".json"), what, group["schema"], test["data"], test["valid"])
