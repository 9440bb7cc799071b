"""Tool calls through the official client, in one piece and streamed."""

from __future__ import annotations

import json

import pytest
from phyla.testing.scripted.tokenizer import CharacterTokenizer
from phyla_dialects.gemma import GEMMA_SPECIALS

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


def allowing(*names, mode="auto"):
    listed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}


def test_only_allowed_tools_are_offered_and_called(serve):
    running = serve(CALLS, parser="hermes")

    choice = running.openai.chat.completions.create(
        model="m", messages=QUESTION, tools=TOOLS, tool_choice=allowing("weather")
    ).choices[0]

    (request,) = running.front.received
    assert [tool["function"]["name"] for tool in request.rendered.tools] == ["weather"]
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]


@pytest.mark.parametrize(
    "choice",
    [
        allowing("nuke"),
        allowing(),
        allowing("weather", mode="maybe"),
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["weather"]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]}},
    ],
)
def test_a_choice_of_allowed_tools_that_allows_none_is_refused(serve, choice):
    response = serve(parser="hermes").chat(tools=TOOLS, tool_choice=choice)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


def test_tools_that_the_template_leaves_out_are_refused_and_none_is_served(serve):
    running = serve(parser="hermes", template="{% for m in messages %}{{ m.content }}{% endfor %}")

    refused = running.chat(tools=TOOLS)
    hidden = running.chat(tools=TOOLS, tool_choice="none")

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "tools_unsupported"
    assert refused.json()["error"]["param"] == "tools"
    assert hidden.status_code == 200


def test_a_call_that_the_cap_cuts_short_ends_by_length(serve):
    running = serve(CALLS, parser="hermes")

    choice = running.chat(tools=TOOLS, max_tokens=20).json()["choices"][0]

    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("parser", "broken"),
    [
        ("hermes", """<tool_call>{"name": "weather", "arguments": {"city": 'x'}}</tool_call>"""),
        ("qwen", "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</tool_call>"),
        ("minicpm", '<function name="weather"><param name="city">Rome</function>'),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>Rome</tool_call>"),
        ("mistral", "[TOOL_CALLS]weather[ARGS]{'city': 'Rome'}"),
    ],
)
def test_a_call_that_breaks_off_is_text_where_it_can_be_taken_back_and_never_told_as_whole(serve, parser, broken):
    running = serve(f"Let me look.{broken} Oh.", parser=parser)

    whole = running.chat(tools=TOOLS).json()["choices"][0]
    streamed = streamed_choice(running)

    assert whole["message"] == {"role": "assistant", "content": f"Let me look.{broken} Oh."}
    assert whole["finish_reason"] == streamed.finish_reason == "stop"
    told = [call.function.arguments for call in streamed.message.tool_calls or ()]
    assert "".join([streamed.message.content, *told]).startswith("Let me look.")
    assert "Oh." in "".join([streamed.message.content, *told])


@pytest.mark.parametrize("num_samples", [1, 2])
def test_one_call_at_a_time_ends_the_answer_with_its_first_call(serve, tokenizer, num_samples):
    def endless(request, sample):
        yield from tokenizer.encode(CALLS)
        while True:
            yield from tokenizer.encode(" and so on")

    running = serve(endless, parser="hermes")
    asked = {"tools": TOOLS, "parallel_tool_calls": False, "n": num_samples, "logprobs": True}

    whole = running.chat(**asked).json()
    with running.openai.chat.completions.stream(model="m", messages=QUESTION, **asked) as stream:
        streamed = stream.get_final_completion()

    for choice in [*whole["choices"], *(one.model_dump() for one in streamed.choices)]:
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
        assert choice["message"]["content"] == "Let me look."
        assert choice["finish_reason"] == "tool_calls"
        said = "".join(entry["token"] for entry in choice["logprobs"]["content"])
        assert "and so on" not in said
    assert whole["usage"]["completion_tokens"] > 0
    assert running.front.wait_until_idle()


