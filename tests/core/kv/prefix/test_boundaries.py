"""Where layers that forget are photographed, and what is kept of it."""

from phyla.kv.prefix.boundaries import Boundary, plan_boundaries, worth_keeping


def test_the_last_token_is_never_retained_behind() -> None:
    assert plan_boundaries(num_cached=0, num_prompt=10) == [(9, "end")]
    assert plan_boundaries(num_cached=0, num_prompt=10, stable_boundary=10) == [(9, "stable")]


def test_what_is_cached_already_is_not_retained_again() -> None:
    assert plan_boundaries(num_cached=9, num_prompt=10, stable_boundary=8, branch=9) == []


def test_the_branch_where_an_earlier_prompt_left_is_retained() -> None:
    planned = plan_boundaries(num_cached=0, num_prompt=20, stable_boundary=15, branch=12)
    assert planned == [(12, "branch"), (15, "stable"), (19, "end")]


def test_chunk_edges_thin_out_towards_the_front() -> None:
    planned = plan_boundaries(num_cached=0, num_prompt=16 * 2048 + 5, chunk_edges=range(2048, 16 * 2048 + 1, 2048))
    assert [length // 2048 for length, kind in planned if kind == "chunk"] == [8, 12, 14, 15, 16]


def test_used_boundaries_stay_before_telling_ones_and_long_ones() -> None:
    chunk, used = Boundary(8, {}, "chunk"), Boundary(2, {}, "chunk", num_uses=1)
    stable, end = Boundary(4, {}, "stable"), Boundary(6, {}, "end")
    kept = worth_keeping([chunk, used, stable, end], 3)
    assert [boundary.num_tokens for boundary in kept] == [2, 4, 6]
