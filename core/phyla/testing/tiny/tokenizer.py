"""A small real tokenizer: byte-level BPE, trained in this process on a page of text."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from phyla.testing.tiny.template import CHAT_TEMPLATE

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
"""In id order, from 0; only the first three are special, the others are added text tokens that parsers look for."""

NUM_SPECIAL = 3

CORPUS = (
    "The quick brown fox jumps over the lazy dog while the slow green turtle watches from the river bank.",
    "A language model reads some text and says which word may come next; the words before decide the words after.",
    "Paris is the capital of France, Madrid is the capital of Spain, and Rome is the capital of Italy.",
    "def add(first, second):\n    return first + second\n\nprint(add(1, 2))",
    '{"name": "add", "arguments": {"first": 1, "second": 2}}',
    "There are 365 days in a year, 24 hours in a day, 60 minutes in an hour; 12345 67890.",
    "Ünïcödé text: naïve café, 你好世界, привет мир, γειά σου, 🙂🚀 and more.",
    "system user assistant tool: you are a helpful assistant. What is the weather like today? It is sunny and warm.",
    "She sells sea shells on the sea shore; the shells that she sells are sea shells, that is for sure.",
)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja. Ids stay below `vocab_size`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["id"] < NUM_SPECIAL
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(), indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
