"""Affine storage keeps the contracts of a layer's state and of a scheme, on both kinds and in every form."""

from typing import Any

import mlx.core as mx
import pytest
from phyla.backend import BackendFacts
from phyla.kv import KVScheme, LayerSpec, Plane
from phyla.kv.encoded import create_encoded
from phyla.kv.encoded.encoding import Stored
from phyla.kv.plain.attention import attend
from phyla.selection.settings import SelectionSettings
from phyla.settings import Settings, load_settings
from phyla.testing.bits import assert_close, same_bits
from phyla.testing.layer_feeds import KeyValueFeed, looked_up, padded_ids
from phyla.testing.scheme import SchemeContract
from phyla_affine.encoding import AffineEncoding
from phyla_affine.scheme import affine_scheme
from phyla_affine.settings import AffineSettings
from phyla_affine.spec import LayerForm

PLANES = (Plane("keys", 2, 64), Plane("values", 2, 128))
GPU = BackendFacts("cuda", "test", "test", memory_bytes=1 << 34, working_set_bytes=1 << 34)


def scheme_of(spec: str) -> KVScheme:
    parse = affine_scheme(settings()).parse
    assert parse is not None
    return parse(spec)


def settings(**flags: str) -> Settings:
    return load_settings([SelectionSettings, AffineSettings], flags={f"--{k}": v for k, v in flags.items()}, env={})


class AffineContract(SchemeContract):
    layer = LayerSpec(0, "full", PLANES, scale=0.125, num_query_heads=4)


class TestFull8(AffineContract):
    scheme = scheme_of("8")
    error_bound = 0.01


class TestFull4(AffineContract):
    scheme = scheme_of("4")
    error_bound = 0.15


class TestFullWithSmallGroups(AffineContract):
    layer = LayerSpec(0, "full", (Plane("keys", 2, 96), Plane("values", 2, 96)), scale=0.1, num_query_heads=2)
    scheme = scheme_of("8")
    error_bound = 0.01

    def test_96_wide_heads_are_quantised_in_groups_of_32(self) -> None:
        state = self.filled([(3, 3), (1, 1)])
        assert state.arrays().arrays["keys_scales"].shape == (1, 2, 4, 3)


class TestRing8(AffineContract):
    layer = LayerSpec(0, "sliding", PLANES, scale=0.125, window=8, num_query_heads=4)
    scheme = scheme_of("8")
    error_bound = 0.01


class TestRing4WithSoftcap(AffineContract):
    layer = LayerSpec(0, "sliding", PLANES, scale=0.125, softcap=20.0, window=8, num_query_heads=4)
    scheme = scheme_of("4")
    error_bound = 0.15


class TestDelayedFull(AffineContract):
    scheme = scheme_of("8s20")
    error_bound = 0.01

    def test_a_short_row_stays_plain(self) -> None:
        assert self.filled([(17, 17), (2, 2)]).arrays().arrays["keys"].dtype == mx.float32

    def test_the_step_that_crosses_the_start_is_plain_and_the_next_converts(self) -> None:
        state = self.filled([(17, 17), (8, 8)])
        assert state.arrays().arrays["keys"].dtype == mx.float32
        self.give(state, (1, 1))
        assert state.arrays().arrays["keys"].dtype == mx.uint32
        assert state.arrays().facts["converted_at"] == 25

    def test_tokens_from_before_the_conversion_cannot_be_gone_back_to(self) -> None:
        state = self.filled([(17, 17), (8, 8), (1, 1), (1, 1)])
        reachable = [length for length in range(28) if state.can_rewind_to(length)]
        assert reachable == [0, 25, 26, 27]
        restored = self.new_state()
        restored.adopt(state.arrays())
        assert [length for length in range(28) if restored.can_rewind_to(length)] == reachable
        assert [length for length in range(28) if state.clone().can_rewind_to(length)] == reachable

    def test_a_conversion_that_a_window_takes_back_never_happened(self) -> None:
        state = self.filled([(17, 17), (2, 2)])
        state.open_window(3)
        self.give(state, (1, 1), (1, 1), (1, 1))
        assert state.arrays().arrays["keys"].dtype == mx.uint32
        state.keep(1)
        assert state.arrays().arrays["keys"].dtype == mx.float32
        assert state.num_tokens == 20


class TestDelayedRing(AffineContract):
    layer = LayerSpec(0, "sliding", PLANES, scale=0.125, window=8, num_query_heads=4)
    scheme = scheme_of("8s20")
    error_bound = 0.01


