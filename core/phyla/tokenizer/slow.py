"""Tokenizers without a `tokenizer.json`, converted by transformers: imported here only, and only when needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phyla.errors import TokenizerError
from phyla.tokenizer.fast import FastTokenizer


def convert_slow_tokenizer(folder: Path, owner: str, config: Mapping[str, Any]) -> FastTokenizer:
    """What transformers builds from sentencepiece models or vocabulary files, without code from the checkpoint.

    Raises:
        TokenizerError: transformers can't read it, or its form has no fast counterpart.
    """
    from transformers import AutoTokenizer

    try:
        converted = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises whatever the files made it stumble over
        raise TokenizerError(
            f"The tokenizer of {owner} can't be read ({type(error).__name__}). Put a tokenizer.json beside it."
        ) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"The tokenizer of {owner} has no fast form; put a tokenizer.json beside it.")
    named = {name: str(text) for name, text in converted.special_tokens_map.items() if isinstance(text, str)}
    return FastTokenizer(backend.to_str(), {**config, **named})
