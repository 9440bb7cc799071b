"""What a chat request may say, and what is said about what it may not."""

from __future__ import annotations

import pytest
from phyla_server.keys import KeyRing

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def message_of(response):
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


def sent(running):
    return running.front.received[-1]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "hot", "temperature must be of type ('float', 'int')"),
        ("temperature", -0.1, "temperature must be at least 0"),
        ("top_p", 1.5, "top_p must be at most 1"),
        ("top_p", True, "top_p must be of type ('float', 'int')"),
        ("top_k", 1.5, "top_k must be of type int"),
        ("top_k", -1, "top_k must be at least 0"),
        ("min_p", 2, "min_p must be at most 1"),
        ("max_tokens", 0, "max_tokens must be at least 1"),
        ("max_tokens", -1, "max_tokens must be at least 1"),
        ("max_tokens", 1.5, "max_tokens must be of type int"),
        ("max_tokens", "5", "max_tokens must be of type int"),
        ("max_tokens", True, "max_tokens must be of type int"),
        ("max_completion_tokens", 0, "max_completion_tokens must be at least 1"),
        ("repetition_penalty", -1, "repetition_penalty must be at least 0"),
        ("repetition_context_size", -1, "repetition_context_size must be at least 0"),
        ("logprobs", "yes", "logprobs must be of type bool"),
        ("modalities", ["text", "audio"], "modalities must be ['text']: no model here answers in anything else"),
        ("modalities", "text", "modalities must be of type list"),
        ("top_logprobs", 21, "top_logprobs must be at most 20"),
        ("top_logprobs", -2, "top_logprobs must be at least 0"),
        ("top_logprobs", "3", "top_logprobs must be of type int"),
        ("top_logprobs", 1.5, "top_logprobs must be of type int"),
        ("logit_bias", [1], "logit_bias must be a dict of int to float"),
        ("logit_bias", {"x": 1}, "logit_bias must be a dict of int to float"),
        ("seed", "one", "seed must be of type int"),
        ("stream", "yes", "stream must be of type bool"),
        ("n", 0, "n must be at least 1"),
        ("n", 9, "n must be at most 8"),
        ("functions", [{"name": "f"}], "functions is the form that tools had before: send tools and tool_choice"),
        ("function_call", "auto", "function_call is the form that tools had before: send tools and tool_choice"),
        ("adapter", "mine", "adapter 'mine' isn't mounted; mounted: none"),
        ("adapter", ["mine"], "adapter must be of type str"),
        ("presence_penalty", -1e38, "presence_penalty must be at least -1e+30"),
        ("messages", [], "messages required"),
        ("messages", None, "messages required"),
        ("messages", "Hello", "messages required"),
        ("messages", ["Hello"], "messages[0] must be an object"),
        (
            "reasoning_effort",
            "extreme",
            "reasoning_effort must be one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh'",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_type_or_range(serve, field, value, message):
    running = serve()

    assert message_of(running.chat(**{field: value})) == message
    assert running.front.received == []


NULLABLE = (
    "stop tools tool_choice stream stream_options n logit_bias response_format user metadata store service_tier seed "
    "parallel_tool_calls logprobs top_logprobs temperature top_p max_tokens max_completion_tokens reasoning_effort "
    "chat_template_kwargs session_id presence_penalty frequency_penalty functions function_call modalities prediction"
)


def test_null_is_as_good_as_absent_and_fields_of_no_concern_are_ignored(serve):
    running = serve()
    others = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low", "wibble": [1]}

    assert running.chat(**dict.fromkeys(NULLABLE.split())).status_code == 200
    assert running.chat(**others).status_code == 200


@pytest.mark.parametrize("value", [2147483648, 10**18, 10**30])
def test_an_absurd_cap_is_no_error(serve, value):
    assert serve().chat(max_tokens=value).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "wizard", "content": "x"}],
        [{"content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "hologram"}]}],
        [{"role": "user", "content": [{"type": [], "text": "x"}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
        [{"role": "assistant", "tool_calls": "call"}],
    ],
)
def test_messages_that_make_no_prompt_are_one_kind_of_error(serve, messages):
    assert message_of(serve().chat(messages=messages)).startswith("prompt build failed: ")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}, "model has no vision sidecar"),
        ({"type": "input_audio", "input_audio": {}}, "model 'phyla/scripted' takes no audio: it has no audio tower"),
        ({"type": "video_url", "video_url": {}}, "model 'phyla/scripted' takes no video"),
    ],
)
def test_media_is_refused_and_never_answered_from_the_text_alone(serve, part, message):
    content = [{"type": "text", "text": "What is this?"}, part]

    assert message_of(serve().chat(messages=[{"role": "user", "content": content}])) == message


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "user", "content": "c"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
        [{"role": "tool", "tool_call_id": "nobodys", "content": None}],
        [{"role": "user"}],
    ],
)
def test_odd_but_usual_conversations_are_answered(serve, messages):
    assert serve().chat(messages=messages).status_code == 200


