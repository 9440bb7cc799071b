"""A server in a process of its own, for as long as a load runs: clients in the same process would slow it down."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from phyla.errors import MeasurementFailed

RUN = "import sys; from phyla.cli.main import main; sys.exit(main())"
CARD_LABEL = "API"
"""The line of the ready card that has the address."""

STOP_SECONDS = 30.0
NUM_SHOWN = 20
"""Last lines of a server that didn't start."""


@contextmanager
def child_server(arguments: Sequence[str]) -> Iterator[str]:
    """Run `phyla serve` with these arguments while the block runs; gives its address.

    Raises:
        MeasurementFailed: it didn't come up; has its last words.
    """
    command = [sys.executable, "-c", RUN, "serve", *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        # Its own group: Ctrl-C is ours to pass on once the load has ended.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            assert process.stdout is not None
            yield _address(process.stdout, errors)
        finally:
            _stop(process)


def _address(output: IO[str], errors: IO[str]) -> str:
    for line in output:
        label, _, address = line.strip().partition(" ")
        if label == CARD_LABEL:
            return address.strip()
    errors.seek(0)
    said = "".join(errors.readlines()[-NUM_SHOWN:]).strip()
    raise MeasurementFailed(f"The server to measure didn't start. It said:\n{said}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
