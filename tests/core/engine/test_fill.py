"""Fill sources through the engine: what they check is the model's own, what they assert stands as it is."""

import json
from dataclasses import replace

import pytest
from phyla.draft.fill import FillSource
from phyla.draft.span import Span
from phyla.engine.proposing import ProposingOptions
from phyla.engine.trace import TraceSettings
from phyla.testing.engines import a_request, toy_spec

from tests.core.engine.test_drafting import LAYOUTS, NUM_TOKENS, PROMPT, SAMPLINGS, answers, noisy, wholes, with_drafts
from tests.core.engine.test_forced import WORDS, bound, constrained


class Source:
    """Proposes what `script` says; remembers what it was told."""

    def __init__(self, script, kind):
        self.script = script
        self.kind = kind
        self.observed = []

    def propose(self, history, room):
        tokens = tuple(self.script(list(history), room))
        return Span(tokens, kind=self.kind) if tokens else None

    def observe(self, step):
        self.observed.append(step)


def filling(spec, script, *, name="echo", kind="verified", asserted=None, opened=None, most_forced=0):
    """The spec with one fill source; `opened` collects what it opens."""

    def open_source(request):
        source = Source(script, kind)
        if opened is not None:
            opened.append(source)
        return source

    fill = FillSource(name, asserted=kind == "asserted" if asserted is None else asserted, open=open_source)
    fills = (*spec.proposing.fills, fill)
    return replace(spec, proposing=ProposingOptions(most_forced=most_forced, fills=fills))


def fill_of(heard):
    return heard.finished.usage.extras["fill"]


def once(tokens, after):
    """Proposes `tokens` where so many were emitted."""
    return lambda history, room: tokens[:room] if len(history) == len(PROMPT) + after else ()


