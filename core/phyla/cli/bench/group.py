"""`phyla bench`: measurements, each a command of its own that writes JSON."""

from __future__ import annotations

from phyla.cli.bench.engine import engine
from phyla.cli.bench.kernels import kernels
from phyla.cli.bench.kv import kv
from phyla.cli.bench.serve import serve
from phyla.cli.group import PhylaGroup


def bench_group() -> PhylaGroup:
    """The group; a plugin that measures something adds its command to `group.commands["bench"]`."""
    group = PhylaGroup(
        name="bench",
        help="Measure a model on this machine. Results are JSON, printed or written to --output.",
    )
    group.add_command(engine)
    group.add_command(kv)
    group.add_command(kernels)
    group.add_command(serve)
    return group
