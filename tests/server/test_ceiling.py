"""When the server says that a model leaves little room."""

from __future__ import annotations

import pytest
from phyla.backend.device import BackendFacts
from phyla_server.ceiling import near_ceiling, read_wired_limit_mb

MAC = BackendFacts("metal", "Apple M9", "1", memory_bytes=32 << 30, working_set_bytes=20_000_000_000)


def test_a_model_near_the_ceiling_is_named_with_the_remedy():
    assert near_ceiling(17_000_000_000, MAC, 0) == (
        "The weights take 17.0 of the 20.0 GB that this device should use. "
        "To let it use more: sudo sysctl iogpu.wired_limit_mb=29491"
    )


@pytest.mark.parametrize(("num_bytes", "limit_mb"), [(16_000_000_000, 0), (17_000_000_000, 28_000)])
def test_neither_a_small_model_nor_a_raised_limit_is_warned_about(num_bytes, limit_mb):
    assert near_ceiling(num_bytes, MAC, limit_mb) is None


def test_where_nothing_can_be_raised_the_cache_can_be_smaller():
    elsewhere = BackendFacts("cpu", "cpu", "1", memory_bytes=32 << 30, working_set_bytes=20_000_000_000)

    assert read_wired_limit_mb(elsewhere) is None
    assert near_ceiling(17_000_000_000, elsewhere, None).endswith("a smaller --prompt-cache leaves more.")