def test_a_tool_result_gets_the_name_of_its_call(serve):
    running = serve()
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}

    running.chat(
        messages=[
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
        ]
    )

    messages = sent(running).rendered.messages
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert messages[2]["name"] == "weather"


def test_a_model_without_a_template_says_so_and_still_completes(serve):
    running = serve(template=None)

    assert message_of(running.chat()).startswith("prompt build failed: ")
    assert running.complete().status_code == 200


@pytest.mark.parametrize("template", ["{% for x in range(10**12) %}{% endfor %}", "{{ raise_exception('no') }}"])
def test_a_template_that_loops_or_raises_is_a_400(serve, template):
    assert message_of(serve(template=template).chat()).startswith("prompt build failed: ")


def test_caps_go_from_the_newer_field_to_the_older(serve):
    running = serve()

    running.chat(max_tokens=5, max_completion_tokens=3)
    assert sent(running).max_tokens == 3
    running.chat(max_tokens=5)
    assert sent(running).max_tokens == 5
    running.chat()
    assert sent(running).max_tokens is None


def test_temperature_goes_from_request_to_flag_to_model_to_ours(serve):
    def temperature(body=None, flag=None, model=None):
        running = serve(facts={"sampling_defaults": model or {}}, temperature=flag)
        running.chat(**(body or {}))
        return sent(running).sampling.temperature

    assert temperature({"temperature": 0.1}, flag=0.2, model={"temperature": 0.3}) == 0.1
    assert temperature(flag=0.2, model={"temperature": 0.3}) == 0.2
    assert temperature(model={"temperature": 0.3}) == 0.3
    assert temperature() == 0.7


def test_turns_without_thinking_are_capped_unless_told_otherwise(serve):
    running = serve(facts={"sampling_defaults": {"temperature": 1.0}})

    running.chat(reasoning_effort="none")
    assert sent(running).sampling.temperature == 0.7
    running.chat(reasoning_effort="high")
    assert sent(running).sampling.temperature == 1.0
    running.chat(reasoning_effort="none", temperature=0.9)
    assert sent(running).sampling.temperature == 0.9


@pytest.mark.parametrize(
    ("body", "flag", "model", "thinks"),
    [
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, False, False, True),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}, "reasoning_effort": "none"}, True, True, False),
        ({"reasoning_effort": "low"}, False, False, True),
        ({"reasoning_effort": None}, True, False, True),
        ({}, False, True, False),
        ({}, None, True, True),
        ({}, None, None, None),
    ],
)
def test_thinking_goes_from_template_argument_to_effort_to_flag_to_model(serve, body, flag, model, thinks):
    running = serve(thinking=flag, facts={"default_thinking": model})

    running.chat(**body)

    assert sent(running).rendered.template_args.get("enable_thinking") is thinks


@pytest.mark.parametrize(("effort", "depth"), [("minimal", "low"), ("medium", "medium"), ("high", "xhigh")])
def test_effort_is_passed_on_as_a_depth(serve, effort, depth):
    running = serve()

    running.chat(reasoning_effort=effort)

    assert sent(running).rendered.template_args["reasoning_effort"] == depth


