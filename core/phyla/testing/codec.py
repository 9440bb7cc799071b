"""The contract of a cache codec, as a suite to subclass.

class TestBlocks(CodecContract):
    codec = BLOCKS
"""

from __future__ import annotations

import json
from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phyla.errors import CodecError
from phyla.kv.codec import CacheCodec, EncodedEntry
from phyla.kv.state import StateArrays
from phyla.testing.bits import same_arrays

IDENTITY = "0123456789abcdef0123456789abcdef"
ODD_BITS = (0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000, 0x00000001, 0x3F800000)
"""Float32 bit patterns that a careless copy changes: NaNs with a payload, an infinity, minus zero, a denormal."""

inherited = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


class CodecContract:
    """Subclass and set `codec`."""

    codec: CacheCodec

    def entry(self, num_tokens: int = 12) -> EncodedEntry:
        """An entry of every dtype that states come in, with odd bits, empty arrays and nested facts."""
        keys = mx.random.normal((1, 2, num_tokens, 8), key=mx.random.key(num_tokens))
        odd = mx.array(ODD_BITS, dtype=mx.uint32).view(mx.float32)
        return EncodedEntry(
            namespace="namespace",
            identity=IDENTITY,
            tokens=tuple(range(70_000, 70_000 + num_tokens)),
            layers={
                "target/0": StateArrays({"keys": keys, "values": keys.astype(mx.bfloat16)}, {"num_tokens": num_tokens}),
                "target/1": StateArrays({"sum": odd, "packed": odd.view(mx.uint32)}, {"cursor": 3, "exact": True}),
                "target/2": StateArrays({"half": keys.astype(mx.float16), "codes": (keys * 9).astype(mx.int8)}),
                "draft:toy/0": StateArrays({}, {"num_tokens": 0}),
            },
            facts={"exact": True, "boundaries": [4, 8], "drafts": {"draft:toy": {"identity": "w", "lag": 1}}},
        )

    def test_what_is_decoded_is_what_was_encoded_bit_for_bit(self) -> None:
        entry = self.entry()
        decoded = self.decoded(self.codec.encode(entry))
        assert (decoded.namespace, decoded.identity, decoded.tokens) == (entry.namespace, entry.identity, entry.tokens)
        assert json.dumps(decoded.facts, sort_keys=True) == json.dumps(entry.facts, sort_keys=True)
        assert set(decoded.layers) == set(entry.layers)
        assert all(same_arrays(decoded.layers[name], arrays) for name, arrays in entry.layers.items())

    def test_one_token_survives(self) -> None:
        assert self.decoded(self.codec.encode(self.entry(1))).tokens == (70_000,)

    def test_views_of_larger_arrays_come_back_whole(self) -> None:
        wide = mx.arange(64).reshape(1, 1, 16, 4)
        view = StateArrays({"keys": wide[:, :, 3:9].swapaxes(2, 3)})
        decoded = self.decoded(self.codec.encode(replace(self.entry(), layers={"target/0": view})))
        assert same_arrays(decoded.layers["target/0"], view)

    def test_another_identity_is_refused(self) -> None:
        data = self.codec.encode(self.entry())
        with pytest.raises(CodecError):
            self.codec.decode(data, IDENTITY[::-1])

    @pytest.mark.parametrize("foreign", [b"", b"{}", b"\x00" * 64, b"not a cache file", b"\xff" * 4096])
    def test_foreign_data_is_refused(self, foreign: bytes) -> None:
        with pytest.raises(CodecError):
            self.decoded(foreign)

    @inherited
    @given(data=st.data())
    def test_a_truncated_file_is_refused(self, data: st.DataObject) -> None:
        whole = self.codec.encode(self.entry())
        with pytest.raises(CodecError):
            self.decoded(whole[: data.draw(st.integers(0, len(whole) - 1))])

    @inherited
    @given(data=st.data())
    def test_a_flipped_bit_anywhere_is_refused(self, data: st.DataObject) -> None:
        damaged = bytearray(self.codec.encode(self.entry()))
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(CodecError):
            self.decoded(bytes(damaged))

    def test_a_file_with_something_behind_it_is_refused(self) -> None:
        with pytest.raises(CodecError):
            self.decoded(self.codec.encode(self.entry()) + b"\x00")

    def decoded(self, data: bytes) -> EncodedEntry:
        """Decode under the identity that entries here were made with."""
        return self.codec.decode(data, IDENTITY)
