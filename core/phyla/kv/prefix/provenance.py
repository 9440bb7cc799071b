"""Remembering which tokens a text was made of, since encoding the text again may cut it differently."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.request import Rendered
    from phyla.tokenizer.tokenizer import Tokenizer

MAX_CHARACTERS = 1 << 21
REPLACEMENT = "\ufffd"


class TokenMemory:
    """Texts of finished conversations and their exact ids, per owner. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, max_texts: int = 16, max_characters: int = MAX_CHARACTERS) -> None:
        self._tokenizer = tokenizer
        self._max_texts = max_texts
        self._max_characters = max_characters
        self._owners: dict[str, OrderedDict[str, tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def remember(self, owner: str, token_ids: Sequence[int]) -> None:
        """Note what a finished row computed, prompt and answer together.

        A text that ends inside a character is not remembered: its spelling isn't certain.
        """
        text = self._tokenizer.decode(token_ids)
        if not text or text.endswith(REPLACEMENT) or len(text) > self._max_characters:
            return
        with self._lock:
            texts = self._owners.setdefault(owner, OrderedDict())
            texts[text] = tuple(token_ids)
            texts.move_to_end(text)
            while len(texts) > self._max_texts or sum(map(len, texts)) > self._max_characters:
                texts.popitem(last=False)
            if not texts:
                del self._owners[owner]

    def resolve(self, owner: str, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The ids to compute for a rendered prompt.

        Args:
            owner: whose memory is asked.
            text: the rendered prompt, special tokens spelled out.
            token_ids: what encoding it gave.

        Returns:
            The remembered ids of the longest text that the prompt strictly begins with, then the rest encoded anew;
            or `token_ids` if nothing is remembered, if they begin with the remembered ids anyway, or if the result
            would not spell the prompt.
        """
        canonical = tuple(token_ids)
        with self._lock:
            texts = dict(self._owners.get(owner, {}))
        known = max((one for one in texts if len(one) < len(text) and text.startswith(one)), key=len, default=None)
        if known is None:
            return canonical
        remembered = texts[known]
        if canonical[: len(remembered)] == remembered:
            return canonical
        rest = self._tokenizer.encode(text[len(known) :], add_special=False)
        resolved = (*remembered, *rest)
        return resolved if self._tokenizer.decode(resolved) == text else canonical

    def recognised(self, owner: str, rendered: Rendered) -> Rendered:
        """The prompt with remembered ids where it begins with a remembered text; unchanged otherwise.

        A prompt with media stays as it is: its spans are counted in tokens.
        """
        if rendered.text is None or rendered.media:
            return rendered
        ids = self.resolve(owner, rendered.text, rendered.ids)
        if ids == rendered.ids:
            return rendered
        return replace(rendered, ids=ids, stable_boundary=self._moved_boundary(rendered, ids))

    def _moved_boundary(self, rendered: Rendered, ids: tuple[int, ...]) -> int | None:
        """The stable boundary counted in the new ids, or None if they have no edge there."""
        if rendered.stable_boundary is None:
            return None
        moved = rendered.stable_boundary + len(ids) - len(rendered.ids)
        stable_text = self._tokenizer.decode(rendered.ids[: rendered.stable_boundary])
        return moved if moved > 0 and self._tokenizer.decode(ids[:moved]) == stable_text else None

    def forget(self) -> None:
        """Drop everything."""
        with self._lock:
            self._owners.clear()
