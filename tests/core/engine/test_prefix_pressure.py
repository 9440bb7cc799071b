"""Retained prefixes make room for rows; requests never wait or fail for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phyla.engine.engine import Engine
from phyla.engine.pressure import Pressure
from phyla.request import SamplingParams
from phyla.testing.engines import EventLog, a_request, toy_spec
from phyla.testing.reuse import prompt_cache, reusing

GREEDY = SamplingParams(ignore_eos=True)
LIMIT = 1000


@contextmanager
def pressed(
    used_bytes: Callable[[], int], row_bytes: Callable[[int], int] = lambda num_tokens: 0
) -> Iterator[tuple[Engine, EventLog]]:
    """A reusing engine that sees so much memory in use."""
    with reusing(toy_spec("FR"), pressure=Pressure(LIMIT, used_bytes, row_bytes)) as (engine, log, _):
        yield engine, log


def prompt(start: int) -> tuple[int, ...]:
    return tuple(range(start, start + 40))


def test_excess_is_what_is_over_the_limit_with_the_new_row_billed_whole() -> None:
    pressure = Pressure(LIMIT, lambda: 700, lambda num_tokens: 10 * num_tokens)
    assert [pressure.excess(num_tokens) for num_tokens in (0, 30, 50)] == [0, 0, 200]


def test_prefixes_go_when_memory_runs_short_and_the_request_is_served() -> None:
    used = [0]
    with pressed(lambda: used[0]) as (engine, log):
        engine.submit(a_request("first", prompt(10), 4, GREEDY))
        log.wait("first")
        retained = prompt_cache(engine)["entries"]
        used[0] = LIMIT + 1
        engine.submit(a_request("second", prompt(100), 4, GREEDY))
        heard = log.wait("second")
        stats = prompt_cache(engine)
    assert retained == 1
    assert heard.finished.reason == "length"
    assert stats["entries"] == 0
    assert stats["evictions"] >= 1


def test_a_row_that_would_not_fit_beside_them_makes_them_go_first() -> None:
    asked: list[int] = []

    def row_bytes(num_tokens: int) -> int:
        asked.append(num_tokens)
        return 2 * LIMIT if num_tokens > 40 else 0

    with pressed(lambda: 0, row_bytes) as (engine, log):
        engine.submit(a_request("first", prompt(10), 4, GREEDY))
        log.wait("first")
        engine.submit(a_request("longer", (*prompt(100), 5), 4, GREEDY))
        log.wait("longer")
        engine.submit(a_request("first again", prompt(10), 4, GREEDY))
        again = log.wait("first again")
    assert again.finished.usage.num_cached_tokens == 0
    assert 41 in asked


def test_the_prefix_that_a_request_is_about_to_use_stays_for_it() -> None:
    used = [0]
    with pressed(lambda: used[0]) as (engine, log):
        engine.submit(a_request("first", prompt(10), 4, GREEDY))
        first = log.wait("first")
        used[0] = LIMIT + 1
        engine.submit(a_request("again", prompt(10), 4, GREEDY))
        again = log.wait("again")
    assert again.finished.usage.num_cached_tokens == 39
    assert again.ids == first.ids


def test_prefixes_go_while_rows_only_decode() -> None:
    used = [0]
    with pressed(lambda: used[0]) as (engine, log):
        engine.submit(a_request("first", prompt(10), 4, GREEDY))
        log.wait("first")
        engine.submit(a_request("long", prompt(100), 2000, GREEDY))
        log.wait_for_tokens("long", 2)
        retained = prompt_cache(engine)["entries"]
        used[0] = LIMIT + 1
        # Whatever was heard before, two more tokens mean that a whole round began after memory ran short.
        log.wait_for_tokens("long", len(log.of("long")) + 2)
        left, is_running = prompt_cache(engine)["entries"], engine.health().num_active == 1
        engine.cancel("long")
        log.wait("long")
    assert (retained, left, is_running) == (1, 0, True)
