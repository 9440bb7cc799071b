"""How much text one token can stand for: what tells a hopelessly long prompt before it's encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phyla.tokenizer.pieces import SPACE_MARK, character_of_byte

CANONICAL_FORMS = frozenset({"NFC", "NFD"})
CANONICAL_SHRINKAGE = 4
"""Canonical forms make no text more than 3.5 times shorter in UTF-8: U+0390, spelt with a mark that is itself long."""

_KEEPING_SPLITS = frozenset({"ByteLevel", "Digits", "Metaspace"})
"""Pre-tokenizers that lose no character whatever their options."""

_BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class Coverage:
    """What a token can stand for at most."""

    most_bytes: int
    """Of UTF-8 text, for one token."""

    lost: bytes = b""
    """Bytes that the vocabulary lacks: they may become nothing at all."""

    def least_tokens(self, text: str) -> int:
        """No encoding of `text` has fewer."""
        return -(-len(text.encode().translate(None, self.lost)) // self.most_bytes)


def coverage(definition: Mapping[str, Any]) -> Coverage | None:
    """Of a parsed tokenizer.json, or None where a token may stand for any length of text.

    That is so where a normalizer or pre-tokenizer drops text, where an unknown token stands for a whole run, and where
    an added token takes the white space around it.
    """
    added = definition.get("added_tokens") or []
    shrinkage = _shrinkage(_flattened(definition.get("normalizer"), "normalizers"))
    splits = _flattened(definition.get("pre_tokenizer"), "pretokenizers")
    if shrinkage is None or not all(map(_keeps_text, splits)) or any(one["lstrip"] or one["rstrip"] for one in added):
        return None
    known = _vocabulary(definition["model"], any(split["type"] == "ByteLevel" for split in splits))
    if known is None:
        return None
    longest = max([known.most_bytes, *(len(one["content"].encode()) for one in added)])
    return Coverage(shrinkage * longest, known.lost)


def _vocabulary(model: Mapping[str, Any], is_byte_level: bool) -> Coverage | None:
    """Of the pieces alone, if they spell text byte by byte where nothing longer fits."""
    vocab = model.get("vocab")
    pieces = set(vocab if isinstance(vocab, dict) else (piece for piece, _ in vocab or []))
    if is_byte_level and model.get("type") == "BPE" and pieces:
        lost = bytes(byte for byte, character in character_of_byte().items() if character not in pieces)
        return Coverage(max(map(len, pieces)), lost)
    if model.get("byte_fallback") and pieces.issuperset(_BYTE_PIECES):
        return Coverage(max(len(piece.replace(SPACE_MARK, " ").encode()) for piece in pieces))
    return None


def _shrinkage(normalizers: Iterable[Mapping[str, Any]]) -> int | None:
    """How many times shorter they can make a text; None if any number of times."""
    factor = 1
    for normalizer in normalizers:
        kind = normalizer["type"]
        if kind in CANONICAL_FORMS:
            factor *= CANONICAL_SHRINKAGE
        elif kind == "Replace" and _grows(normalizer):
            continue
        elif kind != "Prepend":
            return None
    return factor


def _grows(replace: Mapping[str, Any]) -> bool:
    pattern = replace["pattern"].get("String")
    return pattern is not None and len(replace["content"].encode()) >= len(pattern.encode())


def _keeps_text(split: Mapping[str, Any]) -> bool:
    return split["type"] in _KEEPING_SPLITS or (
        split["type"] in ("Split", "Punctuation") and split.get("behavior") != "Removed"
    )


def _flattened(part: Any, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(part, dict):
        return []
    if part.get("type") == "Sequence":
        return [inner for one in part.get(name, []) for inner in _flattened(one, name)]
    return [part]
