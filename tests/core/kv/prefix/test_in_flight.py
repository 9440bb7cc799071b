"""Waiting for a prompt that is being read."""

from phyla.kv.prefix import InFlightPrefills, PrefixNamespace

from tests.core.kv.prefix.rows import HERE


def test_the_running_prefill_that_shares_most_is_named() -> None:
    running = InFlightPrefills()
    running.started("short", HERE, [1, 2, 9])
    running.started("long", HERE, [1, 2, 3, 4])
    awaited = running.longest_shared(HERE, [1, 2, 3, 5])
    assert awaited is not None
    assert (awaited.request_id, awaited.num_shared) == ("long", 3)


def test_nobody_waits_for_an_ended_prefill() -> None:
    running = InFlightPrefills()
    running.started("one", HERE, [1, 2, 3])
    running.ended("one")
    running.ended("never started")
    assert running.longest_shared(HERE, [1, 2, 3]) is None


def test_nobody_waits_for_another_owners_prefill() -> None:
    running = InFlightPrefills()
    running.started("one", PrefixNamespace("m", "plain", "i", owner="other"), [1, 2, 3])
    assert running.longest_shared(HERE, [1, 2, 3]) is None


def test_the_last_token_is_computed_even_for_equal_prompts() -> None:
    running = InFlightPrefills()
    running.started("one", HERE, [1, 2, 3])
    awaited = running.longest_shared(HERE, [1, 2, 3])
    assert awaited is not None
    assert awaited.num_shared == 2
