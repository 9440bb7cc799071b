"""What MLX's allocator keeps of freed memory goes back after a chunk, but not for a trifle."""

from __future__ import annotations

import mlx.core as mx
import pytest
from phyla.engine.runner import LEAST_HOARD_BYTES, STEPS_PER_CACHE_CLEAR
from phyla.request import SamplingParams
from phyla.testing.engines import a_request, running, toy_spec


@pytest.mark.parametrize("hoard_bytes", [LEAST_HOARD_BYTES, LEAST_HOARD_BYTES - 1])
def test_it_is_cleared_after_each_chunk_and_now_and_then_while_decoding(
    monkeypatch: pytest.MonkeyPatch, hoard_bytes: int
) -> None:
    cleared: list[int] = []
    monkeypatch.setattr(mx, "get_cache_memory", lambda: hoard_bytes)
    with running(toy_spec("F", {"prefill_chunk": 16})) as (engine, log):
        # Closing clears in any case.
        monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(1))
        engine.submit(a_request("a", range(3, 50), STEPS_PER_CACHE_CLEAR + 1, SamplingParams(ignore_eos=True)))
        log.wait("a")
        num_cleared = len(cleared)
        monkeypatch.undo()
    num_chunks, num_decoding = 3, 1
    assert num_cleared == (num_chunks + num_decoding if hoard_bytes >= LEAST_HOARD_BYTES else 0)
