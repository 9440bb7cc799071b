"""A GGUF file as a checkpoint with Hugging Face's config and names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from phyla import TensorInfo
from phyla.errors import CheckpointNotFound, DamagedCheckpoint, WeightMismatch

from phyla_gguf.block_types import Planes
from phyla_gguf.header import GGUFHeader, GGUFTensor, read_header
from phyla_gguf.llama import (
    ROPE_FACTORS,
    config_of,
    hugging_face_name,
    num_permuted_heads,
    original_rows,
    with_rope_factors,
)
from phyla_gguf.vocabulary import eos_ids, tokenizer_config, tokenizer_definition, why_unread

if TYPE_CHECKING:
    import mlx.core as mx
    from phyla.checkpoint import Checkpoint
    from phyla.tokenizer import Tokenizer

_SAMPLE_BYTES = 4096


class GGUFCheckpoint:
    """One file. Tensors are read when they are asked for, one at a time."""

    def __init__(self, path: Path, reference: str) -> None:
        """Read and check the header; read no weights.

        Raises:
            CheckpointNotFound: no such file.
            DamagedCheckpoint: the header doesn't hold.
            UnsupportedModel: not a llama.
        """
        if not path.is_file():
            raise CheckpointNotFound(f"There is no file '{reference}'.")
        self._path = path
        self._stamp = _stamp(path)
        self.reference = reference
        self.model_id = path.stem
        self._header: GGUFHeader = read_header(path, self.model_id)
        self.config: Mapping[str, Any] = self._config()
        self._sources: dict[str, tuple[GGUFTensor, str]] = {}
        self._infos = dict(self._described())

    @property
    def generation_config(self) -> Mapping[str, Any]:
        ids = eos_ids(self._header.metadata)
        return {"eos_token_id": ids} if ids else {}

    @property
    def chat_template(self) -> str | None:
        """`chat_template.jinja` beside the file, else the one in it."""
        beside = self._path.with_name("chat_template.jinja")
        if beside.is_file():
            return beside.read_text(encoding="utf-8")
        template = self._header.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @cached_property
    def fingerprint(self) -> str:
        """Digest of config, tensor places and some bytes of each tensor."""
        digest = sha256(repr(sorted(self.config.items(), key=lambda item: item[0])).encode())
        with self._path.open("rb") as file:
            for tensor in self._header.tensors.values():
                digest.update(f"{tensor.name}\0{tensor.shape}\0{tensor.block_type.name}\0".encode())
                file.seek(tensor.start)
                digest.update(file.read(min(tensor.num_bytes, _SAMPLE_BYTES)))
        return digest.hexdigest()

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def load(self, names: Iterable[str]) -> dict[str, mx.array]:
        import mlx.core as mx

        wanted = list(names)
        if missing := sorted(name for name in wanted if name not in self._sources):
            raise WeightMismatch(f"{self.model_id} has no tensor {', '.join(missing[:20])}.")
        if _stamp(self._path) != self._stamp:
            raise DamagedCheckpoint(f"{self.model_id} changed after it was checked. Open it again.")
        by_tensor: dict[str, list[str]] = {}
        for name in wanted:
            by_tensor.setdefault(self._sources[name][0].name, []).append(name)
        arrays: dict[str, mx.array] = {}
        for tensor_name, members in by_tensor.items():
            planes = self._planes(self._header.tensors[tensor_name])
            arrays.update({name: mx.array(planes[self._sources[name][1]]) for name in members})
        return arrays

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def sidecar(self, name: str) -> bytes | None:
        """Nothing lies beside a file on purpose."""
        return None

    def companion(self, name: str) -> Checkpoint | None:
        return None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from phyla.tokenizer.absent import AbsentTokenizer
        from phyla.tokenizer.fast import FastTokenizer

        metadata = self._header.metadata
        reason = why_unread(metadata)
        if reason is not None:
            return AbsentTokenizer(self.model_id, self.config["vocab_size"], reason)
        return FastTokenizer(tokenizer_definition(metadata, self.model_id), tokenizer_config(metadata))

    def _config(self) -> dict[str, Any]:
        config = config_of(self._header, self.model_id)
        factors = self._header.tensors.get(ROPE_FACTORS)
        if factors is None:
            return config
        if factors.block_type.bits is not None or len(factors.shape) != 1:
            raise DamagedCheckpoint(f"{self.model_id} stores its rope factors as no list of numbers.")
        return with_rope_factors(config, self._unpacked(factors)["weight"].tolist(), self.model_id)

    def _described(self) -> Iterable[tuple[str, TensorInfo]]:
        for tensor in self._header.tensors.values():
            if tensor.name == ROPE_FACTORS:
                continue
            module = hugging_face_name(tensor.name, self.model_id)
            num_heads = num_permuted_heads(tensor.name, self.config)
            if num_heads is not None and tensor.shape[0] % (2 * num_heads):
                raise DamagedCheckpoint(
                    f"{tensor.name} of {self.model_id} has rows that {num_heads} heads don't divide."
                )
            for plane, shape, dtype in _plane_shapes(tensor):
                name = module if plane == "weight" else f"{module.removesuffix('.weight')}.{plane}"
                width = 4 if dtype in ("uint32", "float32") else 2
                num_bytes = width * int(np.prod(shape, dtype=np.int64))
                self._sources[name] = (tensor, plane)
                yield name, TensorInfo(name, shape, dtype, num_bytes, self._path.name)

    def _planes(self, tensor: GGUFTensor) -> Planes:
        planes = self._unpacked(tensor)
        num_heads = num_permuted_heads(tensor.name, self.config)
        if num_heads is None:
            return planes
        return {name: original_rows(plane, num_heads) for name, plane in planes.items()}

    def _unpacked(self, tensor: GGUFTensor) -> Planes:
        data = np.fromfile(self._path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.start)
        return tensor.block_type.unpack(data, tensor.shape)


def _plane_shapes(tensor: GGUFTensor) -> list[tuple[str, tuple[int, ...], str]]:
    """(plane, shape, mlx dtype) of what a tensor becomes."""
    bits = tensor.block_type.bits
    if bits is None:
        return [("weight", tensor.shape, tensor.block_type.dtype)]
    *rows, width = tensor.shape
    group = (*rows, width // tensor.block_type.num_values)
    packed = (*rows, width * bits // 32)
    return [("weight", packed, "uint32"), ("scales", group, "float16"), ("biases", group, "float16")]


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
