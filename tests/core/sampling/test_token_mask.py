"""Packed masks say and do the same as sets of ids."""

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phyla.sampling.token_mask import all_allowed, allowed_only, allows, allows_nothing, masked, unpacked, without


@given(vocab_size=st.integers(1, 100), data=st.data())
def test_a_mask_keeps_exactly_its_ids(vocab_size, data):
    ids = data.draw(st.sets(st.integers(0, vocab_size - 1)))

    kept = masked(mx.zeros((1, vocab_size)), unpacked([allowed_only(ids, vocab_size)], vocab_size))

    assert {index for index, value in enumerate(kept[0].tolist()) if value == 0} == ids


@given(vocab_size=st.integers(1, 100), data=st.data())
def test_without_is_the_difference_of_sets(vocab_size, data):
    ids = data.draw(st.sets(st.integers(0, vocab_size - 1)))

    words = without(all_allowed(vocab_size), ids)

    assert {token_id for token_id in range(vocab_size + 70) if allows(words, token_id)} == set(range(vocab_size)) - ids
    assert allows_nothing(words) == (len(ids) == vocab_size)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rows_without_words_keep_everything(dtype):
    logits = mx.arange(40).reshape(1, 40).astype(dtype) + mx.zeros((2, 1), dtype=dtype)

    kept = masked(logits, unpacked([None, allowed_only([33], 40)], logits.shape[1]))

    assert kept.dtype == dtype
    assert mx.array_equal(kept[0], logits[0])
    assert [index for index, value in enumerate(kept[1].tolist()) if value > float("-inf")] == [33]


def test_ids_of_a_padded_head_are_forbidden_to_a_masked_row():
    kept = masked(mx.zeros((1, 100)), unpacked([all_allowed(50)], 100))

    assert [index for index, value in enumerate(kept[0].tolist()) if value == 0] == list(range(50))
