"""Finding the tokenizer of a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phyla.checkpoint.json_file import read_json_object
from phyla.errors import TokenizerError
from phyla.tokenizer.absent import AbsentTokenizer
from phyla.tokenizer.fast import NAMED_TOKENS, FastTokenizer
from phyla.tokenizer.tokenizer import Tokenizer

MAX_DEFINITION_BYTES = 256 * 1024 * 1024

_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model")


def open_tokenizer(folder: Path, owner: str, config: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The fast tokenizer where there is a `tokenizer.json`, else whatever transformers makes of the older files.

    Without any, and where it would take code from the checkpoint, one that says so when it is asked for text.

    Args:
        folder: the model folder.
        owner: the model's id, for messages.
        config: its tokenizer_config.json; the class it names doesn't matter where there is a tokenizer.json.
        vocab_size: of the model.

    Raises:
        TokenizerError: files that can't be read.
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        return FastTokenizer(_text(path, owner), _with_special_map(folder, owner, config))
    if any((folder / name).is_file() for name in _SLOW_FILES):
        from phyla.tokenizer.slow import convert_slow_tokenizer

        return convert_slow_tokenizer(folder, owner, config)
    if config.get("auto_map"):
        return AbsentTokenizer(
            owner,
            vocab_size,
            "its tokenizer is code, and code from a checkpoint is never run. Put a tokenizer.json beside its config.",
        )
    return AbsentTokenizer(
        owner,
        vocab_size,
        "it has no tokenizer.json. Fetch the model again (`phyla get` resumes), or put the file beside its config.",
    )


def _text(path: Path, owner: str) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_DEFINITION_BYTES + 1)
    if len(data) > MAX_DEFINITION_BYTES:
        raise TokenizerError(f"{path.name} of {owner} is larger than {MAX_DEFINITION_BYTES} bytes.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path.name} of {owner} isn't UTF-8 text (byte {error.start}).") from error


def _with_special_map(folder: Path, owner: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Older folders name their special tokens in a file of their own; the config wins where both speak."""
    path = folder / "special_tokens_map.json"
    if not path.is_file():
        return config
    extra = read_json_object(path, owner)
    named = {name: extra[name] for name in NAMED_TOKENS if extra.get(name) is not None and not config.get(name)}
    return {**config, **named}