@pytest.mark.parametrize("layers", LAYOUTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_checked_fill_gives_the_tokens_of_plain_decoding(layers, sampling):
    request = a_request("r", PROMPT, NUM_TOKENS, SAMPLINGS[sampling])
    spec = toy_spec(layers)
    [plain] = answers(spec, [request])

    [filled] = answers(filling(spec, noisy(wholes([request], [plain]))), [request])

    assert filled.ids == plain.ids
    report = filled.finished.usage.speculation
    assert report["method"] == "fill"
    assert fill_of(filled)["verified"] == report["accepted"] == report["bySource"]["echo"]["accepted"] > 0
    assert fill_of(filled)["asserted"] == 0


@pytest.mark.parametrize("layers", LAYOUTS)
def test_an_asserted_fill_stands_and_the_rest_follows_from_it(layers):
    request = a_request("r", PROMPT, NUM_TOKENS)
    spec = toy_spec(layers)
    [plain] = answers(spec, [request])
    asserted = [90, 91, 92, 93]

    [filled] = answers(filling(spec, once(asserted, after=5), kind="asserted"), [request])

    whole = [*plain.ids[:5], *asserted]
    [rest] = answers(spec, [a_request("rest", [*PROMPT, *whole], NUM_TOKENS - len(whole))])
    assert filled.ids == [*whole, *rest.ids]
    assert fill_of(filled) == {"proposals": 1, "verified": 0, "asserted": 4}
    assert filled.finished.usage.num_completion_tokens == NUM_TOKENS
    assert filled.finished.usage.speculation["drafted"] == 0
    assert filled.finished.usage.speculation["forwardsSaved"] == 4


def test_what_a_fill_asserted_beyond_a_stop_string_is_not_counted():
    spec = filling(toy_spec("FF"), once([90, 91, 92, 93], after=5), kind="asserted")
    [free] = answers(spec, [a_request("r", PROMPT, NUM_TOKENS)])
    stopping = a_request("r", PROMPT, NUM_TOKENS, stop=(free.tokens[5].text + free.tokens[6].text,))

    [filled] = answers(spec, [stopping])

    assert filled.finished.usage.num_completion_tokens == 7
    assert fill_of(filled) == {"proposals": 1, "verified": 0, "asserted": 2}
    report = filled.finished.usage.speculation
    assert report["targetCalls"] + report["forwardsSaved"] == 7


def test_a_row_that_is_filled_and_one_that_isnt_share_their_steps():
    requests = [a_request(name, [*PROMPT, index], NUM_TOKENS) for index, name in enumerate(("one", "other"))]
    spec = toy_spec("SRLF")
    alone = [answers(spec, [request])[0] for request in requests]
    script = noisy([wholes(requests, alone)[0]])

    together = answers(filling(spec, script), requests)

    assert [one.ids for one in together] == [one.ids for one in alone]


def test_a_source_hears_of_every_token_and_of_no_others_counts():
    opened = []
    spec, provider = with_drafts(toy_spec("FF"), lambda history, room: [1] * room)
    spec = filling(spec, once([90, 91], after=3), kind="asserted", opened=opened)

    [heard] = answers(spec, [a_request("r", PROMPT, NUM_TOKENS)])

    seen = [token for step in opened[0].observed for token in step.tokens]
    assert opened[0].observed[0].is_prefill
    assert seen == [*PROMPT, *heard.ids][: len(seen)]
    assert sum(step.num_drafted for step in opened[0].observed) == 0
    assert [token for step in provider.sources["r"].observed for token in step.tokens] == seen
    assert heard.finished.usage.speculation["method"] == "scripted"


def test_what_a_grammar_forces_goes_first_and_a_fill_is_cut_to_what_it_allows():
    spec = constrained(toy_spec("FF"))
    [plain] = answers(spec, [bound()])
    wild = filling(spec, lambda history, room: [55, 56][:room], kind="asserted", most_forced=3)

    [heard] = answers(wild, [bound()])

    assert heard.ids == plain.ids
    assert heard.ids in WORDS
    assert fill_of(heard)["asserted"] == 0
    assert heard.finished.usage.speculation["bySource"]["grammar"]["accepted"] > 0


def test_a_request_for_log_probabilities_does_without_what_asserts():
    request = a_request("r", PROMPT, NUM_TOKENS, SAMPLINGS["reported"])
    [plain] = answers(toy_spec("FF"), [request])

    [heard] = answers(filling(toy_spec("FF"), once([90], after=2), kind="asserted"), [request])

    assert heard.ids == plain.ids
    assert fill_of(heard)["refused"] == ["echo"]


def test_a_source_that_doesnt_say_so_cant_assert():
    request = a_request("r", PROMPT, NUM_TOKENS)
    [plain] = answers(toy_spec("FF"), [request])

    [heard] = answers(filling(toy_spec("FF"), once([90], after=2), kind="asserted", asserted=False), [request])

    assert heard.ids == plain.ids


@pytest.mark.parametrize("max_tokens", [1, 4, 6])
def test_the_cap_holds_inside_an_asserted_span(max_tokens):
    spec = filling(toy_spec("FF"), once([90, 91, 92, 93], after=3), kind="asserted")
    [heard] = answers(spec, [a_request("r", PROMPT, max_tokens)])
    assert len(heard.ids) == heard.finished.usage.num_completion_tokens == max_tokens


def test_a_source_that_fails_is_dropped_and_the_answer_stands():
    def fails(history, room):
        raise RuntimeError("boom")

    request = a_request("r", PROMPT, NUM_TOKENS)
    [plain] = answers(toy_spec("FF"), [request])

    [heard] = answers(filling(toy_spec("FF"), fails), [request])

    assert heard.ids == plain.ids
    assert fill_of(heard)["failed"] == ["echo"]


def test_the_trace_says_what_was_filled(capsys):
    spec = filling(toy_spec("FF"), once([90, 91], after=3), kind="asserted")
    answers(replace(spec, trace=TraceSettings(fill=True)), [a_request("r", PROMPT, NUM_TOKENS)])

    [line] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (line["kind"], line["event"], line["source"]) == ("fill", "entered", "echo")
    assert (line["proposed"], line["kept"]) == ([90, 91], 2)
