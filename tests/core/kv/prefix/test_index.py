"""What the prefix index serves, keeps and lets go."""

import gc

import mlx.core as mx
import pytest
from phyla.kv import LayerSpec, Layout, Plane
from phyla.kv.prefix import DraftPart, PrefixIndex, PrefixNamespace, PrefixSettings, Published
from phyla.kv.prefix.publishing import boundary_here, boundary_in_window
from phyla.kv.prefix.retention import CostForSize
from phyla.kv.row_state import RowState, draft_set
from phyla.testing.bits import same_bits, same_state

from tests.core.kv.prefix.rows import (
    FULL,
    HERE,
    LAYOUTS,
    RECURRENT,
    computed,
    empty_row,
    extend,
    feed,
    new_state,
    next_outputs,
)

PLENTY = 1 << 30
DRAFT = draft_set("toy")
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def published(layout: Layout, token_ids: list[int], **more: object) -> Published:
    return Published(computed(layout, token_ids), **more)  # type: ignore[arg-type]


def index_with(*offers: Published, budget: int = PLENTY) -> PrefixIndex:
    index = PrefixIndex(budget)
    for offer in offers:
        index.publish(HERE, offer)
    return index


@layouts
def test_a_hit_goes_on_like_the_donor(layout: Layout) -> None:
    prompt = list(range(20))
    index = index_with(published(layout, prompt))
    found = index.lookup(HERE, [*prompt, 7])
    assert found.hit is not None
    with found.hit as hit:
        row = hit.row()
    assert row.tokens == prompt
    pairs = zip(next_outputs(row, layout), next_outputs(computed(layout, prompt), layout), strict=True)
    assert all(same_bits(got, want) for got, want in pairs)


@layouts
def test_a_hit_never_changes_the_donor(layout: Layout) -> None:
    prompt = list(range(20))
    index = index_with(published(layout, prompt))
    for _ in range(2):
        hit = index.lookup(HERE, [*prompt, 7]).hit
        assert hit is not None
        extend(hit.row(), layout, [7, 8, 9])
    entry = next(index.entries())
    untouched = computed(layout, prompt).sets["target"]
    assert all(same_state(got, want) for got, want in zip(entry.row.sets["target"], untouched, strict=True))


@layouts
def test_a_row_that_lives_on_after_publishing_changes_nothing_that_was_published(layout: Layout) -> None:
    prompt = list(range(20))
    row = computed(layout, prompt)
    index = index_with(Published(row))
    extend(row, layout, [1, 2, 3])
    hit = index.lookup(HERE, [*prompt, 7]).hit
    assert hit is not None
    untouched = computed(layout, prompt).sets["target"]
    assert all(same_state(got, want) for got, want in zip(hit.row().sets["target"], untouched, strict=True))


def test_an_exact_repeat_recomputes_its_last_token() -> None:
    prompt = list(range(20))
    assert index_with(published(LAYOUTS["full"], prompt)).lookup(HERE, prompt).num_reused == 19


def test_layers_that_forget_serve_their_retained_lengths_only() -> None:
    layout, prompt = LAYOUTS["recurrent"], list(range(20))
    row = computed(layout, prompt[:12])
    boundary = boundary_here(row, "stable")
    index = index_with(Published(extend(row, layout, prompt[12:]), boundaries=[boundary]))
    assert index.lookup(HERE, prompt).num_reused == 12
    assert index.lookup(HERE, [*prompt[:12], 60, 61]).num_reused == 12
    assert index.lookup(HERE, [*prompt[:11], 60, 61]).num_reused == 0
    assert index.lookup(HERE, [*prompt[:11], 60, 61]).num_matched == 11


@layouts
def test_a_boundary_inside_a_chunk_is_taken_from_the_open_window(layout: Layout) -> None:
    prompt = list(range(24))
    row = computed(layout, prompt[:16])
    row.open_window(8)
    extend(row, layout, prompt[16:])
    boundary = boundary_in_window(row, 3, 19, "stable")
    row.keep(8)
    index = index_with(Published(row, boundaries=[boundary]))
    found = index.lookup(HERE, [*prompt[:19], 60, 61])
    assert found.num_reused == 19
    assert found.hit is not None
    assert found.hit.row().tokens == prompt[:19]
    assert [state.num_tokens for state in found.hit.row().sets["target"]] == [19] * len(layout)


