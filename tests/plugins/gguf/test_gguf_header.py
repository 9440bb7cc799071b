"""Hostile GGUF headers are refused, whatever they claim."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from phyla.errors import DamagedCheckpoint, PhylaError
from phyla_gguf.gguf_checkpoint import GGUFCheckpoint
from phyla_gguf.header import read_header

from tests.plugins.gguf.gguf_files import write_tiny

STRING, ARRAY, UINT32 = 8, 9, 4


def text(value: str, length: int | None = None) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data) if length is None else length) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, axes: list[int], kind: int = 0, offset: int = 0, num_axes: int | None = None) -> bytes:
    count = len(axes) if num_axes is None else num_axes
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", count, *axes, kind, offset)


def file_of(
    path: Path,
    metadata: list[bytes],
    tensors: list[bytes],
    data: int = 0,
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_metadata: int | None = None,
) -> Path:
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(metadata) if num_metadata is None else num_metadata,
    )
    front = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(metadata) + b"".join(tensors)
    path.write_bytes(front + bytes(-len(front) % 32) + bytes(data))
    return path


def test_an_honest_file_lists_its_tensors(tmp_path: Path) -> None:
    path = file_of(tmp_path / "x.gguf", [entry("a", UINT32, struct.pack("<I", 7))], [tensor("t", [2, 3])], 24)
    header = read_header(path, "x")
    assert header.metadata == {"a": 7}
    assert (header.tensors["t"].shape, header.tensors["t"].num_bytes) == ((3, 2), 24)


HOSTILE: dict[str, tuple[list[bytes], list[bytes], int, dict[str, int]]] = {
    "version 1": ([], [], 0, {"version": 1}),
    "big-endian version": ([], [], 0, {"version": 3 << 24}),
    "a huge count of tensors": ([], [], 0, {"num_tensors": 2**64 - 1}),
    "a huge count of entries": ([], [], 0, {"num_metadata": 2**63}),
    "more tensors than there are": ([], [tensor("t", [1])], 4, {"num_tensors": 3}),
    "a key past the file": ([text("k", 2**63)], [], 0, {}),
    "a text past the file": ([entry("k", STRING, text("v", 10**6))], [], 0, {}),
    "a text that is not UTF-8": ([entry("k", STRING, struct.pack("<Q", 1) + b"\xff")], [], 0, {}),
    "an unknown type": ([entry("k", 99, b"")], [], 0, {}),
    "an array past the file": ([entry("k", ARRAY, struct.pack("<IQ", UINT32, 2**62))], [], 0, {}),
    "an array of texts past the file": ([entry("k", ARRAY, struct.pack("<IQ", STRING, 2**40))], [], 0, {}),
    "an array in an array": ([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1))], [], 0, {}),
    "a key twice": ([entry("k", UINT32, b"\0" * 4)] * 2, [], 0, {}),
    "a tensor twice": ([], [tensor("t", [1]), tensor("t", [1], offset=32)], 64, {}),
    "no axes": ([], [tensor("t", [])], 4, {}),
    "too many axes": ([], [tensor("t", [1] * 5)], 4, {}),
    "a huge count of axes": ([], [tensor("t", [1], num_axes=2**32 - 1)], 4, {}),
    "an empty axis": ([], [tensor("t", [0])], 4, {}),
    "a huge axis": ([], [tensor("t", [2**62, 2**62])], 4, {}),
    "a type that is not read": ([], [tensor("t", [32], kind=12)], 64, {}),
    "a row that is no whole block": ([], [tensor("t", [33], kind=2)], 64, {}),
    "a tensor past the file": ([], [tensor("t", [64])], 64, {}),
    "an offset past the file": ([], [tensor("t", [1], offset=2**63)], 64, {}),
    "an offset out of line": ([], [tensor("t", [1], offset=4)], 64, {}),
    "overlapping tensors": ([], [tensor("t", [16]), tensor("u", [1], offset=32)], 96, {}),
    "an alignment of nothing": ([entry("general.alignment", UINT32, b"\0" * 4)], [tensor("t", [1])], 64, {}),
    "an alignment of text": ([entry("general.alignment", STRING, text("x"))], [tensor("t", [1])], 64, {}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_refused(tmp_path: Path, kind: str) -> None:
    metadata, tensors, num_bytes, changes = HOSTILE[kind]
    path = file_of(tmp_path / "x.gguf", metadata, tensors, num_bytes, **changes)
    with pytest.raises(DamagedCheckpoint) as error:
        read_header(path, "x")
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("data", [b"", b"GG", b"GGUF", b"GGUF\3\0\0\0", b"PK\3\4" + bytes(64)])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpoint):
        read_header(path, "x")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def accepted(path: Path) -> bool:
    try:
        read_header(path, "x")
    except DamagedCheckpoint:
        return False
    return True


@given(share=st.floats(0, 0.999))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60
)
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path, honest: bytes, share: float) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(honest[: int(len(honest) * share)])
    assert not accepted(path)


@given(offset=st.integers(0, 12000), data=st.binary(min_size=1, max_size=16))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=200
)
def test_scribbling_over_a_header_never_raises_anything_else(
    tmp_path: Path, honest: bytes, offset: int, data: bytes
) -> None:
    scribbled = bytearray(honest)
    scribbled[offset : offset + len(data)] = data
    path = tmp_path / "x.gguf"
    path.write_bytes(scribbled)
    assert accepted(path) in (True, False)


def opens(path: Path) -> bool:
    try:
        checkpoint = GGUFCheckpoint(path, "x")
        checkpoint.load(list(checkpoint.tensor_infos())[:3])
        checkpoint.tokenizer()
    except PhylaError:
        return False
    return True


@given(offset=st.integers(0, 12000), data=st.binary(min_size=1, max_size=16))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=150
)
def test_scribbling_over_metadata_gives_a_model_or_a_clear_error(
    tmp_path: Path, honest: bytes, offset: int, data: bytes
) -> None:
    scribbled = bytearray(honest)
    scribbled[offset : offset + len(data)] = data
    path = tmp_path / "x.gguf"
    path.write_bytes(scribbled)
    assert opens(path) in (True, False)
