"""The radix tree against a list that is searched whole."""

import time
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.kv.prefix.packed import num_common, packed
from phyla.kv.prefix.radix import RadixTree

short_ids = st.lists(st.integers(0, 2), min_size=1, max_size=9)
repeatable = settings(max_examples=300, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Stored:
    """An entry as a plain value: what it can serve is written down."""

    number: int
    ids: tuple[int, ...]
    floor: int
    marks: frozenset[int]

    def best(self, prompt: list[int]) -> int:
        shared = num_common(packed(self.ids), packed(prompt))
        served = {*range(self.floor, len(self.ids) + 1), *self.marks}
        return max((length for length in served if length <= shared), default=0)


@st.composite
def stored(draw: st.DrawFn) -> list[Stored]:
    entries = []
    for number, ids in enumerate(draw(st.lists(short_ids, max_size=8))):
        floor = draw(st.integers(0, len(ids)))
        marks = draw(st.frozensets(st.integers(1, len(ids)), max_size=3))
        entries.append(Stored(number, tuple(ids), floor, marks))
    return entries


def tree_of(entries: list[Stored]) -> RadixTree[Stored]:
    tree: RadixTree[Stored] = RadixTree()
    for entry in entries:
        tree.insert(packed(entry.ids), entry, entry.floor, entry.marks)
    return tree


def assert_agrees(tree: RadixTree[Stored], entries: list[Stored], prompt: list[int]) -> None:
    best = max((entry.best(prompt) for entry in entries), default=0)
    found = list(tree.candidates(packed(prompt)))
    assert (found[0][0] if found else 0) == best
    assert [length for length, _ in found] == sorted({length for length, _ in found}, reverse=True)
    if best > 0:
        assert set(found[0][1]) == {entry for entry in entries if entry.best(prompt) == best}
    shared = [num_common(packed(entry.ids), packed(prompt)) for entry in entries]
    assert tree.num_matched(packed(prompt)) == max(shared, default=0)


@repeatable
@given(entries=stored(), prompt=short_ids)
def test_the_longest_servable_prefix_is_found_with_everyone_who_serves_it(
    entries: list[Stored], prompt: list[int]
) -> None:
    assert_agrees(tree_of(entries), entries, prompt)


@repeatable
@given(entries=stored(), prompt=short_ids, data=st.data())
def test_a_tree_with_entries_removed_is_a_tree_that_never_had_them(
    entries: list[Stored], prompt: list[int], data: st.DataObject
) -> None:
    tree = tree_of(entries)
    gone = data.draw(st.lists(st.sampled_from(entries), unique=True)) if entries else []
    for entry in gone:
        tree.remove(packed(entry.ids), entry)
    left = [entry for entry in entries if entry not in gone]
    assert_agrees(tree, left, prompt)
    assert tree.is_empty == (not left)


@given(one=short_ids, other=short_ids)
def test_common_tokens_are_counted_as_a_loop_would(one: list[int], other: list[int]) -> None:
    loop = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert num_common(packed(one), packed(other)) == loop


def test_ids_past_65536_are_told_apart() -> None:
    assert num_common(packed([1, 70000]), packed([1, 70000 - 65536])) == 1


def lookup_seconds(num_entries: int = 1000, length: int = 8192) -> float:
    """For the benchmark script and for a reader who wonders: the mean time of one lookup."""
    tree: RadixTree[int] = RadixTree()
    prompts = [[number] * 3 + list(range(length - 3)) for number in range(num_entries)]
    for number, prompt in enumerate(prompts):
        tree.insert(packed(prompt), number, 0, ())
    begun = time.perf_counter()
    for prompt in prompts:
        next(tree.candidates(packed(prompt)))
    return (time.perf_counter() - begun) / num_entries
