"""What a model said comes back in the next turn with the tokens it was said in, however an encoder would cut it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from phyla.engine.answers import Answers, Completion
from phyla.request import Rendered, Request
from phyla.testing.engines import scripted_spec
from phyla.testing.reuse import reusing
from phyla.testing.scripted import Script, scripted_binding
from phyla.testing.tiny.template import CHAT_TEMPLATE
from phyla.testing.tiny.tokenizer import write_tokenizer
from phyla.tokenizer.fast import FastTokenizer
from phyla.tokenizer.render import PromptRenderer

QUESTION = {"role": "user", "content": "What is the weather like today?"}
SAID = "the quick fox is sunny and warm"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512)
    return FastTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def renderer(tokenizer: FastTokenizer) -> Iterator[PromptRenderer]:
    renderer = PromptRenderer(tokenizer, CHAT_TEMPLATE)
    yield renderer
    renderer.close()


def letters(tokenizer: FastTokenizer, text: str) -> list[int]:
    """Ids that no encoder would choose: letter by letter."""
    return [token_id for letter in text for token_id in tokenizer.encode(letter)]


def saying(prompt: Sequence[int], reply: Sequence[int]) -> Script:
    def script(history: Sequence[int]) -> int:
        return reply[(len(history) - len(prompt)) % len(reply)]

    return script


@contextmanager
def first_turn(tokenizer: FastTokenizer, rendered: Rendered) -> Iterator[tuple[Answers, Completion]]:
    """A reusing engine whose model has just said `SAID`, letter by letter."""
    reply = letters(tokenizer, SAID)
    binding = scripted_binding(tokenizer, saying(rendered.ids, reply))
    with reusing(scripted_spec(binding, tokenizer)) as (engine, _, _):
        answers = Answers(engine)
        yield answers, answers.wait(Request("first", rendered, max_tokens=len(reply), owner="one"))


def next_turn(renderer: PromptRenderer, answer: str) -> Rendered:
    said = {"role": "assistant", "content": answer}
    return renderer.render_chat([QUESTION, said, {"role": "user", "content": "And tomorrow?"}])


def test_an_answer_comes_back_with_the_tokens_it_was_said_in(
    tokenizer: FastTokenizer, renderer: PromptRenderer
) -> None:
    rendered = renderer.render_chat([QUESTION])
    with first_turn(tokenizer, rendered) as (answers, said):
        assert said.text == SAID
        turn = next_turn(renderer, said.text)
        assert turn.ids[: len(rendered.ids) + 3] != (*rendered.ids, *said.token_ids[:3]), "BPE would cut it otherwise"
        again = answers.wait(Request("second", turn, max_tokens=2, owner="one"))
    # The last token of an answer is never computed.
    assert again.usage.num_cached_tokens == len(rendered.ids) + len(said.token_ids) - 1
    assert again.usage.num_prompt_tokens > len(turn.ids)


def test_an_edited_answer_is_encoded_anew(tokenizer: FastTokenizer, renderer: PromptRenderer) -> None:
    rendered = renderer.render_chat([QUESTION])
    with first_turn(tokenizer, rendered) as (answers, said):
        turn = next_turn(renderer, said.text.replace("fox", "dog"))
        again = answers.wait(Request("second", turn, max_tokens=2, owner="one"))
    assert again.usage.num_prompt_tokens == len(turn.ids)
    assert len(rendered.ids) <= again.usage.num_cached_tokens <= len(rendered.ids) + 1


def test_another_owners_answer_is_not_recognised(tokenizer: FastTokenizer, renderer: PromptRenderer) -> None:
    rendered = renderer.render_chat([QUESTION])
    with first_turn(tokenizer, rendered) as (answers, said):
        turn = next_turn(renderer, said.text)
        again = answers.wait(Request("second", turn, max_tokens=2, owner="two"))
    assert again.usage.num_prompt_tokens == len(turn.ids)
    assert again.usage.num_cached_tokens == 0


def test_a_request_that_skips_reuse_keeps_its_own_tokens(tokenizer: FastTokenizer, renderer: PromptRenderer) -> None:
    rendered = renderer.render_chat([QUESTION])
    with first_turn(tokenizer, rendered) as (answers, said):
        turn = next_turn(renderer, said.text)
        again = answers.wait(Request("second", turn, max_tokens=2, owner="one", skip_prefix_reuse=True))
    assert again.usage.num_prompt_tokens == len(turn.ids)
