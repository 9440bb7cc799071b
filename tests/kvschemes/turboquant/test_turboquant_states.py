"""TurboQuant storage keeps the contracts of a layer's state and of a scheme."""

import mlx.core as mx
import pytest
from phyla.errors import SettingsError
from phyla.kv import KVScheme, LayerSpec, Plane
from phyla.kv.encoded.encoding import Stored
from phyla.kv.plain.attention import attend
from phyla.testing.bits import assert_close, same_bits
from phyla.testing.layer_feeds import looked_up, padded_ids
from phyla.testing.scheme import SchemeContract
from phyla.testing.stepping import TEST_BACKEND
from phyla_turboquant import turbo_scheme
from phyla_turboquant.codec import KeyCodec, ValueCodec
from phyla_turboquant.encoding import TurboEncoding
from phyla_turboquant.spec import TurboSpec, parsed

PLANES = (Plane("keys", 2, 64), Plane("values", 2, 128))


def scheme_of(spec: str) -> KVScheme:
    return turbo_scheme(parsed(spec, TurboSpec()))


class TurboContract(SchemeContract):
    layer = LayerSpec(0, "full", PLANES, scale=0.125, num_query_heads=4)


class TestDefault(TurboContract):
    scheme = turbo_scheme(TurboSpec())
    error_bound = 0.2

    def test_it_is_eight_bit_keys_and_three_bit_values(self) -> None:
        assert self.scheme.identity == "turboquant:k8v3"


class TestEightBits(TurboContract):
    scheme = scheme_of("k8v8")
    error_bound = 0.02


class TestFewestBitsDelayed(TurboContract):
    scheme = scheme_of("k2v2s20")
    error_bound = 0.9


class TestOddBitsWithSoftcap(TurboContract):
    layer = LayerSpec(0, "full", PLANES, scale=0.125, softcap=20.0, num_query_heads=4)
    scheme = scheme_of("k5v4")
    error_bound = 0.12


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [("k8v8", 1.829), ("k8v4", 2.370), ("k8v3", 2.560), ("k8v2", 2.783), ("k5v3", 3.368), ("k4v2", 4.267)],
)
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_the_formula_gives_the_published_ratios(spec: str, ratio: float, head_dim: int) -> None:
    layer = LayerSpec(0, "full", (Plane("keys", 2, head_dim), Plane("values", 2, head_dim)))
    assert round(2 * 2 * head_dim * 2 / scheme_of(spec).bytes_per_token(layer, "bfloat16"), 3) == pytest.approx(ratio)


def test_rotating_back_what_comes_out_is_rotating_back_what_goes_in() -> None:
    layer, spec = TurboContract.layer, TurboSpec()
    encoding = TurboEncoding(*layer.planes, spec)
    ids = padded_ids([list(range(40))], 40)
    planes = encoding.encode(looked_up(ids, 2, 64, seed=1), looked_up(ids, 2, 128, seed=2))
    queries = looked_up(padded_ids([[5]], 1), 4, 64, seed=3)
    deferred = encoding.attend(queries, Stored(planes, 40), None, scale=0.125, softcap=None, sinks=None)
    keys, values = KeyCodec(8).decode(*planes[:3]), ValueCodec(128, 3).decode(*planes[3:])
    assert_close(deferred, attend(queries, keys, values, None, scale=0.125), atol=2e-6, why="float32")


@pytest.mark.parametrize("head_dim", [32, 80, 96, 1024])
def test_other_head_sizes_are_refused_with_those_that_work(head_dim: int) -> None:
    layer = LayerSpec(0, "full", (Plane("keys", 2, head_dim), Plane("values", 2, head_dim)))
    support = turbo_scheme(TurboSpec()).supports(layer, TEST_BACKEND)
    assert support.reason is not None
    assert f"{head_dim} wide, and turboquant stores heads of 64, 128, 256, 512" in support.reason


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("k3v3", "3 bits of keys; they can have 2, 4, 5, 8"),
        ("k8v6", "6 bits of values"),
        ("8", "such as turboquant:k8v3"),
    ],
)
def test_specs_without_a_codebook_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        scheme_of(spec)


def test_half_precision_attends_near_float32() -> None:
    layer = TurboContract.layer
    encoding = TurboEncoding(*layer.planes, TurboSpec())
    ids = padded_ids([list(range(40))], 40)
    outputs = []
    for dtype in (mx.float32, mx.bfloat16):
        planes = encoding.encode(*(looked_up(ids, 2, size, seed=1).astype(dtype) for size in (64, 128)))
        queries = looked_up(padded_ids([[5]], 1), 4, 64, seed=3).astype(dtype)
        outputs.append(encoding.attend(queries, Stored(planes, 40), None, scale=0.125, softcap=None, sinks=None))
    assert outputs[1].dtype == mx.bfloat16
    assert_close(outputs[1].astype(mx.float32), outputs[0], atol=0.1, why="bfloat16 in, bfloat16 out")


def test_compiled_it_encodes_and_attends_as_it_does_uncompiled() -> None:
    outputs, stored = [], []
    for on_cuda in (False, True):
        encoding = TurboEncoding(*PLANES, TurboSpec(), on_cuda=on_cuda)
        wide, one = padded_ids([list(range(40))], 40), padded_ids([[7]], 1)
        planes = [encoding.encode(looked_up(ids, 2, 64, seed=1), looked_up(ids, 2, 128, seed=2)) for ids in (wide, one)]
        both = tuple(mx.concatenate([*parts, mx.zeros_like(parts[0])], axis=2) for parts in zip(*planes, strict=True))
        stored.append([plane[:, :, :41] for plane in both])
        queries = looked_up(padded_ids([[5]], 1), 4, 64, seed=3)
        outputs.append(encoding.attend(queries, Stored(both, 41), None, scale=0.125, softcap=None, sinks=None))
    assert all(same_bits(got, want) for got, want in zip(*stored, strict=True))
    assert_close(outputs[1], outputs[0], atol=2e-6, why="rotated by a product with a matrix")
