"""Tool calls through the official client, in one piece and streamed."""

from __future__ import annotations

import json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
    for name in ("weather", "forecast")
]
CALLS = (
    'Let me look.<tool_call>{"name": "weather", "arguments": {"city": "Rome \\"old\\" {town}"}}</tool_call>\n'
    '<tool_call>{"name": "forecast", "arguments": {"city": "Rome", "days": 3}}</tool_call>'
)
QUESTION = [{"role": "user", "content": "Weather in Rome?"}]


def test_parallel_calls_come_back_as_calls(serve):
    running = serve(CALLS, parser="hermes")

    choice = running.openai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS).choices[0]

    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "forecast"]
    assert json.loads(calls[0].function.arguments) == {"city": 'Rome "old" {town}'}
    assert json.loads(calls[1].function.arguments) == {"city": "Rome", "days": 3}
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") for call in calls)
    assert choice.message.content.strip() == "Let me look."
    assert choice.finish_reason == "tool_calls"


def test_streamed_calls_are_the_same_calls(serve):
    running = serve(CALLS, parser="hermes")

    with running.openai.chat.completions.stream(model="m", messages=QUESTION, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    whole = running.openai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS)

    streamed, at_once = final.choices[0], whole.choices[0]
    assert [call.function.arguments for call in streamed.message.tool_calls] == [
        call.function.arguments for call in at_once.message.tool_calls
    ]
    assert [call.function.name for call in streamed.message.tool_calls] == ["weather", "forecast"]
    assert streamed.message.content == at_once.message.content
    assert streamed.finish_reason == "tool_calls"


def test_content_is_null_when_there_are_only_calls(serve):
    running = serve('<tool_call>{"name": "weather", "arguments": {}}</tool_call>', parser="hermes")

    message = running.chat(tools=TOOLS).json()["choices"][0]["message"]

    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}


def test_an_unknown_tool_stays_text(serve):
    text = '<tool_call>{"name": "nuke", "arguments": {}}</tool_call>'

    choice = serve(text, parser="hermes").chat(tools=TOOLS).json()["choices"][0]

    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


def test_a_call_that_the_cap_cuts_short_ends_by_length(serve):
    running = serve(CALLS, parser="hermes")

    choice = running.chat(tools=TOOLS, max_tokens=20).json()["choices"][0]

    assert choice["finish_reason"] == "length"


def test_markup_without_tools_is_text(serve):
    choice = serve("Use `<tool_call>` to call.", parser="hermes").chat().json()["choices"][0]

    assert choice["message"]["content"] == "Use `<tool_call>` to call."


def test_a_stop_string_flushes_through_the_tool_parser(serve):
    running = serve(CALLS + "STOP and more", parser="hermes")

    choice = running.chat(tools=TOOLS, stop="STOP").json()["choices"][0]

    assert len(choice["message"]["tool_calls"]) == 2
    assert choice["finish_reason"] == "tool_calls"