def test_a_short_ring_is_reused_anywhere() -> None:
    index = index_with(published(LAYOUTS["sliding"], [1, 2, 3, 4]))
    assert index.lookup(HERE, [1, 2, 9]).num_reused == 2


@layouts
def test_the_next_turn_takes_the_place_of_the_last_and_keeps_its_lengths(layout: Layout) -> None:
    first, second = list(range(16)), list(range(32))
    index = index_with(published(layout, first), published(layout, second))
    assert index.stats()["entries"] == 1
    assert index.lookup(HERE, [*first, 60, 61]).num_reused == 16
    assert index.lookup(HERE, [*second, 60]).num_reused == 32


def test_tokens_that_are_covered_are_not_stored_again() -> None:
    layout, prompt = LAYOUTS["full"], list(range(20))
    index = index_with(published(layout, prompt))
    assert not index.publish(HERE, published(layout, prompt))
    assert not index.publish(HERE, published(layout, prompt[:9]))
    assert index.stats()["entries"] == 1


def test_a_covered_row_still_brings_its_boundaries() -> None:
    layout, prompt = LAYOUTS["recurrent"], list(range(20))
    index = index_with(published(layout, prompt))
    row = computed(layout, prompt[:7])
    boundary = boundary_here(row, "branch")
    index.publish(HERE, Published(extend(row, layout, prompt[7:]), boundaries=[boundary]))
    assert index.lookup(HERE, [*prompt[:7], 60, 61]).num_reused == 7
    assert index.stats()["entries"] == 1
    assert index.num_bytes == sum(entry.num_bytes for entry in index.entries())


@pytest.mark.parametrize(
    "other",
    [
        PrefixNamespace("other", "plain", "i"),
        PrefixNamespace("m", "affine:4", "i"),
        PrefixNamespace("m", "plain", "other"),
        PrefixNamespace("m", "plain", "i", owner="key2"),
        PrefixNamespace("m", "plain", "i", adapters=("a@1",)),
        PrefixNamespace("m", "plain", "i", media=("hash",)),
    ],
)
def test_one_namespace_never_serves_another(other: PrefixNamespace) -> None:
    index = index_with(published(LAYOUTS["full"], list(range(20))))
    assert index.lookup(other, list(range(21))).num_reused == 0
    assert index.lookup(HERE, list(range(21))).num_reused == 20
    assert other.digest() != HERE.digest()


def test_prompts_that_differ_at_the_first_token_share_nothing() -> None:
    found = index_with(published(LAYOUTS["full"], [1, 2, 3])).lookup(HERE, [9, 2, 3])
    assert (found.num_reused, found.num_matched, found.hit) == (0, 0, None)


def test_an_entry_over_the_budget_is_skipped_and_nobody_goes_for_it() -> None:
    small = published(LAYOUTS["full"], [1, 2, 3])
    index = index_with(small, budget=small.row.owned_bytes)
    assert not index.publish(HERE, published(LAYOUTS["full"], list(range(600))))
    assert index.lookup(HERE, [1, 2, 3, 4]).num_reused == 3
    assert (index.stats()["oversized"], index.stats()["evictions"]) == (1, 0)


def test_a_budget_of_nothing_keeps_nothing() -> None:
    index = PrefixIndex(0)
    assert not index.is_enabled
    assert not index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3]))


def three_under_a_budget_of_two(index: PrefixIndex | None = None) -> PrefixIndex:
    offers = [published(LAYOUTS["full"], [start, 1, 2, 3, 4, 5, 6, 7]) for start in (10, 20, 30)]
    index = index or PrefixIndex(0)
    for offer in offers[:2]:
        index.budget_bytes = PLENTY
        index.publish(HERE, offer)
    index.budget_bytes = index.num_bytes
    index.lookup(HERE, [10, 1, 2, 3, 4, 5, 6, 7, 8])
    index.publish(HERE, offers[2])
    return index


def test_the_longest_unused_goes_first() -> None:
    index = three_under_a_budget_of_two()
    kept = [index.num_reusable(HERE, [start, 1, 2, 3, 4, 5, 6, 7, 8]) for start in (10, 20, 30)]
    assert kept == [8, 0, 8]
    assert index.num_bytes <= index.budget_bytes
    assert index.stats()["evictions"] == 1


