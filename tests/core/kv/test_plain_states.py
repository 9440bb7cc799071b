"""Every plain kind keeps the contract of per-layer state."""

import mlx.core as mx
import pytest
from phyla.backend.device import BackendFacts
from phyla.errors import UnsupportedScheme
from phyla.kv import LayerSpec, LayerState, Plane
from phyla.kv.plain import create_plain, plain_bytes_per_token
from phyla.kv.plain.full import FullState
from phyla.testing.layer_state import LayerStateContract

KEY_VALUE_PLANES = (Plane("keys", 2, 8), Plane("values", 2, 16))
CPU = BackendFacts("cpu", "test", "test", memory_bytes=1 << 30, working_set_bytes=1 << 30)


class TestFull(LayerStateContract):
    layer = LayerSpec(0, "full", KEY_VALUE_PLANES, scale=0.35, num_query_heads=4)

    def test_storage_grows_in_slabs_of_256_tokens(self) -> None:
        state = self.filled([(5, 5)])
        assert state.owned_bytes == 256 * 2 * (8 + 16) * 4


class TestFullWithSoftcap(LayerStateContract):
    layer = LayerSpec(0, "full", KEY_VALUE_PLANES, scale=0.35, softcap=5.0, num_query_heads=4)


class TestRing(LayerStateContract):
    layer = LayerSpec(0, "sliding", KEY_VALUE_PLANES, scale=0.35, window=8, num_query_heads=4)


class TestRingOfAnOddWindow(LayerStateContract):
    layer = LayerSpec(0, "sliding", KEY_VALUE_PLANES, scale=0.35, window=13, num_query_heads=2)


class TestRecurrent(LayerStateContract):
    layer = LayerSpec(
        0,
        "recurrent",
        (Plane("sum", 1, 8, per_token=False, rows=3), Plane("tail", 1, 8, per_token=False, rows=2)),
    )


class TestLatent(LayerStateContract):
    layer = LayerSpec(0, "latent", (Plane("latent", 1, 16), Plane("rope", 1, 4)), scale=0.2, num_query_heads=4)


class TestLatentWithIndex(LayerStateContract):
    layer = LayerSpec(
        0,
        "latent",
        (Plane("latent", 1, 16), Plane("rope", 1, 4), Plane("index", 1, 8)),
        scale=0.2,
        num_query_heads=4,
    )


class StrangeState(FullState):
    """Stands for storage that core has never heard of."""


class TestInventedKind(LayerStateContract):
    """A family's own kind enters through `LayerSpec.plain` and needs nothing of core."""

    layer = LayerSpec(0, "stranger", KEY_VALUE_PLANES, scale=0.35, num_query_heads=4, plain=StrangeState)

    def test_the_family_made_the_state(self) -> None:
        assert isinstance(self.new_state(), StrangeState)


def test_an_unknown_kind_without_a_factory_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedScheme, match="'stranger'"):
        create_plain(LayerSpec(3, "stranger", ()), CPU, "float32")


def test_a_sliding_layer_without_a_window_is_refused() -> None:
    with pytest.raises(UnsupportedScheme, match="window"):
        create_plain(LayerSpec(3, "sliding", KEY_VALUE_PLANES), CPU, "float32")


def test_bytes_per_token_count_growing_planes_only() -> None:
    full = LayerSpec(0, "full", KEY_VALUE_PLANES)
    recurrent = LayerSpec(1, "recurrent", (Plane("sum", 1, 8, per_token=False),))
    borrowing = LayerSpec(2, "full", KEY_VALUE_PLANES, source=0)
    assert [plain_bytes_per_token(layer, "bfloat16") for layer in (full, recurrent, borrowing)] == [96.0, 0.0, 0.0]


def test_the_callers_arrays_are_never_written_into() -> None:
    layer = LayerSpec(0, "sliding", KEY_VALUE_PLANES, window=8, num_query_heads=4)
    state: LayerState = create_plain(layer, CPU, "float32")
    keys, values = mx.ones((1, 2, 8, 8)), mx.ones((1, 2, 8, 16))
    group = type(state).loop([state])
    group.append(keys, values, (8,))  # type: ignore[attr-defined]
    group.append(mx.zeros((1, 2, 1, 8)), mx.zeros((1, 2, 1, 16)), (1,))  # type: ignore[attr-defined]
    assert keys.sum().item() == keys.size