def test_an_answer_that_starts_inside_reasoning_is_reasoning(serve):
    running = serve("Let me see.</think>It is Paris.")

    message = running.chat(reasoning_effort="high").json()["choices"][0]["message"]

    assert message == {"role": "assistant", "content": "It is Paris.", "reasoning": "Let me see."}


def test_reasoning_that_is_cut_short_is_still_reasoning(serve):
    answer = serve("Let me see what I can do.").chat(reasoning_effort="high", max_tokens=4).json()["choices"][0]

    assert answer["message"]["content"] == ""
    assert "Let me see what I can do.".startswith(answer["message"]["reasoning"])
    assert answer["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            "required",
            "tool_choice can't be enforced: no grammar engine is active. "
            "Install one (phyla[xgrammar]) or choose one with --proposer.",
        ),
        (
            {"type": "function", "function": {"name": "unknown"}},
            "tool_choice names 'unknown', which isn't among the tools",
        ),
        ("sometimes", "tool_choice must be 'auto', 'none', 'required' or a named function"),
    ],
)
def test_a_choice_of_tool_that_cannot_be_kept_is_refused(serve, choice, message):
    assert message_of(serve().chat(tools=[WEATHER], tool_choice=choice)) == message


def test_tool_choice_none_hides_the_tools(serve):
    running = serve('<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>', parser="hermes")

    answer = running.chat(tools=[WEATHER], tool_choice="none").json()["choices"][0]

    assert sent(running).rendered.tools == ()
    assert "<tool_call>" in answer["message"]["content"]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("tools", [[5], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}], "x"])
def test_malformed_tools_are_refused(serve, tools):
    assert "tools" in message_of(serve().chat(tools=tools))


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"guided_regex": "a+"},
        {"guided_choice": ["yes", "no"]},
        {"guided_grammar": "root ::= 'a'"},
        {"structured_outputs": {"type": "object"}},
    ],
)
def test_structured_output_that_nothing_enforces_is_refused(serve, body):
    assert "can't be enforced" in message_of(serve().chat(**body))


def test_plain_text_format_is_no_constraint(serve):
    assert serve().chat(response_format={"type": "text"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "headers", "session"),
    [
        ({"session_id": "a", "prompt_cache_key": "b"}, {"x-session-affinity": "c", "session_id": "d"}, "a"),
        ({"session_id": 5, "prompt_cache_key": "b"}, {"x-session-affinity": "c"}, "b"),
        ({}, {"x-session-affinity": "c", "session_id": "d"}, "c"),
        ({}, {"session_id": "d"}, "d"),
        ({}, {}, None),
    ],
)
def test_the_session_is_the_first_that_is_named(serve, body, headers, session):
    running = serve()

    running.http.post("/v1/completions", json={"prompt": "a", **body}, headers=headers)

    assert sent(running).session_id == session


def test_a_session_is_closed_for_its_own_key_alone(serve):
    running = serve(keys=KeyRing(["user-key-1", "user-key-2"]))
    first, second = ({"x-api-key": key} for key in ("user-key-1", "user-key-2"))
    running.http.post("/v1/completions", json={"prompt": "a", "session_id": "s"}, headers=first)

    def close(headers):
        return running.http.post("/admin/cache/session/close", json={"session_id": "s"}, headers=headers).json()

    assert close(second) == {"closed": False}
    assert close(first) == {"closed": True}


def test_other_fields_reach_the_engine(serve):
    running = serve()

    running.chat(
        seed=-1,
        ignore_eos=True,
        min_tokens=3,
        max_tokens=4,
        stop=["END", "", 5],
        logit_bias={"7": -100},
        top_k=3,
        unknown_field={"x": 1},
        user="somebody",
    )

    request = sent(running)
    assert request.sampling.seed == -1
    assert request.sampling.ignore_eos
    assert request.sampling.min_tokens == 3
    assert request.sampling.logit_bias == {7: -100.0}
    assert request.stop == ("END",)