def test_a_pinned_entry_stays_until_its_hit_is_released() -> None:
    index = index_with(published(LAYOUTS["full"], [1, 2, 3]))
    hit = index.lookup(HERE, [1, 2, 3, 4]).hit
    assert hit is not None
    assert index.reclaim(1) == 0
    hit.release()
    hit.release()
    assert index.reclaim(1) > 0
    assert index.num_bytes == 0


def test_a_hit_outlives_clearing() -> None:
    index = index_with(published(LAYOUTS["full"], [1, 2, 3]))
    hit = index.lookup(HERE, [1, 2, 3, 4]).hit
    assert index.clear()["entries"] == 1
    assert hit is not None
    assert hit.row().tokens == [1, 2, 3]
    assert index.lookup(HERE, [1, 2, 3, 4]).num_reused == 0


def test_cost_for_size_keeps_what_saves_more_per_byte() -> None:
    index = PrefixIndex(PLENTY, CostForSize())
    dense, sparse = list(range(256)), [300, 301, 302]
    index.publish(HERE, published(LAYOUTS["full"], dense, has_finished=True))
    index.publish(HERE, published(LAYOUTS["full"], sparse, has_finished=True))
    index.reclaim(1)
    assert index.num_reusable(HERE, [*dense, 9]) == 256
    assert index.num_reusable(HERE, [*sparse, 9]) == 0


def test_cost_for_size_lets_age_what_is_never_used() -> None:
    index = PrefixIndex(PLENTY, CostForSize())
    index.publish(HERE, published(LAYOUTS["full"], list(range(256))))
    for start in range(300, 340):
        index.publish(HERE, published(LAYOUTS["full"], [start, 1, 2]))
        index.lookup(HERE, [start, 1, 2, 3])
        index.budget_bytes = index.num_bytes
    assert index.num_reusable(HERE, [*range(256), 9]) in (0, 256)
    assert index.num_bytes <= index.budget_bytes


def test_an_open_sessions_entry_goes_last() -> None:
    index = PrefixIndex(PLENTY)
    index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3], session_id="chat"))
    index.publish(HERE, published(LAYOUTS["full"], [7, 8, 9]))
    index.reclaim(1)
    assert index.num_reusable(HERE, [1, 2, 3, 4]) == 3
    assert index.num_reusable(HERE, [7, 8, 9, 4]) == 0


def test_a_closed_sessions_entry_is_like_any_other() -> None:
    index = PrefixIndex(PLENTY)
    index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3], session_id="chat"))
    index.publish(HERE, published(LAYOUTS["full"], [7, 8, 9]))
    assert index.close_session("chat")
    assert not index.close_session("chat")
    index.reclaim(1)
    assert index.num_reusable(HERE, [1, 2, 3, 4]) == 0


def test_a_session_belongs_to_its_owner() -> None:
    index = PrefixIndex(PLENTY)
    index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3], session_id="chat"))
    assert not index.close_session("chat", owner="somebody else")
    assert index.close_session("chat", owner="")


def test_switched_off_sessions_are_not_linked() -> None:
    index = PrefixIndex(PLENTY, use_sessions=False)
    index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3], session_id="chat"))
    assert not index.close_session("chat")


def test_a_hit_says_whether_it_was_computed_exactly() -> None:
    layout = LAYOUTS["recurrent"]
    index = index_with(
        published(layout, list(range(8)), is_exact=False), published(layout, list(range(16)), is_exact=True)
    )
    inexact, exact = index.lookup(HERE, [*range(8), 60]).hit, index.lookup(HERE, [*range(16), 60]).hit
    assert inexact is not None
    assert exact is not None
    assert (inexact.is_exact, exact.is_exact) == (False, True)


def test_an_index_for_the_exact_route_keeps_exact_rows_only() -> None:
    index = PrefixIndex(PLENTY, only_exact=True)
    assert not index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3]))
    assert index.publish(HERE, published(LAYOUTS["full"], [1, 2, 3], is_exact=True))


