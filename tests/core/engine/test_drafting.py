"""Drafts through the whole engine: every layer kind, alone and in company, with everything a request can ask for."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from phyla.backend.strategy import Strategies, shipped_table
from phyla.draft.length import StepCosts
from phyla.draft.usage import SpeculationUsage
from phyla.draft.verify import Verdict
from phyla.engine.drafting import Drafting
from phyla.engine.fast_route import FastRoute
from phyla.engine.proposing import ProposingOptions, RowProposers
from phyla.engine.records import StepFinished
from phyla.engine.trace import TraceSettings
from phyla.errors import ConstraintError
from phyla.model.step import Tap
from phyla.request import ConstraintSpec, Finished, SamplingParams
from phyla.testing.constraint import WordList
from phyla.testing.drafting import ScriptedProvider
from phyla.testing.engines import TOY_VOCAB, a_request, engine_spec, running, toy_spec
from phyla.testing.family import random_tokens
from phyla.testing.toy import toy_binding

LAYOUTS = ["FF", "SF", "RF", "LF", "SRLF"]
PROMPT = [5, 9, 7, 5, 9]
NUM_TOKENS = 24
SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=1.0, seed=11),
    "filtered": SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, top_k=30, seed=12),
    "penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={20: 1.0}),
    "reported": SamplingParams(temperature=1.0, seed=13, num_logprobs=3),
}


def with_drafts(spec, script, *, taps=(), most_tokens=4, provider=None, form_changes=(), **options):
    provider = provider or ScriptedProvider(script, taps)
    loading = spec.load
    options = {"is_adaptive": False, **options}

    def load():
        return replace(loading(), drafting=Drafting("scripted", provider, most_tokens, **options))

    return replace(spec, load=load, proposing=ProposingOptions(form_changes=frozenset(form_changes))), provider


def answers(spec, requests):
    with running(spec) as (engine, log):
        for request in requests:
            engine.submit(request)
        return [log.wait(request.request_id) for request in requests]


def noisy(known, seed=0):
    """Drafts that are right for a random while, for rows whose plain answers are known."""

    def script(history, room):
        draw = np.random.default_rng([seed, len(history)])
        for whole in known:
            if len(whole) > len(history) and whole[: len(history)] == list(history):
                good = whole[len(history) :][: draw.integers(0, room + 1)]
                return [*good, *draw.integers(0, 200, room - len(good)).tolist()]
        return draw.integers(0, 200, room).tolist()

    return script


def right(known):
    """Drafts that are all accepted."""

    def script(history, room):
        [whole] = [whole for whole in known if whole[: len(history)] == list(history)]
        return whole[len(history) :][:room]

    return script


def wholes(requests, heard):
    return [[*request.rendered.ids, *one.ids] for request, one in zip(requests, heard, strict=True)]


@pytest.mark.parametrize("layers", LAYOUTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_lone_row_gets_the_tokens_of_plain_decoding(layers, sampling):
    request = a_request("r", PROMPT, NUM_TOKENS, SAMPLINGS[sampling])
    spec = toy_spec(layers)
    [plain] = answers(spec, [request])

    [drafted] = answers(with_drafts(spec, noisy(wholes([request], [plain])))[0], [request])

    assert drafted.ids == plain.ids
    assert drafted.finished.reason == plain.finished.reason
    assert drafted.finished.usage.lane == "serial+spec"
    assert drafted.finished.usage.speculation["accepted"] > 0
    assert [one.logprobs and one.logprobs.top[0][0] for one in drafted.tokens] == [
        one.logprobs and one.logprobs.top[0][0] for one in plain.tokens
    ]


@pytest.mark.parametrize("layers", LAYOUTS)
def test_rows_in_company_get_what_each_gets_alone(layers):
    requests = [
        a_request(name, [*PROMPT, index], NUM_TOKENS - index, params)
        for index, (name, params) in enumerate(SAMPLINGS.items())
    ]
    spec = toy_spec(layers)
    alone = [answers(spec, [request])[0] for request in requests]

    together = answers(with_drafts(spec, noisy(wholes(requests, alone), seed=3))[0], requests)

    assert [one.ids for one in together] == [one.ids for one in alone]
    assert {one.finished.usage.lane for one in together} == {"batched+spec"}


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("layers", ["FF", "SF", "RF"])
def test_windows_are_replayed_from_a_trace_where_every_layer_allows_it(layers, together):
    samplings = ("greedy", "seeded", "reported")[:together]
    requests = [
        a_request(name, [*PROMPT, index], NUM_TOKENS - index, SAMPLINGS[name]) for index, name in enumerate(samplings)
    ]
    alone = [answers(toy_spec(layers), [request])[0] for request in requests]
    fast = FastRoute(Strategies(shipped_table("cpu")), compiled_decode="on")
    # Drafts are all wrong at times, and fewer than fit at the end.
    spec, _ = with_drafts(toy_spec(layers, fast=fast), noisy(wholes(requests, alone), seed=4))
    with running(spec) as (engine, log):
        for request in requests:
            engine.submit(request)
        heard = [log.wait(request.request_id) for request in requests]
        stats = engine.stats()
    assert [one.ids for one in heard] == [one.ids for one in alone]
    compiled = stats["fast_route"]["compiled"]
    assert (compiled["failures"], compiled["retraces"]) == (0, 0)
    # A lone row is on the fast route from its first window on; what a recurrent layer has to replay isn't traced.
    assert (compiled["steps"] > 3) == ("R" not in layers)


@pytest.mark.parametrize("layers", ["SF", "RFS"])
def test_a_traced_step_in_which_nobody_had_a_draft_gives_the_same_token(layers):
    request = a_request("r", PROMPT, NUM_TOKENS)
    [alone] = answers(toy_spec(layers), [request])
    known = noisy(wholes([request], [alone]))
    fast = FastRoute(Strategies(shipped_table("cpu")), compiled_decode="on")
    spec, _ = with_drafts(toy_spec(layers, fast=fast), lambda *asked: [] if len(asked[0]) % 3 else known(*asked))
    with running(spec, [request]) as (engine, log):
        assert log.wait("r").ids == alone.ids
        compiled = engine.stats()["fast_route"]["compiled"]
    assert (compiled["failures"], compiled["retraces"]) == (0, 0)
    assert compiled["steps"] > 3


def test_traced_windows_pass_the_ends_of_rings_and_of_bays():
    # Rows of two lengths that don't share a bay, all shortly before a capacity, and windows much wider than the ring.
    requests = [
        a_request(f"{length}", random_tokens(length, 200, seed=length), 30, SamplingParams(ignore_eos=True))
        for length in (2, 215, 250, 700)
    ]
    alone = [answers(toy_spec("SF"), [request])[0].ids for request in requests]
    fast = FastRoute(Strategies(shipped_table("cpu")), compiled_decode="on")
    known = [[*request.rendered.ids, *ids] for request, ids in zip(requests, alone, strict=True)]
    spec, _ = with_drafts(toy_spec("SF", fast=fast), noisy(known, seed=4), most_tokens=15)
    with running(spec, requests) as (engine, log):
        assert [log.wait(request.request_id).ids for request in requests] == alone
        compiled = engine.stats()["fast_route"]["compiled"]
    assert (compiled["failures"], compiled["retraces"]) == (0, 0)
    assert compiled["steps"] > 3


def test_a_window_that_cannot_be_traced_is_verified_all_the_same():
    def bind():
        made = toy_binding("SF", vocab_size=TOY_VOCAB)
        layer = made.layer

        def fails(index, hidden, step, states):
            # The second layer's: the first has appended by then.
            if index == 1 and step.width > 1 and isinstance(step.offsets, mx.array):
                raise RuntimeError("no kernel for that")
            return layer(index, hidden, step, states)

        made.layer = fails
        return made

    request = a_request("r", PROMPT, NUM_TOKENS)
    plain = toy_spec("SF")
    [alone] = answers(plain, [request])
    fast = FastRoute(Strategies(shipped_table("cpu")), compiled_decode="on")
    broken = engine_spec(plain.facts, bind, plain.tokenizer, fast=fast)
    spec, _ = with_drafts(broken, noisy(wholes([request], [alone])))
    with running(spec, [request]) as (engine, log):
        assert log.wait("r").ids == alone.ids
        compiled = engine.stats()["fast_route"]["compiled"]
    assert (compiled["failures"], compiled["failure"]) == (1, "RuntimeError: no kernel for that")


@pytest.mark.parametrize(
    ("layers", "settings", "route", "compiled", "routes"),
    [
        ("FF", {}, "auto", "on", ["exact", "fast"]),
        ("FF", {"group": "stacked"}, "auto", "off", ["exact"]),
        ("FF", {"group": "loop"}, "auto", "on", ["exact"]),
        ("FF", {"batch": 1}, "auto", "on", ["exact"]),
        ("FF", {}, "exact", "on", ["exact"]),
        # A layer that can't be stacked, on a device whose table traces.
        ("LF", {}, "auto", "auto", ["exact"]),
    ],
)
def test_a_lone_row_leaves_the_exact_route_only_where_it_would_be_traced(
    capsys, layers, settings, route, compiled, routes
):
    fast = FastRoute(Strategies(shipped_table("cuda")), compiled_decode=compiled)
    spec, _ = with_drafts(toy_spec(layers, settings, fast=fast, route=route), noisy([]))
    answers(replace(spec, trace=TraceSettings(lanes=True)), [a_request("r", PROMPT, NUM_TOKENS)])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["route"] for line in lines] == routes


@pytest.mark.parametrize("layers", LAYOUTS)
def test_adaptive_lengths_never_change_the_tokens(layers):
    request = a_request("r", PROMPT, 40)
    spec = toy_spec(layers)
    [plain] = answers(spec, [request])

    spec, _ = with_drafts(spec, noisy(wholes([request], [plain]), seed=5), is_adaptive=True)

    assert answers(spec, [request])[0].ids == plain.ids


@pytest.mark.parametrize("no_pipeline", [False, True])
def test_plain_steps_are_measured_where_every_draft_is_right(monkeypatch, no_pipeline):
    seen = []
    record = StepCosts.record
    monkeypatch.setattr(
        StepCosts, "record", lambda self, rows, width, _: seen.append(width) or record(self, rows, width, 1.0)
    )
    request = a_request("r", PROMPT, 60)
    spec = toy_spec("FF", {"no_pipeline": no_pipeline})
    [plain] = answers(spec, [request])
    spec, _ = with_drafts(spec, right(wholes([request], [plain])), is_adaptive=True)

    [heard] = answers(spec, [request])

    assert heard.ids == plain.ids
    # A step of any width takes as long here, so that drafting goes on.
    assert 1 in seen
    assert max(seen[seen.index(1) :]) > 1


class Doubting(ScriptedProvider):
    """Says of its drafts that it drew them from all words alike but them."""

    def propose(self, rows):
        spans = super().propose(rows)
        return [span and replace(span, draft_logits=self._all_but(span.tokens)) for span in spans]

    def _all_but(self, tokens):
        return mx.where(mx.arange(TOY_VOCAB) == mx.array(tokens)[:, None], -100.0, 0.0)


@pytest.mark.parametrize("acceptance", ["exact", "rejection"])
def test_drafts_are_judged_as_was_asked_for(acceptance):
    """Rejection accepts whatever the target finds likelier than the method that drew it; a seed's tokens are others."""
    hot = SamplingParams(temperature=1.0, seed=11, ignore_eos=True)
    requests = [a_request("hot", PROMPT, NUM_TOKENS, hot), a_request("greedy", PROMPT, NUM_TOKENS)]
    plain = answers(toy_spec("FF"), requests)
    provider = Doubting(lambda history, room: [20 + (len(history) + place) % 100 for place in range(room)])
    spec, _ = with_drafts(toy_spec("FF"), None, provider=provider, acceptance=acceptance)

    drafted = answers(spec, requests)

    is_rejection = acceptance == "rejection"
    assert [one.ids != without.ids for one, without in zip(drafted, plain, strict=True)] == [is_rejection, False]
    reports = [one.finished.usage.speculation for one in drafted]
    assert [report["rejected"] == 0 for report in reports] == [is_rejection, False]
    assert all(report["drafted"] > 0 for report in reports)


