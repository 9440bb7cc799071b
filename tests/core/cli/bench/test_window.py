"""The rate of rows that run together, against arrivals by hand."""

from __future__ import annotations

import pytest
from phyla.cli.bench.window import NUM_WARM, Window

BOTH = (0, 1)


def fed(window: Window, *arrivals: tuple[float, tuple[int, ...]]) -> Window:
    for now, rows in arrivals:
        window.saw(rows, now)
    return window


def warmed(num_tokens: int, most_seconds: float = float("inf")) -> Window:
    """Two rows; the second one joins at 10 s and is warm at 13 s."""
    window = Window(2, num_tokens, most_seconds, began=1.0)
    return fed(window, (2.0, (0,)), (3.0, (0,)), *((10.0 + step, BOTH) for step in range(NUM_WARM)))


def test_tokens_count_from_when_the_last_row_is_warm() -> None:
    window = fed(warmed(3), (14.0, BOTH), (15.0, BOTH), (17.0, BOTH))
    assert window.is_over
    assert window.tokens_per_second == 6 / (17.0 - 13.0)


def test_the_first_token_of_the_last_row_ends_the_reading_of_prompts() -> None:
    assert warmed(3).first_seconds == 10.0 - 1.0


def test_several_tokens_of_a_row_at_once_count_each() -> None:
    window = fed(warmed(4), (14.0, (0, 0, 0, 1)), (16.0, (0, 1, 1, 1)))
    assert window.is_over
    assert window.tokens_per_second == 8 / 3.0


def test_it_is_not_over_before_all_tokens_are_counted() -> None:
    assert not fed(warmed(3), (14.0, BOTH), (15.0, BOTH)).is_over


def test_its_seconds_end_it_with_what_was_counted() -> None:
    window = fed(warmed(1000, most_seconds=2.0), (14.0, BOTH), (15.5, BOTH))
    assert window.is_over
    assert window.tokens_per_second == 4 / 2.5


def test_what_comes_after_it_does_not_count() -> None:
    window = fed(warmed(1), (14.0, BOTH), (99.0, BOTH))
    assert window.tokens_per_second == 2 / 1.0


def test_a_window_of_no_tokens_ends_with_every_rows_first() -> None:
    window = fed(Window(2, 0, began=1.0), (2.0, (0,)))
    assert not window.is_over
    assert fed(window, (4.0, (1,))).is_over
    assert window.first_seconds == 3.0


def test_rows_that_never_ran_together_have_no_rate() -> None:
    window = fed(Window(2, 5), *((float(step), (0,)) for step in range(50)))
    assert not window.is_over
    with pytest.raises(AssertionError, match="never ran together"):
        _ = window.tokens_per_second
