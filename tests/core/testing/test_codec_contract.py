"""The codec contract accepts a codec that keeps it and catches ones that don't."""

import hashlib
import pickle

import mlx.core as mx
import numpy as np
import pytest
from phyla.errors import CodecError
from phyla.kv.codec import CacheCodec, EncodedEntry
from phyla.kv.state import StateArrays
from phyla.testing.bits import as_bytes
from phyla.testing.codec import CodecContract

DIGEST_BYTES = 32


def encode(entry: EncodedEntry) -> bytes:
    """The plainest codec there is; it trusts its digest, which no codec for real files may do."""
    layers = {
        name: ({key: (str(one.dtype), one.shape, as_bytes(one)) for key, one in state.arrays.items()}, state.facts)
        for name, state in entry.layers.items()
    }
    body = pickle.dumps((entry.namespace, entry.identity, entry.tokens, layers, entry.facts))
    return hashlib.sha256(body).digest() + body


def decode(data: bytes, identity: str) -> EncodedEntry:
    body = data[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:DIGEST_BYTES]:
        raise CodecError("The cache file is damaged or foreign.")
    return restored(body, identity)


def restored(body: bytes, identity: str) -> EncodedEntry:
    namespace, written_under, tokens, layers, facts = pickle.loads(body)
    if written_under != identity:
        raise CodecError("The cache file was written under another numerical identity.")
    states = {
        name: StateArrays({key: array_of(*one) for key, one in arrays.items()}, kept)
        for name, (arrays, kept) in layers.items()
    }
    return EncodedEntry(namespace, written_under, tokens, states, facts)


def array_of(dtype: str, shape: tuple[int, ...], data: bytes) -> mx.array:
    name = dtype.removeprefix("mlx.core.")
    if name == "bfloat16":
        return mx.array(np.frombuffer(data, np.uint16)).view(mx.bfloat16).reshape(shape)
    return mx.array(np.frombuffer(data, np.dtype(name))).reshape(shape)


SOUND = CacheCodec("sound", 1, encode, decode)


class TestSoundCodec(CodecContract):
    codec = SOUND


class HalfReader(CodecContract):
    """Ignores its digest."""

    codec = CacheCodec("half", 1, encode, lambda data, identity: restored(data[DIGEST_BYTES:], identity))


class Rounding(CodecContract):
    """Loses the bits that float16 can't hold."""

    codec = CacheCodec("rounding", 1, lambda entry: encode(rounded(entry)), decode)


def rounded(entry: EncodedEntry) -> EncodedEntry:
    layers = {
        name: StateArrays(
            {key: one.astype(mx.float16).astype(one.dtype) for key, one in state.arrays.items()}, state.facts
        )
        for name, state in entry.layers.items()
    }
    return EncodedEntry(entry.namespace, entry.identity, entry.tokens, layers, entry.facts)


def through_half(array: mx.array) -> mx.array:
    return array.astype(mx.float16).astype(array.dtype)


def test_a_codec_that_reads_damaged_files_is_caught() -> None:
    with pytest.raises(pytest.fail.Exception):
        HalfReader().test_a_file_with_something_behind_it_is_refused()


def test_a_codec_that_loses_bits_is_caught() -> None:
    with pytest.raises(AssertionError):
        Rounding().test_what_is_decoded_is_what_was_encoded_bit_for_bit()
