"""Pairs, ratios and bounds over sides whose times are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from phyla.cli.bench.cases import Case
from phyla.cli.bench.measuring import NUM_SPARE, Bound, Effort, least_tokens, measure_case, row_cap
from phyla.cli.bench.prompts import PromptMaker
from phyla.cli.bench.window import NUM_WARM, Window
from phyla.errors import UsageError

PROMPTS = PromptMaker(100)


class Scripted:
    """A side whose every step takes as long as it is told, and which notes the order of runs."""

    def __init__(self, name: str, step_seconds: Sequence[float], log: list[str], drafted: Sequence[int] = ()) -> None:
        self.name = name
        self._steps = iter(step_seconds)
        self._log = log
        self._drafted = iter(drafted)
        self.prompts: list[list[list[int]]] = []

    def run(self, prompts: Any, max_tokens: int, window: Window, *, is_fresh: bool) -> None:
        self._log.append(self.name)
        self.prompts.append(prompts)
        seconds = next(self._steps)
        rows = tuple(range(len(prompts)))
        for step in range(1, max_tokens + 1):
            if window.saw(rows, step * seconds):
                return

    def drafting(self) -> Mapping[str, Any] | None:
        drafted = next(self._drafted, None)
        if drafted is None:
            return None
        return {"method": "ngram", "drafted": drafted, "accepted": drafted // 2, "target_calls": drafted // 4}


def sides(ours: Sequence[float], theirs: Sequence[float]) -> tuple[list[Any], list[str]]:
    log: list[str] = []
    return [Scripted("phyla", ours, log), Scripted("other", theirs, log)], log


def measured(
    case: Case, two: list[Any], effort: Effort, bound: Bound | None = None, context_limit: int = 4096
) -> dict[str, Any]:
    return measure_case(case, two, PROMPTS, effort, bound, context_limit, now=lambda: 0.0)


def test_sides_go_by_turns_after_a_run_that_does_not_count() -> None:
    two, log = sides([9, 1, 1, 1], [9, 2, 2, 2])
    measured(Case("tg", (8, 8)), two, Effort(num_tokens=10, num_pairs=3))
    assert log == ["phyla", "other", "phyla", "other", "other", "phyla", "phyla", "other"]


def test_the_ratio_is_the_mean_of_the_pairs() -> None:
    two, _ = sides([9, 1.0, 0.5], [9, 2.0, 2.0])
    got = measured(Case("tg", (8, 8)), two, Effort(num_tokens=10, num_pairs=2))
    assert got["sides"]["phyla"]["tokens_per_second"] == 3.0
    assert got["sides"]["other"]["tokens_per_second"] == 1.0
    assert (got["against"], got["ratio"], got["pairs"]) == ("other", 3.0, 2)
    half = 12.71 * 2**0.5 / 2**0.5
    assert got["ratio_interval_95"] == [round(3 - half, 3), round(3 + half, 3)]


def test_reading_prompts_is_all_their_tokens_to_the_last_first_token() -> None:
    two, _ = sides([9, 0.5], [9, 2.0])
    got = measured(Case("pp", (30, 70)), two, Effort(num_pairs=1))
    assert got["sides"]["phyla"]["tokens_per_second"] == 100 / 0.5
    assert got["ratio"] == 4.0


def test_the_share_of_the_bandwidth_counts_weights_and_what_is_stored() -> None:
    two, _ = sides([9, 0.5], [9, 1.0])
    bound = Bound(bytes_per_second=1000.0, weight_bytes=100, row_bytes=lambda tokens: 10 * tokens)
    got = measured(Case("tg", (4, 6)), two, Effort(num_tokens=10, num_pairs=1), bound)
    # 200 bytes a step make 5 steps a second at most; there were 2.
    assert got["sides"]["phyla"]["bandwidth_share"] == 0.4
    assert "bandwidth_share" not in got["sides"]["other"]


def test_acceptance_is_of_what_was_drafted_meanwhile() -> None:
    side = Scripted("phyla", [1, 1], [], drafted=[100, 140])
    got = measured(Case("tg", (4,)), [side], Effort(num_tokens=5, num_pairs=1))
    expected = {"method": "ngram", "drafted": 40, "accepted": 20, "target_calls": 10, "acceptance": 0.5}
    assert got["sides"]["phyla"]["speculation"] == expected
    assert "ratio" not in got


def test_no_pair_is_begun_after_the_seconds_of_a_case() -> None:
    two, _ = sides([1] * 9, [1] * 9)
    clock = iter([0.0, 1.0, 2.5, 3.5, 3.5])
    effort = Effort(num_tokens=5, num_pairs=8, most_seconds=3.0)
    assert measure_case(Case("tg", (4,)), two, PROMPTS, effort, None, 4096, now=lambda: next(clock))["pairs"] == 3


def test_rows_that_never_run_together_are_refused() -> None:
    class Early(Scripted):
        def run(self, prompts: Any, max_tokens: int, window: Window, *, is_fresh: bool) -> None:
            super().run(prompts[:1], max_tokens, Window(1, 1), is_fresh=is_fresh)
            window.saw([0] * (NUM_WARM + 1), 1.0)

    log: list[str] = []
    with pytest.raises(UsageError, match=r"tg@2x4: some rows had ended.*--tokens more"):
        measured(Case("tg", (4, 4)), [Early("phyla", [1.0] * 9, log)], Effort())
    # A warm-up, which may fail, and three attempts.
    assert len(log) == 4


def test_a_row_is_given_what_its_context_has_room_for() -> None:
    effort = Effort(num_tokens=10)
    assert row_cap(Case("tg", (8, 30)), effort, 4096) == NUM_WARM + 10 + NUM_SPARE
    assert row_cap(Case("tg", (8, 30)), effort, 50) == 20
    assert row_cap(Case("pp", (30,)), effort, 50) == 1
    assert least_tokens(Case("tg", (8, 30)), effort) == 30 + NUM_WARM + 10


def test_rows_that_decode_behind_the_same_length_differ_in_their_last_token() -> None:
    case = Case("tg", (9, 9, 5))
    first, second, short = PROMPTS.prompts(case, 1)
    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]
    assert (len(first), len(short)) == (9, 5)
    assert PROMPTS.prompts(case, 2) == PROMPTS.prompts(case, 1)


def test_prompts_that_are_read_are_new_each_time_and_the_same_for_both_sides() -> None:
    case = Case("pp", (9, 9))
    once, again = PROMPTS.prompts(case, 1), PROMPTS.prompts(case, 2)
    assert PROMPTS.prompts(case, 1) == once
    assert len({tuple(prompt) for prompt in once + again}) == 4
    assert all(3 <= token < 100 for prompt in once for token in prompt)


def test_a_text_is_read_again_from_its_start() -> None:
    assert PromptMaker(100, [5, 6, 7]).prompts(Case("tg", (7, 2)), 1) == [[5, 6, 7, 5, 6, 7, 5], [5, 6]]
