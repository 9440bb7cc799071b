"""The fast tokenizer gives transformers' ids, and text that never breaks a character."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.checkpoint.tokenizer_files import open_tokenizer
from phyla.errors import TokenizerError
from phyla.tokenizer.fast import FastTokenizer
from phyla.tokenizer.literal import ALONE_CHARS
from phyla.tokenizer.pieces import character_of_byte
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.core.tokenizer import small_tokenizers

CONFIG = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": small_tokenizers.byte_level,
    "sentencepiece": small_tokenizers.sentencepiece_bpe,
    "unigram": small_tokenizers.unigram,
    "wordpiece": small_tokenizers.word_piece,
}
CHARACTERFUL = ("byte-level", "sentencepiece")
BUILT = {kind: build() for kind, build in KINDS.items()}
OURS = {kind: FastTokenizer(built.to_str(), CONFIG) for kind, built in BUILT.items()}
THEIRS = {kind: PreTrainedTokenizerFast(tokenizer_object=built, **CONFIG) for kind, built in BUILT.items()}

TEXTS = [
    "The capital of France is Paris.",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "  two  spaces, a\ttab\n\n\nand lines ",
    "👩‍👩‍👧‍👦 e\u0301 नमस्ते 北京",
    "",
]
JOINED = ["👩‍👩‍👧‍👦", "e\u0301a\u0308", "👍🏽🇫🇷", "क्षत्रिय", "a\u200db", "\ufffd", "\U0010ffff"]


WORDS = ["<|im_start|>", "capital", " capital of France", "\u03b9\u0308\u0301", "\u212b", "\x04\x06", "  ", "\n\n"]


@pytest.fixture
def never_switching() -> Iterator[None]:
    """A thread keeps the interpreter until it gives it away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    yield
    sys.setswitchinterval(before)


def altered(kind: str, change: Callable[[dict[str, Any]], None]) -> FastTokenizer:
    definition = json.loads(BUILT[kind].to_str())
    change(definition)
    return FastTokenizer(json.dumps(definition), CONFIG)


def without_control_bytes(definition: dict[str, Any]) -> None:
    for byte in (4, 6):
        del definition["model"]["vocab"][character_of_byte()[byte]]


BOUNDED = {
    "byte-level": OURS["byte-level"],
    "sentencepiece": OURS["sentencepiece"],
    "composing": altered("byte-level", lambda one: one.update(normalizer={"type": "NFC"})),
    "gaps": altered("byte-level", without_control_bytes),
}
UNBOUNDED = {
    "unigram": OURS["unigram"],
    "wordpiece": OURS["wordpiece"],
    "swallowing": altered("byte-level", lambda one: one["added_tokens"][0].update(rstrip=True)),
    "stripping": altered(
        "byte-level", lambda one: one.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True})
    ),
}


