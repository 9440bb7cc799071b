"""Every dialect reads its golden answers, however they are cut."""

import json
from dataclasses import replace
from itertools import groupby

import pytest
from phyla.output import ParserContext
from phyla.testing.parser_fuzz import ParsedCall, every_cut, parse, random_cuts
from phyla_dialects.catalog import DIALECTS

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


def tool(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = (
    tool("weather", city={"type": "string"}, days={"type": "integer"}, metric={"type": "boolean"}),
    tool("write", path={"type": "string"}, body={"type": "string"}, tags={"type": "array"}),
    tool("ping"),
)
THINKS = ParserContext(tools=TOOLS, reasoning_start="<think>", reasoning_end="</think>")
INSIDE = ParserContext(tools=TOOLS, starts_in_reasoning=True, reasoning_start="<think>", reasoning_end="</think>")
CHANNEL = ParserContext(tools=TOOLS, reasoning_start="<|channel>", reasoning_end="<channel|>")
NO_TOOLS = ParserContext(reasoning_start="<think>", reasoning_end="</think>")

CODE = 'def f():\n    return "<tool_call> & </b>"\n'


def plain(*texts):
    return [(text, False) for text in texts]


def gemma(text):
    """Text in which the sentinels are special tokens."""
    pieces = [text]
    for marker in ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"):
        pieces = [part for piece in pieces for part in split_around(piece, marker)]
    return [(piece, piece in {"<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"}) for piece in pieces]


def split_around(text, marker):
    if text == marker or marker not in text:
        return [text]
    before, _, after = text.partition(marker)
    return [part for part in (before, marker, *split_around(after, marker)) if part]


def merged(flat):
    """Neighbouring characters as one text, special tokens apart."""
    runs = groupby(enumerate(flat), key=lambda one: one[0] if one[1][1] else -1)
    return [("".join(text for _, (text, _) in run), place >= 0) for place, run in runs]


def call(name, is_complete=True, **arguments):
    return name, arguments, is_complete


GOLDEN = [
    ("plain", NO_TOOLS, plain("Hello, <b>you</b>"), "Hello, <b>you</b>", "", []),
    ("plain", NO_TOOLS, plain("<think>\nhm</think>\n\nYes"), "\n\nYes", "\nhm", []),
    ("plain", NO_TOOLS, plain("The tag `<think>` opens it"), "The tag `<think>` opens it", "", []),
    ("plain", INSIDE, plain("still at it</think>Done"), "Done", "still at it", []),
    ("plain", INSIDE, plain("cut short</thi"), "", "cut short</thi", []),
    ("hermes", NO_TOOLS, plain("Use `<tool_call>` so"), "Use `<tool_call>` so", "", []),
    (
        "hermes",
        THINKS,
        plain('On it.<tool_call>\n{"name": "weather", "arguments": {"city": "Bern}", "days": 2}}\n</tool_call>'),
        "On it.",
        "",
        [call("weather", city="Bern}", days=2)],
    ),
    (
        "hermes",
        THINKS,
        plain('<think>x</think><tool_call>{"name":"ping","arguments":{}}</tool_call>')
        + plain('<tool_call>{"arguments": "{\\"city\\": \\"Ulm\\"}", "name": "weather"}</tool_call>'),
        "",
        "x",
        [call("ping"), call("weather", city="Ulm")],
    ),
    (
        "hermes",
        THINKS,
        plain('<tool_call>{"function": {"name": "ping", "arguments": {}}}</tool_call> ok'),
        " ok",
        "",
        [call("ping")],
    ),
    (
        "hermes",
        THINKS,
        plain('<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'),
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        "",
        [],
    ),
    ("hermes", THINKS, plain("<tool_call>not json</tool_call>!"), "<tool_call>not json</tool_call>!", "", []),
    ("hermes", THINKS, plain("a < b and <tool_"), "a < b and <tool_", "", []),
    (
        "qwen",
        THINKS,
        plain("Sure.\n<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n")
        + plain(f"<parameter=body>\n{CODE}\n</parameter>\n")
        + plain('<parameter=tags>\n["x", 1]\n</parameter>\n</function>\n</tool_call>\n'),
        "Sure.\n\n",
        "",
        [call("write", path="a.py", body=CODE, tags=["x", 1])],
    ),
    (
        "qwen",
        THINKS,
        plain("<function=weather><parameter=city>2025</parameter><parameter=days>3</parameter></function></tool_call>"),
        "",
        "",
        [call("weather", city="2025", days=3)],
    ),
    (
        "qwen",
        THINKS,
        plain("<tool_call><function=write><parameter=body>a</parameter>b</parameter></function></tool_call>"),
        "",
        "",
        [call("write", body="a</parameter>b")],
    ),
    (
        "qwen",
        THINKS,
        plain("<tool_call><function=ping></function></tool_call>")
        + plain("<tool_call><function=ping></function></tool_call>"),
        "",
        "",
        [call("ping"), call("ping")],
    ),
    ("qwen", THINKS, plain("<function=nope>x</function>"), "<function=nope>x</function>", "", []),
    ("qwen", THINKS, plain("if a <function"), "if a <function", "", []),
    (
        "minicpm",
        THINKS,
        [
            ("<function", True),
            (' name="weather">', False),
            ("<param", True),
            (' name="city">', False),
            *plain("Z&amp;K</param>", '<param name="metric">true</param></function>'),
        ],
        "",
        "",
        [call("weather", city="Z&K", metric=True)],
    ),
    (
        "minicpm",
        THINKS,
        plain(f'<function name="write"><param name="body"><![CDATA[{CODE}</param>]]></param></function>')
        + plain('<function name="ping"></function>'),
        "",
        "",
        [call("write", body=CODE + "</param>"), call("ping")],
    ),
    (
        "glm",
        THINKS,
        plain("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n")
        + plain("<arg_key>days</arg_key><arg_value>2</arg_value>\n</tool_call>"),
        "",
        "",
        [call("weather", city="Bern", days=2)],
    ),
    ("glm", THINKS, plain("<tool_call>ping</tool_call>"), "", "", [call("ping")]),
    ("glm", THINKS, plain('<tool_call>{"name": "ping", "arguments": {}}</tool_call>'), "", "", [call("ping")]),
    (
        "gemma",
        CHANNEL,
        gemma('<|channel>thought\nhm<channel|>Ok<|tool_call>call:weather{city:<|"|>a}b<|"|>,days:1}<tool_call|>'),
        "Ok",
        "\nhm",
        [call("weather", city="a}b", days=1)],
    ),
    (
        "gemma",
        CHANNEL,
        gemma('<|tool_call>call:write{path:<|"|>p<|"|>,tags:[1,<|"|>x<|"|>,{a-b.c:true}]}<tool_call|>')
        + gemma("<|tool_call>call:ping{}<tool_call|>"),
        "",
        "",
        [call("write", path="p", tags=[1, "x", {"a-b.c": True}]), call("ping")],
    ),
    ("gemma", CHANNEL, gemma("<|channel>thought\n<channel|>Hi"), "Hi", "\n", []),
    ("gemma", CHANNEL, plain("<|tool_call>call:ping{}<tool_call|>"), "<|tool_call>call:ping{}<tool_call|>", "", []),
    (
        "mistral",
        THINKS,
        [
            ("[TOOL_CALLS]", True),
            *plain('[{"name": "ping", "arguments": {}}, '),
            *plain('{"name": "weather", "arguments": {"city": "X]"}}]'),
        ],
        "",
        "",
        [call("ping"), call("weather", city="X]")],
    ),
    (
        "mistral",
        THINKS,
        [
            ("[TOOL_CALLS]", True),
            *plain("ping"),
            ("[ARGS]", True),
            *plain("{}"),
            ("[TOOL_CALLS]", True),
            *plain('weather{"city": "Y"}'),
        ],
        "",
        "",
        [call("ping"), call("weather", city="Y")],
    ),
]

CASES = pytest.mark.parametrize(("dialect", "context", "fed", "content", "reasoning", "calls"), GOLDEN)


def read(answer):
    return [(one.name, json.loads(one.arguments), one.is_complete) for one in answer.calls]


@CASES
def test_golden_answer_is_read_whole(dialect, context, fed, content, reasoning, calls):
    answer = parse(BY_NAME[dialect], context, fed)
    assert (answer.content, answer.reasoning, read(answer)) == (content, reasoning, calls)


@CASES
def test_every_cut_reads_the_same(dialect, context, fed, content, reasoning, calls):
    whole = parse(BY_NAME[dialect], context, fed)
    assert {parse(BY_NAME[dialect], context, cut) for cut in every_cut(fed)} == {whole}


@CASES
def test_random_cuts_read_the_same(dialect, context, fed, content, reasoning, calls):
    whole = parse(BY_NAME[dialect], context, fed)
    assert {parse(BY_NAME[dialect], context, cut) for cut in random_cuts(fed, 200, seed=7)} == {whole}


@CASES
def test_every_truncation_drops_no_text_and_repeats_none(dialect, context, fed, content, reasoning, calls):
    flat = [
        (char, False) if not special else (text, True)
        for text, special in fed
        for char in ([text] if special else text)
    ]
    for length in range(len(flat)):
        whole = parse(BY_NAME[dialect], context, flat)
        answer = parse(BY_NAME[dialect], context, flat[:length])
        assert len(answer.calls) <= len(whole.calls) + 1
        assert all(not one.is_complete or json.loads(one.arguments) is not None for one in answer.calls)


@CASES
def test_an_answer_that_its_cap_cuts_anywhere_says_the_beginning_of_the_whole_one(
    dialect, context, fed, content, reasoning, calls
):
    flat = [
        (char, False) if not special else (text, True)
        for text, special in fed
        for char in ([text] if special else text)
    ]
    whole = parse(BY_NAME[dialect], context, flat)
    for length in range(len(flat)):
        answer = parse(BY_NAME[dialect], context, flat[:length], is_cut=True)
        # One character more: a lone `<` is likelier text than the beginning of a marker.
        assert whole.content.startswith((answer.content, answer.content[:-1]))
        assert whole.reasoning.startswith((answer.reasoning, answer.reasoning[:-1]))
        assert len(answer.calls) <= len(whole.calls)
        for cut, one in zip(answer.calls, whole.calls, strict=False):
            assert cut.name == one.name
            assert one.arguments.startswith((cut.arguments, cut.arguments[:-1]))
        cuts = random_cuts(merged(flat[:length]), 3, seed=length)
        assert {parse(BY_NAME[dialect], context, one, is_cut=True) for one in cuts} <= {answer}


def test_string_arguments_stream_before_the_call_ends():
    parser = BY_NAME["qwen"].create(THINKS)
    parser.feed("<tool_call><function=write><parameter=body>")
    pieces = parser.feed("a long text that goes on")
    assert "".join(piece.json_text for piece in pieces) == "a long text that goes on"


def test_a_call_cut_short_has_no_end():
    answer = parse(BY_NAME["hermes"], THINKS, plain('<tool_call>{"name": "write", "arguments": {"path": "/tmp'))
    assert answer.calls == (ParsedCall("write", '{"path": "/tmp', False),)


def test_broken_json_stops_where_it_breaks_and_the_rest_is_text():
    text = '<tool_call>{"name": "write", "arguments": {"path": \'x\'}}</tool_call>'
    answer = parse(BY_NAME["hermes"], THINKS, plain(text))
    assert answer.calls == (ParsedCall("write", '{"path": ', False),)
    assert answer.content == "'x'}}"


@pytest.mark.parametrize(
    ("dialect", "text", "content"),
    [
        ("qwen", "<function=ping>\nwell <parameter=a>1</parameter></function></tool_call> then", "\nwell a>1 then"),
        ("glm", "<tool_call>ping\n<arg_key>a</arg_key> x <arg_value>1</arg_value></tool_call> then", " x 1 then"),
        ("minicpm", '<function name="ping"> x <param name="a">1</param></function> then', ' x a">1 then'),
        ("hermes", '<tool_call>{"name": "ping", "arguments": {a}}</tool_call><tool_call>', "a}}<tool_call>"),
    ],
)
def test_what_follows_where_a_call_broke_is_text_without_the_calls_markers(dialect, text, content):
    assert parse(BY_NAME[dialect], THINKS, plain(text)).content == content
    taken_back = parse(BY_NAME[dialect], replace(THINKS, tells_whole_calls=True), plain(text))
    assert (taken_back.content, taken_back.calls) == (text, ())


@CASES
def test_calls_told_whole_are_the_whole_ones_however_they_are_cut(dialect, context, fed, content, reasoning, calls):
    context = replace(context, tells_whole_calls=True)
    whole = parse(BY_NAME[dialect], context, fed)
    assert read(whole) == [one for one in calls if one[2]]
    assert {parse(BY_NAME[dialect], context, cut) for cut in random_cuts(fed, 20, seed=3)} == {whole}


DEEP = "[" * 20_000


@pytest.mark.parametrize(
    ("dialect", "context", "fed"),
    [
        ("hermes", THINKS, plain('<tool_call>{"arguments": {"days": 1e999}, "name": "weather"}</tool_call>')),
        ("hermes", THINKS, plain('<tool_call>{"function": "ping", "arguments": {}}</tool_call>')),
        ("hermes", THINKS, plain(f'<tool_call>{{"arguments": {DEEP}, "name": "ping"}}</tool_call>')),
        ("hermes", THINKS, plain(f'<tool_call>{{"arguments": {DEEP}{"]" * 20_000}, "name": "ping"}}</tool_call>')),
        ("mistral", THINKS, [("[TOOL_CALLS]", True), *plain(f"[{DEEP}{']' * 20_000}]")]),
        ("mistral", THINKS, [("[TOOL_CALLS]", True), *plain('[{"name": "ping", "arguments": "{"}]')]),
        ("gemma", CHANNEL, gemma(f"<|tool_call>call:ping{{a:{DEEP}}}<tool_call|>")),
    ],
)
def test_a_call_that_is_no_json_a_client_could_read_is_text(dialect, context, fed):
    answer = parse(BY_NAME[dialect], context, fed)

    assert (answer.content, answer.calls) == ("".join(text for text, _ in fed), ())


@pytest.mark.parametrize("value", ["1e999", "NaN", "-Infinity", DEEP])
def test_a_value_that_is_no_json_becomes_a_string(value):
    text = f"<tool_call><function=weather><parameter=days>{value}</parameter></function></tool_call>"

    assert read(parse(BY_NAME["qwen"], THINKS, plain(text))) == [call("weather", days=value)]


def test_special_tokens_without_a_meaning_are_dropped():
    assert parse(BY_NAME["plain"], NO_TOOLS, [("Hi", False), ("<|im_end|>", True)]).content == "Hi"


def test_a_tag_in_prose_does_not_hold_back_the_answer():
    parser = BY_NAME["qwen"].create(THINKS)
    parser.feed("<function=")
    assert parser.feed("x" * 300)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|tool_call>' }}{{ '<tool_call|>' }}", "gemma"),
        ("<tool_call>{{ name }}<arg_key>", "glm"),
        ("<tool_call>\\n<function=example>", "qwen"),
        ('<function name="f"><param name="p">', "minicpm"),
        ("[TOOL_CALLS]", "mistral"),
        ("<tool_call>{{ tool_call.name }}", "hermes"),
        ("{{ messages }}", "plain"),
    ],
)
def test_template_chooses_the_dialect(template, name):
    matching = [dialect for dialect in DIALECTS if dialect.matches_template(template)]
    assert max(matching, key=lambda dialect: dialect.rank).name == name