def test_usage_adds_up_and_the_source_saw_every_computed_token():
    request = a_request("r", PROMPT, NUM_TOKENS)
    spec = toy_spec("FF")
    [plain] = answers(spec, [request])
    spec, provider = with_drafts(spec, noisy(wholes([request], [plain])), taps=(Tap(0),))

    [heard] = answers(spec, [request])

    report = heard.finished.usage.speculation
    assert report["method"] == "scripted"
    assert report["drafted"] == report["accepted"] + report["rejected"]
    assert sum(report["acceptanceLengths"]) == report["rounds"] == report["targetCalls"]
    assert report["targetCalls"] + report["forwardsSaved"] == len(heard.ids)
    observed = provider.sources["r"].observed
    seen = [token for step in observed for token in step.tokens]
    assert observed[0].is_prefill
    assert seen == wholes([request], [heard])[0][: len(seen)]
    assert len(seen) >= len(PROMPT) + NUM_TOKENS - 1
    assert all(step.taps[Tap(0)].shape[:2] == (1, len(step.tokens)) for step in observed)


def test_a_stop_string_inside_a_window_ends_the_row_there():
    spec = toy_spec("FF")
    [plain] = answers(spec, [a_request("r", PROMPT, NUM_TOKENS)])
    stop = "".join(token.text for token in plain.tokens[:3])
    request = a_request("r", PROMPT, NUM_TOKENS, stop=(stop,))
    [want] = answers(spec, [request])

    whole = [[*PROMPT, *plain.ids]]
    right = with_drafts(spec, lambda history, room: whole[0][len(history) :][:room])[0]
    [got] = answers(right, [request])

    assert (got.text, got.ids, got.finished.stop_string) == (want.text, want.ids, stop)
    assert got.finished.usage.num_completion_tokens == want.finished.usage.num_completion_tokens == 3
    # Three drafts of the first window, which brought five tokens.
    report = got.finished.usage.speculation
    assert (report["drafted"], report["accepted"], report["acceptanceLengths"]) == (4, 3, [0, 0, 0, 1])
    assert (report["targetCalls"], report["forwardsSaved"], report["tokensPerForward"]) == (1, 2, 3.0)


