"""What a dialect writes as a call its own parser reads as that call, whatever path the grammar allows."""

from __future__ import annotations

import json

import numpy as np
import phyla_llguidance
import pytest
from phyla.draft.compiling import ConstraintCompiler
from phyla.errors import ConstraintError
from phyla.output import CalledTool, ParserContext, ToolArgumentsDelta, ToolCallEnd, ToolCallStart
from phyla.output.structure import Structure, Triggered, sequence
from phyla.request import ConstraintSpec
from phyla.sampling.token_mask import allows
from phyla.testing.scripted import CharacterTokenizer
from phyla_dialects.catalog import DIALECTS

SPEAKING = {one.name: one for one in DIALECTS if one.call_syntax is not None}
PARAMETERS = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "dark green"]},
        "size": {"type": "integer", "minimum": -9, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "maybe": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    },
    "required": ["color", "flags"],
    "additionalProperties": False,
}
SPECIALS = {"gemma": ["<|tool_call>", "<tool_call|>", '<|"|>'], "mistral": ["[TOOL_CALLS]", "[ARGS]"]}


def tokenizer_of(name):
    return CharacterTokenizer(special=SPECIALS.get(name, []))


@pytest.fixture
def opens():
    compilers = []

    def opened(root, tokenizer):
        engines = phyla_llguidance.phyla_proposers(None)
        compilers.append(ConstraintCompiler(engines, tokenizer, tokenizer.eos_ids))
        spec = ConstraintSpec("structural_tag", Structure(root).to_source())
        return compilers[-1].compile(spec).compiled.open()

    yield opened
    for one in compilers:
        one.close()


def tool(parameters):
    return {"type": "function", "function": {"name": "paint", "parameters": parameters}}


def written(dialect, parameters, template=None):
    syntax = dialect.call_syntax(template)
    return sequence(syntax.trigger, syntax.call(CalledTool("paint", json.dumps(parameters))))


def read(dialect, tokenizer, ids, parameters):
    """(text, calls) that the parser finds; a call is (name, arguments, is complete)."""
    parser = dialect.create(ParserContext(tools=(tool(parameters),)))
    pieces = []
    for token_id in ids:
        pieces += parser.feed(tokenizer.decode([token_id]), token_id in tokenizer.special_ids)
    pieces += parser.finish()
    names = [piece.name for piece in pieces if isinstance(piece, ToolCallStart)]
    arguments = "".join(piece.json_text for piece in pieces if isinstance(piece, ToolArgumentsDelta))
    num_ends = sum(isinstance(piece, ToolCallEnd) for piece in pieces)
    text = "".join(getattr(piece, "text", "") for piece in pieces)
    return text.strip(), names, arguments, num_ends


def walk(matcher, tokenizer, seed):
    """Random tokens that the grammar allows, until it is satisfied."""
    draw = np.random.default_rng(seed)
    ids = []
    while not matcher.is_satisfied:
        assert len(ids) < 1000, "the grammar doesn't end"
        mask = matcher.mask()
        allowed = [one for one in range(tokenizer.vocab_size) if allows(mask, one) and one not in tokenizer.eos_ids]
        ids.append(int(draw.choice(allowed)))
        matcher.accept(ids[-1])
    return ids


@pytest.mark.parametrize("name", SPEAKING)
@pytest.mark.parametrize("seed", range(8))
def test_a_written_call_is_read_as_that_call(opens, name, seed):
    tokenizer = tokenizer_of(name)
    ids = walk(opens(written(SPEAKING[name], PARAMETERS), tokenizer), tokenizer, seed)

    text, names, arguments, num_ends = read(SPEAKING[name], tokenizer, ids, PARAMETERS)

    assert (text, names, num_ends) == ("", ["paint"], 1), tokenizer.decode(ids)
    value = json.loads(arguments)
    assert {"color", "flags"} <= set(value) <= set(PARAMETERS["properties"])
    assert value["color"] in ("red", "dark green")
    assert all(isinstance(flag, bool) for flag in value["flags"])
    assert -9 <= value.get("size", 0) <= 99


def test_mistrals_newer_templates_name_the_function_first(opens):
    tokenizer = tokenizer_of("mistral")
    root = written(SPEAKING["mistral"], PARAMETERS, template="[TOOL_CALLS]name[ARGS]{}")
    ids = walk(opens(root, tokenizer), tokenizer, 0)
    assert tokenizer.decode(ids).startswith("[TOOL_CALLS]paint[ARGS]{")
    assert read(SPEAKING["mistral"], tokenizer, ids, PARAMETERS)[1] == ["paint"]


TEXT = {
    "hermes": '<tool_call>\n{"name": "paint", "arguments": {"note": "a < b & \\"c\\""}}\n</tool_call>',
    "qwen": '<tool_call>\n<function=paint>\n<parameter=note>\na < b & "c"\n</parameter>\n</function>\n</tool_call>',
    "glm": '<tool_call>paint\n<arg_key>note</arg_key>\n<arg_value>a < b & "c"</arg_value>\n</tool_call>',
    "minicpm": '<function name="paint"><param name="note">a "c"</param></function>',
    "gemma": '<|tool_call>call:paint{note:<|"|>a < b & "c"<|"|>}<tool_call|>',
    "mistral": '[TOOL_CALLS][{"name": "paint", "arguments": {"note": "a"}}]',
}
NOTE = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}


@pytest.mark.parametrize("name", TEXT)
def test_free_text_is_allowed_in_the_dialects_own_spelling(opens, name):
    tokenizer = tokenizer_of(name)
    parameters = NOTE
    matcher = opens(written(SPEAKING[name], parameters), tokenizer)
    for token_id in tokenizer.encode(TEXT[name]):
        matcher.accept(token_id)
    assert matcher.is_satisfied
    assert read(SPEAKING[name], tokenizer, tokenizer.encode(TEXT[name]), parameters)[1] == ["paint"]


@pytest.mark.parametrize("name", ["qwen", "glm", "minicpm", "gemma"])
def test_raw_text_cant_keep_to_a_pattern(name):
    with pytest.raises(ConstraintError, match="'pattern'"):
        written(SPEAKING[name], {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}})


@pytest.mark.parametrize("name", SPEAKING)
def test_free_text_turns_into_a_call_at_the_trigger_only(opens, name):
    tokenizer = tokenizer_of(name)
    syntax = SPEAKING[name].call_syntax(None)
    root = Triggered(syntax.trigger, syntax.call(CalledTool("paint", json.dumps(PARAMETERS))))
    matcher = opens(root, tokenizer)
    [end] = tokenizer.eos_ids

    for token_id in tokenizer.encode("Let me see <tool"):
        matcher.accept(token_id)
    free = matcher.mask()
    for token_id in tokenizer.encode(" no. " + syntax.trigger):
        matcher.accept(token_id)

    assert allows(free, end)
    assert not allows(matcher.mask(), end)
    assert walk_to_end(matcher, tokenizer)


def walk_to_end(matcher, tokenizer):
    """Whether random tokens that are no free text lead to where the answer may end."""
    draw = np.random.default_rng(0)
    [end] = tokenizer.eos_ids
    for _ in range(1000):
        mask = matcher.mask()
        if allows(mask, end):
            return True
        allowed = [one for one in range(tokenizer.vocab_size) if allows(mask, one)]
        matcher.accept(int(draw.choice(allowed)))
    return False