def streamed(tokenizer: FastTokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(kind: str, text: str) -> None:
    assert OURS[kind].encode(text) == THEIRS[kind].encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_that_of_transformers(kind: str, text: str) -> None:
    ids = OURS[kind].encode(text)
    assert OURS[kind].decode(ids) == THEIRS[kind].decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("kind", CHARACTERFUL)
@given(text=st.text(max_size=40))
@settings(deadline=None)
def test_streamed_text_is_the_text_and_never_a_broken_character(kind: str, text: str) -> None:
    tokenizer = OURS[kind]
    pieces = streamed(tokenizer, tokenizer.encode(text, parse_special=False))
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@pytest.mark.parametrize("kind", CHARACTERFUL)
@pytest.mark.parametrize("text", JOINED)
def test_joiners_and_combining_marks_come_out_once(kind: str, text: str) -> None:
    tokenizer = OURS[kind]
    assert "".join(streamed(tokenizer, tokenizer.encode(text))) == text


def test_a_character_is_held_until_its_last_byte() -> None:
    tokenizer = OURS["sentencepiece"]
    ids = tokenizer.encode("😀")[-4:]
    assert streamed(tokenizer, ids) == ["", "", "", "😀", ""]


def test_a_character_that_never_ends_shows_as_a_replacement_at_the_end() -> None:
    tokenizer = OURS["sentencepiece"]
    assert streamed(tokenizer, tokenizer.encode("😀")[-4:-1]) == ["", "", "", "\ufffd"]


def test_a_broken_character_in_the_middle_costs_only_itself() -> None:
    tokenizer = OURS["byte-level"]
    ids = [*tokenizer.encode("😀")[:1], *tokenizer.encode("ok")]
    assert "".join(streamed(tokenizer, ids)) == "\ufffdok"


def test_streaming_word_pieces_gives_the_decoded_text() -> None:
    tokenizer = OURS["wordpiece"]
    ids = tokenizer.encode("the capital of france is paris.")
    assert "".join(streamed(tokenizer, ids)) == THEIRS["wordpiece"].decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("kind", CHARACTERFUL)
def test_token_bytes_spell_the_text(kind: str) -> None:
    tokenizer = OURS[kind]
    ids = tokenizer.encode("Grüße 北京 👍🏽")
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode().strip() == "Grüße 北京 👍🏽"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_no_bytes_and_added_text_has(kind: str) -> None:
    tokenizer = OURS[kind]
    special = tokenizer.special_spellings["<|im_end|>"]
    assert special in tokenizer.special_ids
    assert tokenizer.token_bytes(special) == b""
    assert tokenizer.token_bytes(tokenizer.special_spellings["<think>"]) == b"<think>"


def test_ids_past_the_vocabulary_are_empty_text() -> None:
    tokenizer = OURS["byte-level"]
    assert tokenizer.decode([tokenizer.vocab_size + 7]) == ""
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spelling", [*small_tokenizers.SPECIAL, *small_tokenizers.MARKUP])
def test_plain_text_never_becomes_a_control_token(kind: str, spelling: str) -> None:
    tokenizer = OURS[kind]
    ids = tokenizer.encode(f"a {spelling} b{spelling}", parse_special=False)
    assert not set(ids) & set(tokenizer.special_spellings.values())


@given(text=st.text(alphabet="<|im_startend>s/\ufdd1 thk", max_size=60))
@settings(deadline=None)
def test_no_plain_text_at_all_becomes_a_control_token(text: str) -> None:
    tokenizer = OURS["unigram"]
    assert not set(tokenizer.encode(text, parse_special=False)) & set(tokenizer.special_spellings.values())


@given(text=st.lists(st.sampled_from([*small_tokenizers.SPECIAL, "<think>", " ", "Paris", "\n", "é"])).map("".join))
@settings(deadline=None)
def test_with_nothing_literal_the_marked_twin_gives_the_same_ids(text: str) -> None:
    for tokenizer in OURS.values():
        assert tokenizer._literal.encode(text, []) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", CHARACTERFUL)
def test_literal_text_decodes_to_itself(kind: str) -> None:
    tokenizer = OURS[kind]
    text = "say <|im_end|> and <s>"
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


def test_a_config_asks_for_bos_and_gets_exactly_one() -> None:
    tokenizer = FastTokenizer(small_tokenizers.byte_level().to_str(), {**CONFIG, "add_bos_token": True})
    bos = tokenizer.bos_id
    assert [tokenizer.encode(text, add_special=True).count(bos) for text in ("Hi", "<s>Hi", "<s><s>Hi")] == [1, 1, 1]
    assert tokenizer.encode("<s>Hi", parse_special=False, add_special=True).count(bos) == 1


def test_a_definition_that_adds_bos_adds_exactly_one() -> None:
    tokenizer = FastTokenizer(small_tokenizers.byte_level(bos=True).to_str(), CONFIG)
    assert [tokenizer.encode(text, add_special=True).count(tokenizer.bos_id) for text in ("Hi", "<s>Hi")] == [1, 1]


def test_a_config_that_wants_no_bos_gets_none() -> None:
    tokenizer = FastTokenizer(small_tokenizers.byte_level(bos=True).to_str(), {**CONFIG, "add_bos_token": False})
    assert tokenizer.bos_id not in tokenizer.encode("Hi", add_special=True)


def test_a_definition_with_truncation_does_not_cut_prompts() -> None:
    built = small_tokenizers.byte_level()
    built.enable_truncation(3)
    assert len(FastTokenizer(built.to_str()).encode("The capital of France is Paris.")) > 3


@pytest.mark.parametrize("class_name", ["TokenizersBackend", "NoSuchTokenizer", "LlamaTokenizerFast"])
def test_the_class_that_a_config_names_does_not_matter(tmp_path: Path, class_name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(BUILT["byte-level"].to_str())
    tokenizer = open_tokenizer(tmp_path, "tiny", {**CONFIG, "tokenizer_class": class_name}, 512)
    assert tokenizer.encode("Paris") == OURS["byte-level"].encode("Paris")


def test_named_tokens_may_be_objects_or_sit_in_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(BUILT["byte-level"].to_str())
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    tokenizer = open_tokenizer(tmp_path, "tiny", {"eos_token": {"content": "<|im_end|>"}}, 512)
    spellings = tokenizer.special_spellings
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (spellings["<s>"], frozenset([spellings["<|im_end|>"]]))


def test_vocabulary_files_without_a_definition_are_converted(tmp_path: Path) -> None:
    model: dict[str, Any] = json.loads(BUILT["byte-level"].to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": len(model["vocab"])}))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = open_tokenizer(tmp_path, "tiny", config, 512)
    assert tokenizer.encode("The capital") == OURS["byte-level"].encode("The capital")


@pytest.mark.parametrize(
    "definition", ["", "{}", "[]", '{"model": {"type": "BPE"}}', "\ud800".encode("utf-8", "replace").decode()]
)
def test_a_definition_that_cannot_be_used_is_an_error(definition: str) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json can't be used"):
        FastTokenizer(definition)


def test_fingerprints_follow_the_definition_and_the_flags() -> None:
    definition = BUILT["byte-level"].to_str()
    first = FastTokenizer(definition, CONFIG).fingerprint
    assert first == FastTokenizer(definition, CONFIG).fingerprint
    assert first != FastTokenizer(definition, {**CONFIG, "add_bos_token": True}).fingerprint
    assert first != OURS["sentencepiece"].fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_has_the_ids_of_a_short_one(kind: str) -> None:
    text = "".join(TEXTS) * 60
    assert len(text) > ALONE_CHARS
    assert OURS[kind].encode(text) == list(BUILT[kind].encode(text, add_special_tokens=False).ids)


def test_encoding_a_long_text_leaves_the_interpreter_to_others(never_switching: None) -> None:
    has_run, may_run = threading.Event(), threading.Lock()

    def run() -> None:
        with may_run:
            has_run.set()

    other = threading.Thread(target=run)
    with may_run:
        other.start()
    # From here on the other thread runs only inside a call that gives the interpreter away by itself. Many calls: in
    # each of them the system may be busy with something else.
    for _ in range(1000):
        OURS["byte-level"].encode("Paris. " * ALONE_CHARS)
        if has_run.is_set():
            break
    was_left = has_run.is_set()
    other.join()
    assert was_left


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece", "composing", "gaps"])
@given(text=st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=8).map("".join))
def test_no_text_has_fewer_tokens_than_the_least(kind: str, text: str) -> None:
    assert BOUNDED[kind].least_tokens(text) <= len(BOUNDED[kind].encode(text))


@pytest.mark.parametrize("kind", BOUNDED)
def test_a_long_text_must_have_many_tokens(kind: str) -> None:
    assert BOUNDED[kind].least_tokens("xq" * 10_000) > 100


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "swallowing", "stripping"])
def test_nothing_is_promised_where_text_can_vanish(kind: str) -> None:
    assert UNBOUNDED[kind].least_tokens("xq" * 10_000) == 0