def test_a_round_behind_a_stop_string_is_not_counted():
    """A token may be read and a window be checked before the text of either is made."""
    usage = SpeculationUsage("scripted")
    proposers = RowProposers(usage)
    window = Verdict(tokens=(7, 8, 9), num_kept=3, num_drafted=3, num_accepted=3)
    for num_said in (None, 1):
        proposers.stepped_plainly([6], num_emitted=1)
        proposers.verified([6, 7, 8, 9], window, None)
        proposers.count(num_said)

    assert (usage.num_rounds, usage.num_drafted, usage.num_accepted, usage.num_emitted) == (3, 3, 3, 5)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_the_cap_holds_wherever_in_a_window_it_falls(max_tokens):
    request = a_request("r", PROMPT, max_tokens)
    spec = toy_spec("FF")
    [plain] = answers(spec, [a_request("r", PROMPT, NUM_TOKENS)])
    whole = [*PROMPT, *plain.ids]

    [got] = answers(with_drafts(spec, lambda history, room: whole[len(history) :][:room])[0], [request])

    assert got.ids == plain.ids[:max_tokens]
    assert got.finished.reason == "length"


class Failing(ScriptedProvider):
    def __init__(self, method):
        super().__init__(lambda history, room: [1])
        self.failing = method

    def propose(self, rows):
        if self.failing == "propose":
            raise RuntimeError("boom")
        return super().propose(rows)

    def open(self, request, states):
        source = super().open(request, states)
        if self.failing == "observe":

            def observe(step):
                raise RuntimeError("boom")

            source.observe = observe
        return source


