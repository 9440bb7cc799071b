"""What a constraint forces, proposed several tokens to a step: the same tokens, in fewer steps."""

import json
from dataclasses import replace

import pytest
from phyla.engine.proposing import ProposingOptions
from phyla.engine.trace import TraceSettings
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec, Finished, SamplingParams
from phyla.testing.constraint import WordList
from phyla.testing.drafting import ScriptedProvider
from phyla.testing.engines import a_request, running, toy_spec

from tests.core.engine.test_drafting import LAYOUTS, PROMPT, SAMPLINGS, answers, noisy, with_drafts

HEAD, MIDDLE = list(range(20, 30)), list(range(40, 48))
WORDS = [[*HEAD, choice, *MIDDLE, end] for choice in (60, 61, 62) for end in (70, 71)]
SPEC = ConstraintSpec("words", "")


def constrained(spec, words=WORDS):
    made = WordList(words, eos_ids=spec.facts.eos_ids, vocab_size=spec.facts.vocab_size)
    return replace(spec, open_constraint=lambda request: made.open() if request.constraint else None)


def forcing(spec, most=3, **options):
    return replace(spec, proposing=ProposingOptions(most_forced=most, **options))


def bound(name="r", sampling="greedy", **fields):
    return a_request(name, PROMPT, fields.pop("max_tokens", 40), SAMPLINGS[sampling], constraint=SPEC, **fields)


@pytest.mark.parametrize("layers", LAYOUTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_forced_tokens_come_several_to_a_step_and_stay_the_same(layers, sampling):
    spec = constrained(toy_spec(layers))
    request = bound(sampling=sampling)
    [plain] = answers(spec, [request])

    [forced] = answers(forcing(spec), [request])

    assert forced.ids == plain.ids
    assert forced.ids in WORDS
    assert forced.finished.usage.lane == "serial+spec"
    report = forced.finished.usage.speculation
    assert report["method"] == "grammar"
    assert report["drafted"] == report["accepted"] > 0
    assert report["bySource"] == {"grammar": {"drafted": report["drafted"], "accepted": report["accepted"]}}
    # Twenty tokens: stretches of 10, 8 and 1 forced ones; a step can have three of them beside its own.
    assert report["rounds"] <= 10
    assert report["tokensPerForward"] == len(forced.ids) / report["rounds"]
    assert [one.logprobs and one.logprobs.top[0][0] for one in forced.tokens] == [
        one.logprobs and one.logprobs.top[0][0] for one in plain.tokens
    ]


def test_in_company_each_row_gets_what_it_gets_alone():
    spec = constrained(toy_spec("SRLF"))
    requests = [bound(name, name) for name in SAMPLINGS] + [a_request("free", PROMPT, 24, SAMPLINGS["seeded"])]
    alone = [answers(spec, [request])[0] for request in requests]

    together = answers(forcing(spec), requests)

    assert [one.ids for one in together] == [one.ids for one in alone]
    assert together[-1].finished.usage.speculation is None


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_forced_spans_come_before_the_draft_method_and_leave_it_the_rest(sampling):
    spec = constrained(toy_spec("FF"))
    requests = [bound(sampling=sampling), a_request("free", PROMPT, 24, SAMPLINGS[sampling])]
    plain = answers(spec, requests)
    script = noisy([[*PROMPT, *one.ids] for one in plain])

    drafted = answers(forcing(with_drafts(spec, script)[0]), requests)

    assert [one.ids for one in drafted] == [one.ids for one in plain]
    report = drafted[0].finished.usage.speculation
    assert report["method"] == "scripted"
    assert 0 < report["bySource"]["grammar"]["accepted"] <= report["accepted"]
    assert "bySource" not in drafted[1].finished.usage.speculation


def test_a_method_isnt_judged_by_what_a_grammar_proposed():
    provider = ScriptedProvider(lambda history, room: [])
    spec, _ = with_drafts(constrained(toy_spec("FF")), None, provider=provider)

    [heard] = answers(forcing(spec), [bound()])

    observed = provider.sources["r"].observed
    assert sum(step.num_drafted for step in observed) == 0
    seen = [token for step in observed for token in step.tokens]
    assert seen == [*PROMPT, *heard.ids][: len(seen)]


@pytest.mark.parametrize("most", [1, 3, 8])
def test_no_more_is_proposed_at_once_than_was_set(most):
    spec = forcing(constrained(toy_spec("FF")), most)

    report = answers(spec, [bound()])[0].finished.usage.speculation

    assert len(report["draftedByPos"]) == most


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 13])
def test_the_cap_holds_inside_a_forced_span(max_tokens):
    spec = constrained(toy_spec("FF"))
    [plain] = answers(spec, [bound()])

    [cut] = answers(forcing(spec), [bound(max_tokens=max_tokens)])

    assert cut.ids == plain.ids[:max_tokens]
    assert cut.finished.reason == "length"


