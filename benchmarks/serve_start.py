"""How long a server takes: from the command to being ready, and to the first answered request.

    python -m benchmarks.serve_start --runs 5 --fresh

`--fresh` also times `make serve` in a new clone with an empty home folder: it installs, fetches the starter, compiles
its helpers and serves.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.measurement import versions, write_result

ROOT = Path(__file__).parent.parent
RUN = "import sys; from phyla.cli.main import main; sys.exit(main())"
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
FRESH_PORT = 18937


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="also make serve in a new clone with an empty home")
    arguments = parser.parse_args()
    serve = [sys.executable, "-c", RUN, "serve", "starter", "--port", "0"]
    runs = [timed(serve, ROOT, os.environ) for _ in range(arguments.runs)]
    result: dict[str, Any] = {"versions": versions("phyla", "mlx"), "serve": runs}
    if arguments.fresh:
        result["make_serve"] = fresh()
    write_result("serve_start", f"--runs {arguments.runs}{' --fresh' if arguments.fresh else ''}", result)


def fresh() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        clone, home = Path(scratch) / "phyla", Path(scratch) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return timed(["make", "serve", f"ARGS=--port {FRESH_PORT}"], clone, environment | {"HOME": str(home)})


def timed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Seconds from starting the command to the ready card, and to the whole first answer."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        url = next(line.split()[-1] for line in process.stdout if line.strip().startswith("API"))
        ready = time.perf_counter() - started
        answer = httpx.post(f"{url}/chat/completions", json=QUESTION, timeout=120).raise_for_status().json()
        answered = time.perf_counter() - started
        assert "Paris" in answer["choices"][0]["message"]["content"], answer
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
    print(f"ready {ready:.1f} s, answered {answered:.1f} s", flush=True)
    return {"ready_seconds": round(ready, 2), "answered_seconds": round(answered, 2)}


if __name__ == "__main__":
    main()
