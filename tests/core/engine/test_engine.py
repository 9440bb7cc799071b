"""The engine over a scripted model: what clients hear, in which order, and what one request can't do to another."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from phyla.engine import Shutdown
from phyla.engine.engine import Engine, Loaded
from phyla.engine.reuse import NoReuse
from phyla.errors import ContextOverflow, EngineStopped, QueueFull, RequestError
from phyla.kv.row_state import RowState
from phyla.request import Finished, SamplingParams, Started, Token
from phyla.testing.engines import a_request, plain_state, running, scripted_spec
from phyla.testing.scripted import NAN, CharacterTokenizer, ScriptedBinding, StepSeen, repeat, replies, scripted_binding

TOKENIZER = CharacterTokenizer()
HELLO = TOKENIZER.encode("hello")


def greeting() -> ScriptedBinding:
    return scripted_binding(TOKENIZER, replies(TOKENIZER, {"hello": "Hi there."}))


def endless() -> ScriptedBinding:
    return scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")))


def test_a_reply_ends_at_end_of_sequence_without_emitting_it() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO))
        heard = log.wait("a")
    assert heard.text == "Hi there."
    assert heard.finished.reason == "stop"
    assert heard.finished.usage.num_completion_tokens == len("Hi there.")
    assert heard.finished.usage.lane == "serial"


def test_events_come_as_started_tokens_finished() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 2))
        log.wait("a")
    assert [type(event) for event in log.events] == [Started, Token, Token, Finished]


def test_the_last_allowed_token_is_emitted() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 2))
        heard = log.wait("a")
    assert heard.text == "Hi"
    assert heard.finished.reason == "length"


def test_no_step_is_built_for_the_last_allowed_token() -> None:
    binding = endless()
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 3))
        log.wait("a")
    assert [step.num_real for step in binding.steps] == [(4,), (1,), (1,), (1,)]


def test_ignore_eos_goes_on_to_the_cap() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 12, SamplingParams(ignore_eos=True)))
        heard = log.wait("a")
    assert len(heard.ids) == 12
    assert heard.finished.reason == "length"


def test_the_first_token_comes_before_the_second_step_is_built() -> None:
    may_go_on = threading.Event()
    steps: list[StepSeen] = []

    def hold_the_second_step(step: StepSeen) -> None:
        steps.append(step)
        if len(steps) == 3:
            assert may_go_on.wait(60)

    binding = scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")), hold_the_second_step)
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 3))
        log.wait_for_tokens("a", 1)
        may_go_on.set()
        log.wait("a")


def test_the_events_of_all_rows_of_a_step_come_in_one_call() -> None:
    gate = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")), lambda step: waited(gate))
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        for name in ("a", "b", "c"):
            engine.submit(a_request(name, HELLO, 20))
        gate.set()
        for name in ("a", "b", "c"):
            log.wait(name)
    assert {"a", "b", "c"} in [{event.request_id for event in batch} for batch in log.batches]


def test_logprobs_come_with_every_emitted_token() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, None, SamplingParams(num_logprobs=2)))
        heard = log.wait("a")
    found = [token.logprobs for token in heard.tokens]
    assert all(one is not None and len(one.top) == 2 and one.top[0][1] == one.logprob for one in found)


def test_samples_share_one_prefill() -> None:
    binding = endless()
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 4, num_samples=3))
        heard = [log.wait("a", sample) for sample in range(3)]
    assert [one.text for one in heard] == ["cabc"] * 3
    assert [step.num_real for step in binding.steps if step.width > 1] == [(4,)]


def test_samples_past_the_batch_take_turns() -> None:
    with running(scripted_spec(endless(), TOKENIZER, {"batch": 1})) as (engine, log):
        engine.submit(a_request("a", HELLO, 4, num_samples=3))
        heard = [log.wait("a", sample) for sample in range(3)]
    assert [one.finished.usage.lane for one in heard] == ["serial"] * 3


def test_seeded_samples_of_one_request_differ_and_repeat() -> None:
    def sampled() -> list[list[int]]:
        with running(scripted_spec(endless(), TOKENIZER)) as (engine, log):
            params = SamplingParams(temperature=50.0, seed=7)
            engine.submit(a_request("a", HELLO, 8, params, num_samples=2))
            return [log.wait("a", sample).ids for sample in range(2)]

    first, second = sampled()
    assert first != second
    assert sampled() == [first, second]


def test_a_cancelled_request_ends_and_the_others_go_on() -> None:
    gate = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")), lambda step: waited(gate))
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO))
        engine.submit(a_request("b", HELLO, 5))
        engine.cancel("a")
        engine.cancel("nobody")
        gate.set()
        assert log.wait("a").finished.reason == "cancelled"
        assert log.wait("b").finished.reason == "length"


def test_a_waiting_request_can_be_cancelled() -> None:
    gate = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")), lambda step: waited(gate))
    with running(scripted_spec(binding, TOKENIZER, {"batch": 1})) as (engine, log):
        engine.submit(a_request("a", HELLO, 3))
        engine.submit(a_request("b", HELLO, 3))
        engine.cancel("b")
        gate.set()
        assert log.wait("b").finished.reason == "cancelled"
        assert log.wait("a").finished.reason == "length"


def test_nan_logits_fail_their_own_request() -> None:
    def script(history: Sequence[int]) -> int:
        return NAN if history[0] == HELLO[0] else TOKENIZER.encode("x")[0]

    with running(scripted_spec(scripted_binding(TOKENIZER, script), TOKENIZER)) as (engine, log):
        engine.submit(a_request("bad", HELLO, 5))
        engine.submit(a_request("good", TOKENIZER.encode("world"), 5))
        assert log.wait("bad").failed.kind == "GenerationFailed"
        assert log.wait("good").text == "xxxxx"


def test_a_failing_allocation_fails_its_own_request() -> None:
    binding = endless()
    num_allocations = itertools.count()

    def allocate() -> RowState:
        if next(num_allocations) == 1:
            raise MemoryError
        return RowState.fresh(binding.facts.layout, plain_state)

    spec = scripted_spec(binding, TOKENIZER, load=lambda: Loaded(binding, NoReuse(allocate)))
    with running(spec) as (engine, log):
        for name in ("a", "b", "c"):
            engine.submit(a_request(name, HELLO, 4))
        assert log.wait("a").text == "cabc"
        assert "memory" in log.wait("b").failed.error
        assert log.wait("c").text == "cabc"


def test_a_step_that_raises_fails_its_rows_and_the_engine_goes_on() -> None:
    calls: list[StepSeen] = []

    def fail_once(step: StepSeen) -> None:
        calls.append(step)
        if len(calls) == 3:
            raise RuntimeError("/secret/path")

    binding = scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")), fail_once)
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 9))
        failed = log.wait("a").failed
        engine.submit(a_request("b", HELLO, 4))
        assert log.wait("b").text == "cabc"
        assert engine.health().ok
    assert "secret" not in failed.error


def test_an_answer_that_cant_be_finished_fails_its_own_request() -> None:
    class Detokenizer:
        def add(self, token_id: int) -> str:
            return "x"

        def finish(self) -> str:
            raise ValueError("text of an answer")

    class Broken(CharacterTokenizer):
        num_made = 0

        def detokenizer(self) -> Detokenizer:  # type: ignore[override]
            self.num_made += 1
            return Detokenizer() if self.num_made == 1 else super().detokenizer()  # type: ignore[return-value]

    tokenizer = Broken()
    with running(scripted_spec(endless(), tokenizer)) as (engine, log):
        for name in ("bad", "good"):
            engine.submit(a_request(name, HELLO, 4))
        assert log.wait("bad").failed.kind == "GenerationFailed"
        assert log.wait("good").text == "cabc"
        assert engine.health().ok


def test_a_failing_sink_stops_nobody() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.subscribe(lambda events: 1 / 0)  # type: ignore[arg-type, return-value]
        engine.submit(a_request("a", HELLO))
        assert log.wait("a").text == "Hi there."


def test_a_dead_thread_fails_everybody_and_says_why() -> None:
    def die(step: StepSeen) -> None:
        raise SystemExit

    with running(scripted_spec(scripted_binding(TOKENIZER, repeat([1]), die), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 4))
        assert log.wait("a").failed.kind == "EngineStopped"
        health = engine.health()
        with pytest.raises(EngineStopped):
            engine.submit(a_request("b", HELLO, 4))
    assert not health.ok
    assert health.reason is not None
    assert "died" in health.reason


def test_a_stuck_step_is_noticed_and_everybody_told() -> None:
    gate, is_in_step = threading.Event(), threading.Event()
    seconds = [0.0]

    def block(step: StepSeen) -> None:
        is_in_step.set()
        waited(gate)

    binding = scripted_binding(TOKENIZER, repeat([1]), block)
    with running(scripted_spec(binding, TOKENIZER, now=lambda: seconds[0])) as (engine, log):
        engine.submit(a_request("a", HELLO, 4))
        assert is_in_step.wait(60)
        assert engine.health().ok
        seconds[0] = 1000.0
        assert "stuck" in str(engine.health().reason)
        assert log.wait("a").failed.kind == "EngineStopped"
        with pytest.raises(EngineStopped):
            engine.submit(a_request("b", HELLO, 4))
        gate.set()


def test_who_waits_for_a_stuck_engine_to_clear_its_cache_is_told_too() -> None:
    gate, is_in_step = threading.Event(), threading.Event()
    seconds = [0.0]

    def block(step: StepSeen) -> None:
        is_in_step.set()
        waited(gate)

    binding = scripted_binding(TOKENIZER, repeat([1]), block)
    with (
        running(scripted_spec(binding, TOKENIZER, now=lambda: seconds[0])) as (engine, _),
        ThreadPoolExecutor(1) as pool,
    ):
        engine.submit(a_request("a", HELLO, 4))
        assert is_in_step.wait(60)
        clearing = pool.submit(engine.clear_prefix_cache)
        seconds[0] = 1000.0
        assert not engine.health().ok
        with pytest.raises(EngineStopped, match="stuck"):
            clearing.result(60)
        gate.set()


def test_closing_lets_running_requests_end() -> None:
    with running(scripted_spec(greeting(), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO))
        shutdown = engine.close(60)
        again = engine.close(60)
        with pytest.raises(EngineStopped, match="shutting down"):
            engine.submit(a_request("b", HELLO))
    assert log.wait("a").text == "Hi there."
    assert (shutdown.drained, shutdown.timed_out) == (True, False)
    assert again.drained


def test_closing_with_no_time_cancels_what_runs() -> None:
    is_running = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat([65]), lambda step: is_running.set())
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO))
        assert is_running.wait(60)
        shutdown = engine.close(0)
    assert (shutdown.timed_out, shutdown.num_cancelled) == (True, 1)
    assert log.wait("a").finished.reason == "cancelled"


def test_an_engine_that_doesnt_end_when_it_is_closed_is_called_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.engine.engine.CLOSE_GRACE_SECONDS", 0.05)
    gate, is_in_step = threading.Event(), threading.Event()

    def block(step: StepSeen) -> None:
        is_in_step.set()
        waited(gate)

    with running(scripted_spec(scripted_binding(TOKENIZER, repeat([1]), block), TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 4))
        assert is_in_step.wait(60)
        shutdown = engine.close(0)
        assert log.wait("a").failed.kind == "EngineStopped"
        gate.set()
    assert (shutdown.drained, shutdown.timed_out, shutdown.num_cancelled, shutdown.is_stuck) == (False, True, 1, True)


def test_a_loading_error_is_raised_where_the_engine_is_started() -> None:
    def load() -> Loaded:
        raise RuntimeError("no such weights")

    spec = scripted_spec(greeting(), TOKENIZER, load=load)
    with pytest.raises(RuntimeError, match="no such weights"), running(spec):
        pass


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A process that a shell started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_while_loading_waits_for_the_engine_thread() -> None:
    before = set(threading.enumerate())
    interrupted = threading.Event()
    spec = scripted_spec(greeting(), TOKENIZER)

    class Interrupted(Engine):
        def close(self, timeout_seconds: float) -> Shutdown:
            interrupted.set()
            return super().close(timeout_seconds)

    def load() -> Loaded:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(60)
        return spec.load()

    with pytest.raises(KeyboardInterrupt):
        Interrupted(replace(spec, load=load)).start()

    assert set(threading.enumerate()) <= before


def test_ten_thousand_arrivals_are_served_or_refused() -> None:
    gate = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat([65]), lambda step: waited(gate))
    served, num_refused = [], 0
    with running(scripted_spec(binding, TOKENIZER, {"batch": 2})) as (engine, log):
        for index in range(10_000):
            try:
                engine.submit(a_request(str(index), HELLO, 1))
                served.append(str(index))
            except QueueFull:
                num_refused += 1
        gate.set()
        heard = [log.wait(name) for name in served]
    assert len(served) + num_refused == 10_000
    assert 64 <= len(served) <= 67
    assert {one.text for one in heard} == {"A"}


def test_who_stops_waiting_frees_a_place_at_once() -> None:
    gate = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat([65]), lambda step: waited(gate))
    names = [str(index) for index in range(200)]
    with running(scripted_spec(binding, TOKENIZER, {"batch": 1, "queue": 2})) as (engine, log):
        engine.submit(a_request("first", HELLO, 1))
        for name in names:
            engine.submit(a_request(name, HELLO, 1))
            engine.cancel(name)
        engine.submit(a_request("last", HELLO, 1))
        gate.set()
        assert {log.wait(name).finished.reason for name in names} == {"cancelled"}
        assert (log.wait("first").text, log.wait("last").text) == ("A", "A")


def test_one_id_cant_be_served_twice_at_once() -> None:
    gate = threading.Event()
    binding = scripted_binding(TOKENIZER, repeat([65]), lambda step: waited(gate))
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 1))
        with pytest.raises(RequestError, match="already"):
            engine.submit(a_request("a", HELLO, 1))
        gate.set()
        log.wait("a")
        engine.submit(a_request("a", HELLO, 1))


@pytest.mark.parametrize("cap", [2**31, 10**18])
def test_an_absurd_cap_becomes_the_context(cap: int) -> None:
    with running(scripted_spec(endless(), TOKENIZER, {"context_limit": 12})) as (engine, log):
        engine.submit(a_request("a", HELLO, cap))
        assert len(log.wait("a").ids) == 7


@pytest.mark.parametrize(
    ("ids", "max_tokens", "error", "message"),
    [
        ([], 1, RequestError, "no tokens"),
        ([1, 99999], 1, RequestError, "outside the vocabulary"),
        ([1, -1], 1, RequestError, "outside the vocabulary"),
        ([1] * 12, 1, ContextOverflow, "context limit is 12"),
        ([1], 0, RequestError, "max_tokens"),
        ([1], -5, RequestError, "max_tokens"),
    ],
)
def test_requests_that_can_never_be_served_are_refused(
    ids: list[int], max_tokens: int, error: type[Exception], message: str
) -> None:
    spec = scripted_spec(endless(), TOKENIZER, {"context_limit": 12})
    with running(spec) as (engine, _), pytest.raises(error, match=message):
        engine.submit(a_request("a", ids, max_tokens))


def waited(gate: threading.Event) -> None:
    assert gate.wait(60)


def test_a_running_rows_token_doesnt_wait_for_a_piece_of_prefill() -> None:
    """The piece may take long: what was drawn before it is said before it."""
    hold, is_held = threading.Event(), threading.Event()

    def hold_long_prefills(step: StepSeen) -> None:
        if step.width not in (1, len(HELLO) - 1):
            is_held.set()
            waited(hold)

    binding = scripted_binding(TOKENIZER, repeat(TOKENIZER.encode("abc")), hold_long_prefills)
    with running(scripted_spec(binding, TOKENIZER)) as (engine, log):
        engine.submit(a_request("a", HELLO, 5000))
        log.wait_for_tokens("a", 1)
        engine.submit(a_request("b", HELLO * 100, 2))
        assert is_held.wait(60)
        num_steps = sum(step.width == 1 for step in binding.steps)
        assert len(log.of("a")) == num_steps
        hold.set()
        engine.cancel("a")
        log.wait("b")