@pytest.mark.parametrize("method", ["propose", "observe"])
def test_a_method_that_fails_is_turned_off_and_the_answer_stands(method):
    request = a_request("r", PROMPT, NUM_TOKENS)
    spec = toy_spec("FF")
    [plain] = answers(spec, [request])

    [got] = answers(with_drafts(spec, None, provider=Failing(method))[0], [request])

    assert got.ids == plain.ids
    assert got.finished.usage.speculation["reason"] == "the method failed (RuntimeError)"


def test_cancelling_in_the_middle_of_rounds_hurts_nobody():
    spec, _ = with_drafts(toy_spec("FF"), noisy([]))
    with running(spec) as (engine, log):
        engine.submit(a_request("long", PROMPT, 2000))
        engine.submit(a_request("other", PROMPT, 30))
        log.wait_for_tokens("long", 5)
        engine.cancel("long")
        assert log.wait("long").finished.reason == "cancelled"
        other = log.wait("other")

    assert other.ids == answers(toy_spec("FF"), [a_request("other", PROMPT, 30)])[0].ids


WORDS = [[20, 21, 22], [20, 23, 24, 25], [30, 31]]


def constrained(spec):
    words = WordList(WORDS, eos_ids=spec.facts.eos_ids, vocab_size=spec.facts.vocab_size)
    return replace(spec, open_constraint=lambda request: words.open() if request.constraint else None)


SPEC = ConstraintSpec("words", "")


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
def test_a_constraint_holds_with_and_without_drafts_and_company(sampling):
    requests = [
        a_request("free", PROMPT, NUM_TOKENS, SAMPLINGS[sampling]),
        a_request("bound", PROMPT, NUM_TOKENS, SAMPLINGS[sampling], constraint=SPEC),
    ]
    spec = constrained(toy_spec("FF"))
    alone = [answers(spec, [request])[0] for request in requests]
    together = answers(spec, requests)
    drafted = answers(
        with_drafts(spec, noisy([*wholes(requests, alone), *([*PROMPT, *w] for w in WORDS)]))[0], requests
    )

    assert alone[1].ids in WORDS
    assert alone[1].finished.reason == "stop"
    assert [one.ids for one in together] == [one.ids for one in alone]
    assert [one.ids for one in drafted] == [one.ids for one in alone]


