"""Loads the models it is given, one after the other, and prints what each took: peak over resident bytes."""

import sys
from pathlib import Path

from phyla.backend.blas import load_fast_blas

load_fast_blas()

import mlx.core as mx  # noqa: E402
from phyla.backend.detect import detect  # noqa: E402
from phyla.plugins import discover  # noqa: E402
from phyla.selection import resolve, select  # noqa: E402
from phyla.settings import load_settings  # noqa: E402

manager = discover()
settings = load_settings(manager.settings_sections())
for path in map(Path, sys.argv[1:]):
    parts = resolve(select(str(path), manager, settings, detect()), manager, settings)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    binding = parts.bind()
    print(path.name, mx.get_peak_memory() - before, mx.get_active_memory() - before)
    del binding, parts
