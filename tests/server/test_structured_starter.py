"""The official client's structured output against the starter: a real model and its own tokenizer and template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Literal

import openai
import pytest
from phyla.library import load_with
from phyla.plugins import discover
from phyla.registry import ModelsSettings, fetch_starter
from phyla.settings import flags_from_options, load_settings
from phyla.testing.tiny.template import CHAT_TEMPLATE
from phyla_server.embedded import EmbeddedServer
from phyla_server.served import served_by
from pydantic import BaseModel

ASKED: dict[str, Any] = {"model": "starter", "temperature": 0, "max_tokens": 120}
OPTIONS = {"proposer": "llguidance", "output_parser": "hermes", "grammar_jump": "on"}


class Answer(BaseModel):
    is_the_country_a_member_of_the_european_union: bool
    continent_that_the_country_belongs_to: Literal["Europe", "Asia"]
    most_common_language_of_the_country: Literal["French", "German", "English"]


class Weather(BaseModel):
    city: Literal["Rome", "Oslo"]
    in_celsius: bool


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    manager = discover()
    settings = load_settings(manager.settings_sections(), flags={**flags_from_options(OPTIONS), "--port": 0}, env={})
    # The starter's own template leaves tools out; the remedy that its refusal names is a template beside the file.
    fetched = fetch_starter(settings.section(ModelsSettings))
    starter = tmp_path_factory.mktemp("starter") / fetched.name
    starter.symlink_to(fetched)
    starter.with_name("chat_template.jinja").write_text(CHAT_TEMPLATE)
    with ExitStack() as stack:
        model = stack.enter_context(load_with(str(starter), manager, settings))
        server = stack.enter_context(EmbeddedServer(served_by(model, manager, settings), settings))
        yield stack.enter_context(openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=300))


def asks(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def test_an_answer_comes_as_its_class_in_fewer_steps_than_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(messages=asks("Tell me about France."), response_format=Answer, **ASKED)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    assert answer.usage is not None
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["speculation"]["tokensPerForward"] >= 1.5


def test_a_streamed_answer_comes_as_its_class_too(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        messages=asks("Tell me about France."), response_format=Answer, **ASKED
    ) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert {"content.delta", "content.done"} <= kinds
    assert isinstance(parsed, Answer)


def test_a_required_call_comes_with_its_arguments(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        messages=asks("How warm is it in Oslo?"),
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        **ASKED,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert set(json.loads(call.function.arguments)) == {"city", "in_celsius"}
