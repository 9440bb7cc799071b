"""Small real tokenizers, trained here: byte-level and sentencepiece-style, with special and other added tokens."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The capital of France is Paris. user assistant system tool think message content name",
    "A grammar, a prefix and a window; 1234567890 numbers and more words in it.",
    "Grüße aus München, dans l'été naïf. 北京 は 日本語 です. Привет мир",
    '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}',
]
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<pad>"]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
"""Added and not special, as Qwen has them."""


def byte_level(bos: bool = False) -> Tokenizer:
    """GPT-2's kind. `bos` has the definition itself put `<s>` in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _add_tokens(tokenizer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Llama 2's kind: `▁` for a space, a dummy one in front, bytes for what the vocabulary lacks."""
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", *byte_pieces], show_progress=False)
    trained.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    model = models.BPE(**_vocab_and_merges(trained), unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _add_tokens(tokenizer)
    return tokenizer


def unigram() -> Tokenizer:
    """Sentencepiece's unigram with the control tokens in the vocabulary, where plain text could match them."""
    scores = [("<unk>", 0.0), *((token, -1.0) for token in SPECIAL), ("▁", -3.0)]
    letters = sorted({letter for line in CORPUS for letter in line if letter != " "} | set("<|>/_"))
    tokenizer = Tokenizer(models.Unigram([*scores, *((letter, -4.0) for letter in letters)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    _add_tokens(tokenizer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind, which has no bytes per piece."""
    pieces = ["[UNK]", "the", "capital", "of", "par", "##is", "##s", ".", "is", "france"]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    _add_tokens(tokenizer)
    return tokenizer


def _add_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])


def _vocab_and_merges(tokenizer: Tokenizer) -> dict[str, object]:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}
