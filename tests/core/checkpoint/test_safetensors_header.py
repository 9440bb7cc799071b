"""Headers are checked before a native parser sees them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from phyla.checkpoint.safetensors_header import MAX_HEADER_BYTES, read_header
from phyla.errors import DamagedCheckpoint

from tests.core.checkpoint.safetensors_files import entry, write_floats, write_header


def test_an_honest_file_lists_its_tensors(tmp_path: Path) -> None:
    header = read_header(write_floats(tmp_path / "model.safetensors", ["a", "b"]), "tiny")
    assert {name: (info.shape, info.dtype, info.num_bytes, info.shard) for name, info in header.tensors.items()} == {
        "a": ((2,), "float32", 8, "model.safetensors"),
        "b": ((2,), "float32", 8, "model.safetensors"),
    }


def test_a_file_that_mlx_wrote_is_read_alike(tmp_path: Path) -> None:
    arrays = {"half": mx.ones((3, 4), mx.bfloat16), "packed": mx.ones((2, 8), mx.uint32), "none": mx.zeros((0, 5))}
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), arrays, {"format": "mlx"})
    header = read_header(path, "tiny")
    assert {name: (info.shape, info.dtype) for name, info in header.tensors.items()} == {
        "half": ((3, 4), "bfloat16"),
        "packed": ((2, 8), "uint32"),
        "none": ((0, 5), "float32"),
    }
    assert header.metadata["format"] == "mlx"


def test_a_file_that_mlx_wrote_without_metadata_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"a": mx.ones((2,))})
    assert read_header(path, "tiny").metadata == {}


HOSTILE: dict[str, tuple[dict[str, Any] | bytes, bytes]] = {
    "a range past the file": ({"a": entry(0, 4)}, b"\0" * 8),
    "overlapping ranges": ({"a": entry(0, 2), "b": entry(4, 2)}, b"\0" * 12),
    "a hole": ({"a": entry(0, 2), "b": entry(12, 2)}, b"\0" * 20),
    "bytes of nobody": ({"a": entry(0, 2)}, b"\0" * 9),
    "a size unlike the shape": ({"a": entry(0, 2, shape=[3])}, b"\0" * 8),
    "a huge count": ({"a": entry(0, 2, shape=[2**62, 2**62])}, b"\0" * 8),
    "an axis past int32": ({"a": entry(0, 0, shape=[2**31, 0])}, b""),
    "a negative axis": ({"a": entry(0, 2, shape=[-2])}, b"\0" * 8),
    "an axis that is true": ({"a": entry(0, 1, shape=[True])}, b"\0" * 4),
    "an axis that is a float": ({"a": entry(0, 2, shape=[2.0])}, b"\0" * 8),
    "too many axes": ({"a": entry(0, 1, shape=[1] * 17)}, b"\0" * 4),
    "a backward range": ({"a": entry(0, 2, data_offsets=[8, 0])}, b"\0" * 8),
    "a negative range": ({"a": entry(0, 2, data_offsets=[-8, 0])}, b"\0" * 8),
    "three offsets": ({"a": entry(0, 2, data_offsets=[0, 4, 8])}, b"\0" * 8),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8),
    "an unknown dtype": ({"a": entry(0, 2, dtype="F33")}, b"\0" * 8),
    "a dtype that MLX lacks": ({"a": entry(0, 1, dtype="F64")}, b"\0" * 8),
    "a dtype that is a list": ({"a": entry(0, 2, dtype=["F32"])}, b"\0" * 8),
    "a tensor that is a number": ({"a": 3}, b""),
    "metadata of numbers": ({"__metadata__": {"format": 1}}, b""),
    "a name given twice": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', b""),
    "a list": (b"[]", b""),
    "not JSON": (b"{'a'}", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "NaN": (b'{"a": NaN}', b""),
    "a number of many digits": (b'{"a": ' + b"9" * 5000 + b"}", b""),
    "deep nesting": (b'{"a":' + b"[" * 100_000, b""),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_refused(tmp_path: Path, kind: str) -> None:
    header, data = HOSTILE[kind]
    path = write_header(tmp_path / "model.safetensors", header, data)
    with pytest.raises(DamagedCheckpoint, match="of tiny") as error:
        read_header(path, "tiny")
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("length", [100, 2**31, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = write_header(tmp_path / "model.safetensors", {}, length=length)
    with pytest.raises(DamagedCheckpoint, match=str(length)):
        read_header(path, "tiny")


@pytest.mark.parametrize("num_bytes", [0, 1, 7])
def test_a_file_without_room_for_a_length_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\0" * num_bytes)
    with pytest.raises(DamagedCheckpoint, match="too few"):
        read_header(path, "tiny")


@given(kept=st.integers(0, 200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path, kept: int) -> None:
    whole = write_floats(tmp_path / "whole.safetensors", ["a", "b", "c"]).read_bytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole[: min(kept, len(whole) - 1)])
    with pytest.raises(DamagedCheckpoint):
        read_header(path, "tiny")


def accepted_by_us(path: Path) -> bool:
    try:
        read_header(path, "tiny")
    except DamagedCheckpoint:
        return False
    return True


def accepted_by_the_format(path: Path) -> bool:
    """What the format's own library says; a clean refusal is an error of its own type."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            list(file.keys())
    except safetensors.SafetensorError:
        return False
    return True


axes = st.lists(st.one_of(st.integers(0, 3), st.just(2**63), st.integers(-2, 5)), max_size=3)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "BOOL", "I64", "nope"]),
        "shape": axes,
        "data_offsets": st.tuples(st.integers(-4, 40), st.integers(-4, 40)).map(list),
    }
)


@given(header=st.dictionaries(st.sampled_from(["a", "b", "c"]), entries, max_size=3), num_bytes=st.integers(0, 40))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=300
)
def test_whatever_we_accept_the_format_accepts(tmp_path: Path, header: dict[str, Any], num_bytes: int) -> None:
    path = write_header(tmp_path / "model.safetensors", header, b"\0" * num_bytes)
    assert not accepted_by_us(path) or accepted_by_the_format(path)


@given(data=st.binary(max_size=120), offset=st.integers(0, 120))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=300
)
def test_scribbling_over_a_file_never_raises_anything_else(tmp_path: Path, data: bytes, offset: int) -> None:
    whole = bytearray(write_floats(tmp_path / "whole.safetensors", ["a", "b"]).read_bytes())
    whole[offset : offset + len(data)] = data
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    assert accepted_by_us(path) in (True, False)


def test_many_empty_tensors_are_only_a_long_list(tmp_path: Path) -> None:
    header = {f"t{index}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for index in range(50_000)}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    assert len(read_header(path, "tiny").tensors) == 50_000
