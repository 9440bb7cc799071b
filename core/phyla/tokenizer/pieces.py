"""Vocabulary pieces to bytes: how byte-level and sentencepiece vocabularies spell text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

SPACE_MARK = "▁"

_BYTE_PIECE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


@dataclass(frozen=True)
class PieceSpelling:
    """How one vocabulary spells bytes, found in its own tokenizer.json."""

    to_bytes: Callable[[str], bytes]
    strips_leading_space: bool
    """Decoding drops one space at the very start: sentencepiece's dummy prefix."""


def piece_spelling(definition: Mapping[str, Any]) -> PieceSpelling | None:
    """The spelling of a parsed tokenizer.json, or None where a piece has no bytes of its own (WordPiece, CTC)."""
    decoders = _flattened(definition.get("decoder"))
    kinds = {decoder.get("type") for decoder in decoders}
    if "ByteLevel" in kinds:
        return PieceSpelling(byte_level_bytes, strips_leading_space=False)
    if "Metaspace" in kinds:
        metaspace = next(decoder for decoder in decoders if decoder.get("type") == "Metaspace")
        strips = metaspace.get("prepend_scheme", "always") != "never" and metaspace.get("add_prefix_space", True)
        return PieceSpelling(space_mark_bytes, strips_leading_space=bool(strips))
    replaces_mark = any(
        decoder.get("type") == "Replace" and decoder.get("pattern") == {"String": SPACE_MARK} for decoder in decoders
    )
    if replaces_mark or "ByteFallback" in kinds:
        strips = any(decoder.get("type") == "Strip" and decoder.get("start", 0) > 0 for decoder in decoders)
        return PieceSpelling(space_mark_bytes, strips_leading_space=strips)
    return None


def byte_level_bytes(piece: str) -> bytes:
    """GPT-2's spelling: one printable character per byte. A piece outside that alphabet is plain text."""
    table = byte_of_character()
    try:
        return bytes(table[character] for character in piece)
    except KeyError:
        return piece.encode()


def space_mark_bytes(piece: str) -> bytes:
    """Sentencepiece's spelling: `▁` is a space, `<0xAB>` is one byte."""
    match = _BYTE_PIECE.match(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace(SPACE_MARK, " ").encode()


@cache
def character_of_byte() -> Mapping[int, str]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(0x100 + index) for index, byte in enumerate(others)})
    return table


@cache
def byte_of_character() -> Mapping[str, int]:
    """The alphabet, read backwards."""
    return {character: byte for byte, character in character_of_byte().items()}


def _flattened(decoder: Any) -> list[Mapping[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [inner for part in decoder.get("decoders", []) for inner in _flattened(part)]
    return [decoder]