def test_markup_without_tools_is_text(serve):
    choice = serve("Use `<tool_call>` to call.", parser="hermes").chat().json()["choices"][0]

    assert choice["message"]["content"] == "Use `<tool_call>` to call."


def test_a_stop_string_flushes_through_the_tool_parser(serve):
    running = serve(CALLS + "STOP and more", parser="hermes")

    choice = running.chat(tools=TOOLS, stop="STOP").json()["choices"][0]

    assert len(choice["message"]["tool_calls"]) == 2
    assert choice["finish_reason"] == "tool_calls"


SPEAKS_GEMMA = CharacterTokenizer(special=GEMMA_SPECIALS)
SAID = {
    "hermes": CALLS,
    "qwen": 'Let me look.<tool_call>\n<function=weather>\n<parameter=city>\nRome "old" {town}\n</parameter>\n'
    "</function>\n</tool_call><tool_call>\n<function=forecast>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>",
    "minicpm": 'Let me look.<function name="weather"><param name="city">Rome &quot;old&quot; {town}</param></function>'
    '<function name="forecast"><param name="city">Rome</param><param name="days">3</param></function>',
    "glm": 'Let me look.<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome "old" {town}</arg_value>\n'
    "</tool_call><tool_call>forecast<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>"
    "</tool_call>",
    "gemma": 'Let me look.<|tool_call>call:weather{city:<|"|>Rome "old" {town}<|"|>}<tool_call|>'
    '<|tool_call>call:forecast{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
    "mistral": 'Let me look.[TOOL_CALLS]weather[ARGS]{"city": "Rome \\"old\\" {town}"}'
    '[TOOL_CALLS]forecast[ARGS]{"city": "Rome", "days": 3}',
}


def streamed_choice(running, **options):
    options = {"model": "m", "messages": QUESTION, "tools": TOOLS, **options}
    with running.openai.chat.completions.stream(**options) as stream:
        return stream.get_final_completion().choices[0]


@pytest.mark.parametrize("dialect", SAID)
def test_every_dialect_is_the_same_streamed_and_whole(serve, dialect):
    running = serve(SAID[dialect], parser=dialect, **({"speaks": SPEAKS_GEMMA} if dialect == "gemma" else {}))

    whole = running.openai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS).choices[0]
    streamed = streamed_choice(running)

    said = [
        [(call.function.name, json.loads(call.function.arguments)) for call in one.message.tool_calls]
        for one in (whole, streamed)
    ]
    assert said[0] == [("weather", {"city": 'Rome "old" {town}'}), ("forecast", {"city": "Rome", "days": 3})]
    assert said[1] == said[0]
    assert whole.message.content == streamed.message.content
    assert whole.message.content.strip() == "Let me look."
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"


@pytest.mark.parametrize("max_tokens", [5, 12, 20, *range(30, 48, 3)])
def test_a_call_cut_anywhere_is_the_same_streamed_and_whole(serve, max_tokens):
    cut = CALLS.removeprefix("Let me look.")
    running = serve(cut, speaks=CharacterTokenizer(), parser="hermes")

    whole = running.chat(tools=TOOLS, max_tokens=max_tokens).json()["choices"][0]
    body = {"messages": QUESTION, "tools": TOOLS, "max_tokens": max_tokens, "stream": True}
    lines = running.http.post("/v1/chat/completions", json=body).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]

    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    calls = whole["message"].get("tool_calls", [])
    assert "".join(delta.get("content") or "" for delta in deltas) == (whole["message"]["content"] or "") == ""
    assert "".join(part["arguments"] for part in parts) == "".join(call["function"]["arguments"] for call in calls)
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "length"


def test_a_call_without_arguments_is_an_empty_object_in_both(serve):
    running = serve("<tool_call>weather</tool_call>", parser="glm")

    whole = running.openai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS).choices[0]
    streamed = streamed_choice(running)

    assert [one.message.tool_calls[0].function.arguments for one in (whole, streamed)] == ["{}", "{}"]