def test_a_stop_string_inside_a_forced_span_ends_the_row_there():
    spec = constrained(toy_spec("FF"))
    [plain] = answers(spec, [bound()])
    stop = (plain.tokens[4].text + plain.tokens[5].text,)
    [want] = answers(spec, [bound(stop=stop)])

    [got] = answers(forcing(spec), [bound(stop=stop)])

    assert (got.text, got.ids, got.finished.stop_string) == (want.text, want.ids, stop[0])


def test_other_spellings_of_what_is_forced_cost_steps_and_nothing_else():
    """The matcher's own tokenisation isn't the only one that its mask allows."""

    class Misspelling:
        def __init__(self, inner):
            self.inner = inner

        def forced(self):
            return [one + 100 for one in self.inner.forced()]

        def __getattr__(self, name):
            return getattr(self.inner, name)

    spec = constrained(toy_spec("FF"))
    opens = spec.open_constraint
    wrong = replace(spec, open_constraint=lambda request: Misspelling(opens(request)))
    [plain] = answers(spec, [bound()])

    [heard] = answers(forcing(wrong), [bound()])

    assert heard.ids == plain.ids
    assert heard.finished.usage.speculation["accepted"] == 0


def test_a_matcher_that_cant_say_what_is_forced_fails_its_own_row():
    class Broken:
        is_satisfied = False

        def mask(self):
            return None

        def accept(self, token_id):
            pass

        def forced(self):
            raise ConstraintError("the matcher is broken")

    spec = replace(toy_spec("FF"), open_constraint=lambda request: Broken() if request.constraint else None)
    free, broken = answers(forcing(spec), [a_request("free", PROMPT, 8), bound()])

    assert isinstance(free.end, Finished)
    assert broken.failed.kind == "ConstraintError"


def test_no_forced_window_crosses_a_length_at_which_storage_changes_its_form(capsys):
    edge = len(PROMPT) + 5
    spec = forcing(constrained(toy_spec("FF")), most=8, form_changes=frozenset({edge}))
    [heard] = answers(replace(spec, trace=TraceSettings(speculation=True)), [bound()])

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert heard.ids in WORDS
    assert {line["source"] for line in lines if line["drafts"]} == {"grammar"}
    assert len(PROMPT) + len(lines[0]["drafts"]) == edge


def test_samples_of_one_request_are_forced_each_for_itself():
    request = bound(sampling="seeded", num_samples=3)

    def samples(spec):
        with running(spec) as (engine, log):
            engine.submit(request)
            return [log.wait("r", sample).ids for sample in range(3)]

    spec = constrained(toy_spec("FF"))
    assert samples(forcing(spec)) == samples(spec)


def test_stats_count_what_a_grammar_proposed():
    with running(forcing(constrained(toy_spec("FF")))) as (engine, log):
        engine.submit(bound())
        report = log.wait("r").finished.usage.speculation
        total = engine.stats()["speculation"]

    assert (total["method"], total["accepted"]) == ("grammar", report["accepted"])


def test_without_the_switch_nothing_is_proposed():
    spec = constrained(toy_spec("FF"))
    [heard] = answers(spec, [a_request("r", PROMPT, 40, SamplingParams(), constraint=SPEC)])
    assert heard.finished.usage.speculation is None