def test_a_matcher_that_fails_fails_its_own_row():
    spec = toy_spec("FF")

    class Broken:
        is_satisfied = False

        def mask(self):
            raise ConstraintError("the matcher is broken")

    spec = replace(spec, open_constraint=lambda request: Broken() if request.constraint else None)
    requests = [a_request("free", PROMPT, 8), a_request("bound", PROMPT, 8, constraint=SPEC)]

    for one in (spec, with_drafts(spec, noisy([]))[0]):
        free, bound = answers(one, requests)
        assert isinstance(free.end, Finished)
        assert bound.failed.kind == "ConstraintError"


def test_without_an_engine_for_it_a_constraint_is_refused():
    [heard] = answers(toy_spec("FF"), [a_request("r", PROMPT, 8, constraint=SPEC)])

    assert heard.failed.kind == "ConstraintError"
    assert "kind 'words'" in heard.failed.error


def test_samples_of_one_request_draft_each_for_itself():
    request = a_request("r", PROMPT, 12, SamplingParams(temperature=1.0, seed=3), num_samples=3)

    def samples(spec):
        with running(spec) as (engine, log):
            engine.submit(request)
            return [log.wait("r", sample).ids for sample in range(3)]

    plain = samples(toy_spec("FF"))
    spec, _ = with_drafts(toy_spec("FF"), noisy([[*PROMPT, *ids] for ids in plain]))

    assert samples(spec) == plain


def test_listeners_hear_of_every_round_with_the_positions_it_computed():
    steps = []
    spec, _ = with_drafts(toy_spec("FF"), noisy([]))
    spec = replace(spec, tell=steps.append)
    [heard] = answers(spec, [a_request("r", PROMPT, NUM_TOKENS)])

    verified = [step for step in steps if isinstance(step, StepFinished) and step.kind == "verify"]
    report = heard.finished.usage.speculation
    # The last token leaves no room for a draft, and a step that nobody proposed for is a plain one.
    num_windows = report["rounds"] - 1
    assert len(verified) == num_windows
    assert sum(step.num_tokens for step in verified) == num_windows + report["drafted"]


def test_the_trace_has_a_line_per_window(capsys):
    spec, _ = with_drafts(toy_spec("FF"), noisy([]))
    [heard] = answers(replace(spec, trace=TraceSettings(speculation=True)), [a_request("r", PROMPT, NUM_TOKENS)])

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {line["event"] for line in lines} == {"verified"}
    # The last token leaves no room for a draft, and a step that nobody proposed for is a plain one.
    assert len(lines) == heard.finished.usage.speculation["rounds"] - 1
    assert [token for line in lines for token in line["emitted"]] == heard.ids[:-1]


def test_stats_add_up_the_rows_that_have_ended():
    spec, _ = with_drafts(toy_spec("FF"), noisy([]))
    with running(spec) as (engine, log):
        assert engine.stats()["speculation"]["acceptance"] == 0.0
        for name in ("one", "other"):
            engine.submit(a_request(name, PROMPT, NUM_TOKENS))
        reports = [log.wait(name).finished.usage.speculation for name in ("one", "other")]
        total = engine.stats()["speculation"]

    assert total["method"] == "scripted"
    assert total["drafted"] == sum(report["drafted"] for report in reports) > 0
    assert total["rejected"] == total["drafted"] - total["accepted"]
    assert total["target_calls"] == sum(report["rounds"] for report in reports)
    assert total["tokens_per_forward"] == 2 * NUM_TOKENS / total["target_calls"]


def test_stats_say_where_a_method_was_turned_off_or_is_missing():
    with running(with_drafts(toy_spec("FF"), None, provider=Failing("propose"))[0]) as (engine, log):
        engine.submit(a_request("r", PROMPT, NUM_TOKENS))
        log.wait("r")
        assert engine.stats()["speculation"]["undrafted_rows"] == 1

    with running(toy_spec("FF")) as (engine, _):
        assert engine.stats()["speculation"] is None


def test_no_window_crosses_a_length_at_which_storage_changes_its_form():
    asked = []

    def script(history, room):
        asked.append((len(history) - 1, len(history) + room))
        return [1] * room

    request = a_request("r", PROMPT, NUM_TOKENS)
    spec, _ = with_drafts(toy_spec("FF"), script, form_changes=(12, 19))
    answers(spec, [request])

    sides = [[length for length in (12, 19) if start < length < end] for start, end in asked]
    assert sides == [[]] * len(asked)
    assert max(end - start for start, end in asked) == 5