class TestDenseProducts(AffineContract):
    """The form for devices whose quantised matmul has no kernel for four axes, computed here."""

    scheme = scheme_of("8")
    backend = GPU
    error_bound = 0.01


class TestDenseRing(TestDenseProducts):
    layer = TestRing8.layer


class TestTiledProducts(AffineContract):
    scheme = affine_scheme(settings(**{"fused-sdpa": "off"}))
    backend = GPU
    error_bound = 0.01


class TestFusedPrefill(AffineContract):
    scheme = scheme_of("8+fused")
    error_bound = 0.01


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "form",
    [
        {"products": "tiled"},
        {"products": "dense"},
        {"products": "dense", "most_dense_bytes": 1 << 20},
        {"fused_prefill": True},
    ],
    ids=["tiled", "dense", "dense until it is long", "fused prefill"],
)
@pytest.mark.parametrize("num_tokens", [30, 2500])
def test_every_form_computes_what_the_quantised_matmul_computes(bits: int, form: Any, num_tokens: int) -> None:
    layer = AffineContract.layer
    feed, ids = KeyValueFeed(layer), padded_ids([[at * 7 % 64 for at in range(num_tokens)]], num_tokens)
    outputs = []
    for encoding in (AffineEncoding(layer, LayerForm(bits, 64)), AffineEncoding(layer, LayerForm(bits, 64), **form)):
        state = create_encoded(layer, encoding)
        feed.step(state, ids, (num_tokens,))
        outputs.append(mx.concatenate([feed.step(state, padded_ids([more], 3), (3,)) for more in ([1, 2, 3], [4])]))
    assert_close(outputs[1], outputs[0], atol=1e-5, why="sums in another order")


def test_sinks_take_weight_and_give_nothing() -> None:
    layer = LayerSpec(0, "full", PLANES, scale=0.125, num_query_heads=4, num_sinks=4)
    sinks = mx.array([0.5, -1.0, 2.0, 0.0])
    outputs = []
    for scheme in (scheme_of("8"), scheme_of("8s1000")):
        state = scheme.create(layer, AffineContract.backend, "float32")
        KeyValueFeed(layer).step(state, padded_ids([[3, 4, 5]], 3), (3,))
        KeyValueFeed(layer).step(state, padded_ids([[6]], 1), (1,))
        queries = looked_up(padded_ids([[9]], 1), 4, 64, seed=3)
        outputs.append(state.reader(includes_step=False).attend(queries, KeyValueFeed(layer)._mask(), (1,), sinks))
    assert_close(outputs[0], outputs[1], atol=0.03, why="8 bit keys and values")


@pytest.mark.parametrize("num_heads_of_mask", [1, 8])
def test_explicit_masks_broadcast_over_grouped_heads(num_heads_of_mask: int) -> None:
    layer = LayerSpec(0, "full", (Plane("keys", 2, 64), Plane("values", 2, 64)), scale=0.125, num_query_heads=8)
    encoding = AffineEncoding(layer, LayerForm(8, 64))
    ids = padded_ids([list(range(12))], 12)
    keys, values = (looked_up(ids, 2, 64, seed=seed) for seed in (1, 2))
    queries = looked_up(padded_ids([[5, 6, 7]], 3), 8, 64, seed=3)
    allowed = mx.random.bernoulli(0.6, (1, num_heads_of_mask, 3, 12), key=mx.random.key(0)) | (mx.arange(12) < 1)
    got = encoding.attend(
        queries, Stored(encoding.encode(keys, values), 12), allowed, scale=0.125, softcap=None, sinks=None
    )
    stored = [mx.dequantize(*mx.quantize(one, group_size=64, bits=8), group_size=64, bits=8) for one in (keys, values)]
    want = attend(queries, stored[0], stored[1], allowed, scale=0.125)
    assert_close(got, want, atol=1e-5, why="sums in another order")


@pytest.mark.parametrize(("route", "same"), [("auto", True), ("exact", True), ("fast", False)])
def test_a_cpu_fuses_wide_steps_only_where_no_bits_are_promised(route: str, same: bool) -> None:
    outputs = []
    for scheme in (scheme_of("8"), affine_scheme(settings(route=route))):
        state = scheme.create(AffineContract.layer, AffineContract.backend, "float32")
        ids = padded_ids([list(range(40))], 40)
        KeyValueFeed(AffineContract.layer).step(state, ids, (40,))
        outputs.append(KeyValueFeed(AffineContract.layer).step(state, padded_ids([[1, 2, 3]], 3), (3,)))
    assert same_bits(*outputs) == same
    assert_close(outputs[1], outputs[0], atol=1e-5, why="sums in another order")