def test_exact_tokens_take_the_place_of_equal_ones_that_are_not() -> None:
    index = index_with(published(LAYOUTS["full"], [1, 2, 3]), published(LAYOUTS["full"], [1, 2, 3], is_exact=True))
    hit = index.lookup(HERE, [1, 2, 3, 4]).hit
    assert hit is not None
    assert hit.is_exact
    assert index.stats()["entries"] == 1


def with_draft(token_ids: list[int], num_drafted: int, forgets: bool = False) -> RowState:
    row = computed((FULL,), token_ids)
    layer = RECURRENT if forgets else FULL
    state = new_state(layer)
    mx.eval(feed(layer, state, token_ids[:num_drafted]))
    row.add_set(DRAFT, [state])
    return row


def test_a_draft_set_comes_back_with_its_target() -> None:
    index = index_with(Published(with_draft([1, 2, 3, 4], 3), drafts={DRAFT: DraftPart("weights", lag=1)}))
    hit = index.lookup(HERE, [1, 2, 3, 9, 9], drafts={DRAFT: "weights"}).hit
    assert hit is not None
    row = hit.row()
    assert (row.num_tokens, row.sets[DRAFT][0].num_tokens) == (3, 2)


def test_a_target_is_served_without_a_draft_set_of_other_weights() -> None:
    index = index_with(Published(with_draft([1, 2, 3, 4], 3), drafts={DRAFT: DraftPart("weights", lag=1)}))
    hit = index.lookup(HERE, [1, 2, 3, 4, 9], drafts={DRAFT: "other weights"}).hit
    assert hit is not None
    assert set(hit.row().sets) == {"target"}


def test_a_target_is_served_without_a_draft_set_that_cannot_go_back() -> None:
    row = with_draft([1, 2, 3, 4], 3, forgets=True)
    index = index_with(Published(row, drafts={DRAFT: DraftPart("weights", lag=1)}))
    shorter = index.lookup(HERE, [1, 2, 9, 9], drafts={DRAFT: "weights"}).hit
    whole = index.lookup(HERE, [1, 2, 3, 4, 9], drafts={DRAFT: "weights"}).hit
    assert shorter is not None
    assert whole is not None
    assert (set(shorter.row().sets), set(whole.row().sets)) == ({"target"}, {"target", DRAFT})


def test_a_draft_set_that_forgets_comes_back_where_a_boundary_is() -> None:
    part = {DRAFT: DraftPart("weights")}
    row = with_draft([1, 2, 3, 4], 4, forgets=True)
    boundary = boundary_here(row, "stable")
    mx.eval(feed(RECURRENT, row.sets[DRAFT][0], [5, 6]))
    index = index_with(Published(extend(row, (FULL,), [5, 6]), boundaries=[boundary], drafts=part))

    sets = {}
    for length in (3, 4, 5):
        hit = index.lookup(HERE, [*range(1, length + 1), 9, 9], drafts={DRAFT: "weights"}).hit
        assert hit is not None
        assert hit.num_tokens == length, "the target alone can go back everywhere"
        sets[length] = set(hit.row().sets)
    assert sets == {3: {"target"}, 4: {"target", DRAFT}, 5: {"target"}}


def test_a_longer_entry_takes_over_where_a_draft_set_that_forgets_stood() -> None:
    part = {DRAFT: DraftPart("weights")}
    short, longer = ([*range(1, length)] for length in (5, 8))
    index = index_with(*(Published(with_draft(ids, len(ids), forgets=True), drafts=part) for ids in (short, longer)))
    assert index.stats()["entries"] == 1
    hit = index.lookup(HERE, [*short, 9], drafts={DRAFT: "weights"}).hit
    assert hit is not None
    row = hit.row()
    assert (row.num_tokens, row.sets[DRAFT][0].num_tokens) == (4, 4)


def test_among_equal_lengths_the_entry_with_the_draft_set_wins() -> None:
    plain = published(LAYOUTS["full"], [1, 2, 3, 7])
    drafted = Published(with_draft([1, 2, 3, 8], 3), drafts={DRAFT: DraftPart("weights", lag=1)})
    hit = index_with(drafted, plain).lookup(HERE, [1, 2, 3, 9], drafts={DRAFT: "weights"}).hit
    assert hit is not None
    assert DRAFT in hit.row().sets


