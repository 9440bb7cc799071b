"""Text of a growing sequence of ids, each character given out once and only when it is certain."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class ByteDetokenizer:
    """For vocabularies whose tokens are bytes: feeds them to a UTF-8 decoder that holds on to an unfinished character.

    Constant work per token. What is out is never taken back: joiners and combining marks are characters of their own.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], *, strips_leading_space: bool = False) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strips_leading_space = strips_leading_space

    def add(self, token_id: int) -> str:
        return self._at_start(self._decoder.decode(self._bytes_of(token_id)))

    def finish(self) -> str:
        return self._at_start(self._decoder.decode(b"", final=True))

    def _at_start(self, text: str) -> str:
        if not text or not self._strips_leading_space:
            return text
        self._strips_leading_space = False
        return text.removeprefix(" ")


class WindowDetokenizer:
    """For tokenizers that only decode whole sequences: decodes a window that starts at a token already given out.

    The window moves on with every certain piece, so the cost is linear.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_given = 0
        """Tokens at the front of the window whose text is out."""

    def add(self, token_id: int) -> str:
        self._window.append(token_id)
        return self._new_text(final=False)

    def finish(self) -> str:
        return self._new_text(final=True)

    def _new_text(self, *, final: bool) -> str:
        given = self._decode(self._window[: self._num_given])
        text = self._decode(self._window)
        if len(text) <= len(given) or (text.endswith("\N{REPLACEMENT CHARACTER}") and not final):
            return ""
        del self._window[: self._num_given]
        self._num_given = len(self._window)
        return text[len(given) :]
