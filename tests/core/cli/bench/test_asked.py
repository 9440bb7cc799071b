"""Prompts of a load: random ones, and a file's."""

from __future__ import annotations

from pathlib import Path

import pytest
from phyla.cli.bench.asked import Asked, Endpoint, RandomPrompts, read_prompts
from phyla.errors import UsageError


def read(tmp_path: Path, text: str, endpoint: Endpoint = "completions", count: int = 3) -> list[Asked]:
    path = tmp_path / "prompts.txt"
    path.write_text(text, "utf-8")
    return read_prompts(path, count, endpoint, 7)


def test_random_prompts_are_the_same_for_the_same_seed() -> None:
    prompts = RandomPrompts(20, 5)
    assert prompts.draw(3, "completions", 1) == prompts.draw(3, "completions", 1)
    assert prompts.draw(3, "completions", 1) != prompts.draw(3, "completions", 2)


def test_lengths_keep_to_their_range_and_use_it() -> None:
    drawn = RandomPrompts(100, 10, range_ratio=0.2).draw(300, "completions", 0)
    assert {len(one.prompt) for one in drawn} == set(range(80, 121))
    assert {one.num_output for one in drawn} == {8, 9, 10, 11, 12}
    assert all(one.num_input == len(one.prompt) for one in drawn)


def test_ids_keep_to_their_limits() -> None:
    [one] = RandomPrompts(500, 1, ids=(7, 9)).draw(1, "completions", 0)
    assert set(one.prompt) == {7, 8, 9}


def test_a_random_chat_is_words() -> None:
    [one] = RandomPrompts(5, 1).draw(1, "chat", 0)
    assert isinstance(one.prompt, str)
    assert len(one.prompt.split()) == 5
    assert one.body("chat", "m", {})["messages"] == [{"role": "user", "content": one.prompt}]


def test_a_body_streams_and_asks_for_usage() -> None:
    body = Asked([5, 6], 9).body("completions", "m", {"ignore_eos": True})
    assert body["prompt"] == [5, 6]
    assert (body["model"], body["max_tokens"], body["stream"], body["ignore_eos"]) == ("m", 9, True, True)
    assert body["stream_options"] == {"include_usage": True}


def test_a_files_lines_are_text_or_json_and_go_round(tmp_path: Path) -> None:
    text = 'Just text.\n\n{"prompt": "In JSON.", "output_tokens": 4}\n{"prompt": [5, 6]}\n'
    asked = read(tmp_path, text, count=4)
    assert [one.prompt for one in asked] == ["Just text.", "In JSON.", [5, 6], "Just text."]
    assert [one.num_output for one in asked] == [7, 4, 7, 7]


def test_a_chat_takes_messages_and_texts(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    text = '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]}\nHello'
    asked = read(tmp_path, text, "chat", 2)
    assert asked[0].body("chat", "m", {})["messages"] == messages
    assert asked[1].body("chat", "m", {})["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("text", "endpoint", "message"),
    [
        ("", "completions", "has no prompts"),
        ("ok\n{broken", "completions", "line 2 isn't JSON"),
        ("{}", "completions", "isn't a prompt"),
        ('{"prompt": 5}', "completions", "isn't a prompt"),
        ('{"prompt": "a", "output_tokens": 0}', "completions", "isn't a prompt"),
        ('{"messages": [{"role": "user"}]}', "completions", "has messages; use the other --endpoint"),
        ('{"prompt": [5]}', "chat", "has token ids; use the other --endpoint"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(
    tmp_path: Path, text: str, endpoint: Endpoint, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text, endpoint)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        read_prompts(tmp_path / "absent", 1, "chat", 1)
