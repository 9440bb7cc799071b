"""A tokenizer whose pieces a test chooses: bytes by default, with special tokens and longer pieces on top."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Mapping, Sequence

from phyla.tokenizer.tokenizer import TextSpan

END = "<|end|>"


class CharacterTokenizer:
    """256 byte tokens, then `<|end|>`, then the pieces and special spellings it was given.

    Args:
        pieces: longer pieces; encoding takes the longest that fits. Bytes may be no whole characters.
        special: spellings of control tokens.
    """

    def __init__(self, pieces: Sequence[str | bytes] = (), special: Sequence[str] = ()) -> None:
        longer = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        spellings = (END, *special)
        self._bytes = [bytes([byte]) for byte in range(256)] + [b""] * len(spellings) + longer
        self._special = {spelling: 256 + index for index, spelling in enumerate(spellings)}
        self._by_bytes = {piece: index for index, piece in enumerate(self._bytes) if piece}
        self._longest = max(map(len, self._bytes))

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._special.values())

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self._special[END]})

    @property
    def bos_id(self) -> int | None:
        return None

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self._bytes, self._special)).encode()).hexdigest()

    @property
    def special_spellings(self) -> Mapping[str, int]:
        return dict(self._special)

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            spelling = next((one for one in self._special if parse_special and text.startswith(one)), None)
            if spelling is not None:
                ids.append(self._special[spelling])
                text = text.removeprefix(spelling)
                continue
            plain = self._before_special(text) if parse_special else text
            ids.extend(self._encode_bytes(plain.encode()))
            text = text.removeprefix(plain)
        return ids

    def least_tokens(self, text: str) -> int:
        return -(-len(text.encode()) // max(self._longest, *map(len, self._special)))

    def encode_with_literals(self, text: str, literals: Sequence[TextSpan]) -> list[int]:
        ids: list[int] = []
        at = 0
        for span in sorted(literals, key=lambda one: one.start):
            ids += self.encode(text[at : span.start]) + self.encode(text[span.start : span.end], parse_special=False)
            at = span.end
        return ids + self.encode(text[at:])

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        by_id = {token_id: spelling for spelling, token_id in self._special.items()}
        parts = [(b"" if skip_special else by_id[one].encode()) if one in by_id else self._bytes[one] for one in ids]
        return b"".join(parts).decode("utf-8", errors="replace")

    def id_of(self, piece: str) -> int | None:
        return self._special.get(piece, self._by_bytes.get(piece.encode()))

    def piece(self, token_id: int) -> str:
        by_id = {one: spelling for spelling, one in self._special.items()}
        return by_id.get(token_id) or self._bytes[token_id].decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    @property
    def named_tokens(self) -> Mapping[str, str]:
        return {"eos_token": END}

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer(self._bytes)

    def _before_special(self, text: str) -> str:
        ends = [at for one in self._special if (at := text.find(one)) > 0]
        return text[: min(ends, default=len(text))]

    def _encode_bytes(self, data: bytes) -> list[int]:
        ids = []
        while data:
            length = next(n for n in range(min(self._longest, len(data)), 0, -1) if data[:n] in self._by_bytes)
            ids.append(self._by_bytes[data[:length]])
            data = data[length:]
        return ids


class ByteDetokenizer:
    """Holds bytes back until they are whole characters."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_id: int) -> str:
        return self._decoder.decode(self._pieces[token_id])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
