"""OpenAI's client against a server process with a scripted model, as an application uses both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).parents[2]
QUESTION = {"role": "user", "content": "Weather in Rome?"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
SAID = "Grüße aus 北京 🙂"


@pytest.fixture(scope="module")
def client(checkpoint):
    command = [sys.executable, "-m", "tests.server.scripted_process", checkpoint.reference]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        url = process.stdout.readline().strip()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
            yield client
        process.communicate()


def test_a_chat_is_answered_whole_and_streamed(client):
    ask = {"model": "m", "messages": [QUESTION]}

    message = client.chat.completions.create(**ask).choices[0].message
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))

    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert message.content == "".join(delta.content or "" for delta in deltas) == SAID
    assert message.reasoning == "".join(getattr(delta, "reasoning", "") for delta in deltas) == "A guest."
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens > 0


def test_a_text_is_completed_whole_and_streamed(client):
    whole = client.completions.create(model="m", prompt="Hello", logprobs=2)
    chunks = list(client.completions.create(model="m", prompt="Hello", stream=True))

    assert (
        whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == f"<think>A guest.</think>{SAID}"
    )
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens


def test_log_probabilities_come_whole_and_streamed(client):
    ask = {"model": "m", "messages": [QUESTION], "logprobs": True, "top_logprobs": 3}

    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True))

    entries = whole.choices[0].logprobs.content
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert len(entries) == whole.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert streamed == entries


def test_a_tool_is_called_and_its_result_goes_into_the_answer(client):
    ask = {"model": "m", "tools": [TOOL]}

    called = client.chat.completions.create(messages=[QUESTION], **ask).choices[0]
    with client.chat.completions.stream(messages=[QUESTION], **ask) as stream:
        streamed = stream.get_final_completion().choices[0]
    (call,) = called.message.tool_calls
    # The message goes back as the client made it, with all its nulls.
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    answer = client.chat.completions.create(messages=[QUESTION, called.message, result], **ask).choices[0]

    assert (called.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    assert streamed.message.content == called.message.content == "Let me look."
    assert (answer.message.content, answer.finish_reason) == ("It says: 21 degrees", "stop")
