"""The tokenizer in a GGUF file's metadata, as a `tokenizer.json` definition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phyla.errors import TokenizerError

_CONTROL, _USER_DEFINED = 3, 4
_NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def _with_pattern(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**_BYTE_LEVEL, "use_regex": False}]}


_GPT2 = {"pre_tokenizer": {**_BYTE_LEVEL, "use_regex": True}}
_SINGLE_DIGITS = {
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**_BYTE_LEVEL, "use_regex": True}],
    }
}
_LLAMA3 = {"pre_tokenizer": _with_pattern(_LLAMA3_PATTERN), "ignore_merges": True}
_QWEN2 = {"pre_tokenizer": _with_pattern(_QWEN2_PATTERN), "normalizer": {"type": "NFC"}}

PRE_TOKENIZERS: Mapping[str, Mapping[str, Any]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}
"""By `tokenizer.ggml.pre`: how text is cut before merging. A wrong guess would give wrong ids without an error."""


def why_unread(metadata: Mapping[str, Any]) -> str | None:
    """Why the file's tokenizer can't be made from its metadata, or None where it can."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind is None:
        return "the file has no tokenizer. Use the model's safetensors form."
    if kind != "gpt2":
        return f"its tokenizer is of kind {kind!r:.40}; 'gpt2' (byte-level BPE) is read. Use its safetensors form."
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        return f"it cuts text by {pre!r:.40}; known pre-tokenizers are {known}. Use its safetensors form."
    return None


def tokenizer_definition(metadata: Mapping[str, Any], owner: str) -> str:
    """The text of a `tokenizer.json`, of a tokenizer that `why_unread` has nothing against.

    Raises:
        TokenizerError: no vocabulary, or lists that don't fit together.
    """
    pre = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]
    tokens = _texts(metadata, "tokenizer.ggml.tokens", owner)
    merges = _texts(metadata, "tokenizer.ggml.merges", owner)
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise TokenizerError(f"{owner} gives types for {len(types)} of its {len(tokens)} tokens.")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise TokenizerError(f"{owner} spells two of its tokens alike.")
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(token_id, tokens[token_id], special=token_type == _CONTROL)
            for token_id, token_type in enumerate(types)
            if token_type in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": pre.get("normalizer"),
        "pre_tokenizer": pre["pre_tokenizer"],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.get("ignore_merges", False),
            "vocab": vocabulary,
            "merges": [_pair(merge, owner) for merge in merges],
        },
    }
    return json.dumps(definition)


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Named special tokens and whether BOS is put in front, in `tokenizer_config.json`'s words."""
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    config: dict[str, Any] = {}
    for kind, name in _NAMED.items():
        token_id = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            config[name] = tokens[token_id]
    for flag in ("add_bos_token", "add_eos_token"):
        if isinstance(metadata.get(f"tokenizer.ggml.{flag}"), bool):
            config[flag] = metadata[f"tokenizer.ggml.{flag}"]
    return config


def eos_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end an answer: end of sequence, of turn and of message."""
    found = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return sorted({token_id for token_id in found if isinstance(token_id, int)})


def _texts(metadata: Mapping[str, Any], key: str, owner: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TokenizerError(f"{owner} has no {key}, so it can't encode text; prompts as token ids work.")
    return values


def _pair(merge: str, owner: str) -> list[str]:
    left, space, right = merge.partition(" ")
    if not space or not left or not right:
        raise TokenizerError(f"{owner} has a merge {merge[:80]!r} that isn't two pieces.")
    return [left, right]


def _added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}
