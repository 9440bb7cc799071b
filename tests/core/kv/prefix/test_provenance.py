"""Exact tokens of generated text are used again, and only where they spell the prompt."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.kv.prefix import TokenMemory
from phyla.testing.tiny.tokenizer import write_tokenizer
from phyla.tokenizer.fast import FastTokenizer

texts = st.text(alphabet="the fox adds 123 é🙂\n", max_size=12)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512)
    return FastTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"))


def spelled_out(tokenizer: FastTokenizer, text: str) -> list[int]:
    """Ids of a text, cut letter by letter: what a model might generate and an encoder never would."""
    return [token_id for letter in text for token_id in tokenizer.encode(letter)]


def test_generated_ids_come_back_when_the_next_turn_begins_with_their_text(tokenizer: FastTokenizer) -> None:
    memory, generated = TokenMemory(tokenizer), spelled_out(tokenizer, "the quick fox")
    memory.remember("", generated)
    text = "the quick fox<|im_end|> and more"
    canonical = tokenizer.encode(text)
    assert list(canonical[: len(generated)]) != generated
    assert memory.resolve("", text, canonical) == (*generated, *tokenizer.encode("<|im_end|> and more"))


def test_edited_text_is_encoded_anew(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer)
    memory.remember("", spelled_out(tokenizer, "the quick fox"))
    canonical = tokenizer.encode("the quick dog and more")
    assert memory.resolve("", "the quick dog and more", canonical) == tuple(canonical)


def test_the_same_text_again_is_not_its_own_beginning(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer)
    memory.remember("", spelled_out(tokenizer, "the fox"))
    canonical = tokenizer.encode("the fox")
    assert memory.resolve("", "the fox", canonical) == tuple(canonical)


def test_the_longest_remembered_text_wins(tokenizer: FastTokenizer) -> None:
    memory, longer = TokenMemory(tokenizer), spelled_out(tokenizer, "the fox adds")
    memory.remember("", longer)
    memory.remember("", spelled_out(tokenizer, "the"))
    resolved = memory.resolve("", "the fox adds 1", tokenizer.encode("the fox adds 1"))
    assert resolved[: len(longer)] == tuple(longer)


def test_one_owners_text_is_not_anothers(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer)
    memory.remember("one", spelled_out(tokenizer, "the fox"))
    canonical = tokenizer.encode("the fox adds")
    assert memory.resolve("other", "the fox adds", canonical) == tuple(canonical)


def test_a_text_that_ends_inside_a_character_is_not_remembered(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer)
    cut = tokenizer.encode("fox 🙂")[:-1]
    memory.remember("", cut)
    text = tokenizer.decode(cut) + "more"
    assert memory.resolve("", text, [1, 2, 3]) == (1, 2, 3)


def test_the_oldest_text_is_forgotten_first(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer, max_texts=1)
    memory.remember("", spelled_out(tokenizer, "the fox"))
    memory.remember("", spelled_out(tokenizer, "adds"))
    canonical = tuple(tokenizer.encode("the fox adds"))
    assert memory.resolve("", "the fox adds", canonical) == canonical
    assert memory.resolve("", "adds 1", tokenizer.encode("adds 1"))[:4] == tuple(spelled_out(tokenizer, "adds"))


def test_a_text_over_the_limit_is_not_remembered(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer, max_characters=4)
    memory.remember("", spelled_out(tokenizer, "the fox"))
    canonical = tuple(tokenizer.encode("the fox adds"))
    assert memory.resolve("", "the fox adds", canonical) == canonical


def test_nothing_is_known_after_forgetting(tokenizer: FastTokenizer) -> None:
    memory = TokenMemory(tokenizer)
    memory.remember("", spelled_out(tokenizer, "the fox"))
    memory.forget()
    canonical = tuple(tokenizer.encode("the fox adds"))
    assert memory.resolve("", "the fox adds", canonical) == canonical


@settings(max_examples=100, deadline=None, derandomize=True)
@given(known=st.lists(texts, max_size=4), rest=texts)
def test_what_is_resolved_always_spells_the_prompt(tokenizer: FastTokenizer, known: list[str], rest: str) -> None:
    memory = TokenMemory(tokenizer)
    for text in known:
        memory.remember("", spelled_out(tokenizer, text))
    prompt = (known[0] if known else "") + rest
    resolved = memory.resolve("", prompt, tokenizer.encode(prompt))
    assert tokenizer.decode(resolved) == tokenizer.decode(tokenizer.encode(prompt)) == prompt