def test_a_set_that_was_not_named_is_not_kept() -> None:
    entry = next(index_with(Published(with_draft([1, 2, 3, 4], 3))).entries())
    assert set(entry.row.sets) == {"target"}


def test_an_entry_of_a_row_that_lives_on_has_no_slack() -> None:
    index = index_with(published(LAYOUTS["full"], list(range(10))))
    assert index.num_bytes == 10 * (4 + 4) * 4


def test_counters_say_what_happened() -> None:
    index = index_with(published(LAYOUTS["full"], [1, 2, 3]))
    index.lookup(HERE, [1, 2, 3, 4])
    index.lookup(HERE, [9, 9])
    stats = index.stats()
    assert (stats["hits"], stats["misses"], stats["hit_tokens"], stats["entries"]) == (1, 1, 3, 1)
    assert stats["bytes"] == index.num_bytes


@pytest.mark.parametrize("has_finished", [False, True])
def test_memory_is_what_is_accounted(has_finished: bool) -> None:
    wide = (Plane("keys", 4, 64), Plane("values", 4, 64))
    layout = (
        LayerSpec(0, "full", wide, num_query_heads=4),
        LayerSpec(1, "sliding", wide, window=300, num_query_heads=4),
    )
    index = PrefixIndex(PLENTY)
    mx.clear_cache()
    gc.collect()
    before = mx.get_active_memory()
    for start in range(6):
        row = extend(empty_row(layout), layout, [start, *range(1200), 3], chunk=400)
        index.publish(HERE, Published(row, has_finished=has_finished))
        del row
    gc.collect()
    held = mx.get_active_memory() - before
    assert abs(held - index.num_bytes) <= 0.01 * index.num_bytes
    index.clear()
    gc.collect()
    assert mx.get_active_memory() - before <= 4096


def test_settings_take_sizes_with_suffixes() -> None:
    assert PrefixSettings().cache_bytes == 8 << 30
    assert PrefixSettings(cache_bytes="512MiB").cache_bytes == 512 << 20  # type: ignore[arg-type]
    assert PrefixIndex.configured(PrefixSettings(cache_bytes=2)).budget_bytes == 2 << 30


def test_a_short_ring_that_serves_every_length_stays_beside_a_longer_one() -> None:
    short, longer = [1, 2, 3, 4], [1, 2, 3, 4, *range(20)]
    index = index_with(published(LAYOUTS["sliding"], short), published(LAYOUTS["sliding"], longer))
    assert index.lookup(HERE, [1, 2, 9]).num_reused == 2
    assert index.lookup(HERE, [*longer, 9]).num_reused == len(longer)


def test_an_entry_with_a_draft_set_stays_beside_a_longer_one_without() -> None:
    drafted = Published(with_draft([1, 2, 3], 2), drafts={DRAFT: DraftPart("weights", lag=1)})
    index = index_with(drafted, published(LAYOUTS["full"], [1, 2, 3, 4, 5]))
    assert index.stats()["entries"] == 2


def test_the_least_telling_boundaries_go_when_there_are_too_many() -> None:
    layout, prompt = LAYOUTS["recurrent"], list(range(30))
    row, boundaries = computed(layout, prompt[:5]), []
    for length, kind in ((10, "chunk"), (15, "stable"), (20, "chunk")):
        extend(row, layout, prompt[row.num_tokens : length])
        boundaries.append(boundary_here(row, kind))  # type: ignore[arg-type]
    index = PrefixIndex(PLENTY, max_boundaries=2)
    index.publish(HERE, Published(extend(row, layout, prompt[20:]), boundaries=boundaries))
    reused = [index.lookup(HERE, [*prompt[:length], 60, 61]).num_reused for length in (10, 15, 20)]
    assert reused == [0, 15, 20]


def test_an_entry_gives_up_its_boundaries_before_it_is_oversized() -> None:
    layout, prompt = LAYOUTS["recurrent"], list(range(20))
    row = computed(layout, prompt[:10])
    boundary = boundary_here(row, "stable")
    offer = Published(extend(row, layout, prompt[10:]), boundaries=[boundary])
    index = index_with(offer, budget=index_with(published(layout, prompt)).num_bytes)
    assert index.lookup(HERE, [*prompt, 60]).num_reused == 20
    assert index.stats()["boundaries"] == 0
