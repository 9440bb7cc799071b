"""The contract of a KV scheme, as a suite to subclass: once per kind it lists.

    class TestBoxes(SchemeContract):
        scheme = boxes_scheme()
        layer = LayerSpec(0, "full", (Plane("keys", 2, 64), Plane("values", 2, 64)), num_query_heads=4)
        error_bound = 0.01

Everything that holds for plain storage holds for a scheme (windows, clones, rewinding, arrays, groups); and what it
computes is near what plain storage computes, in as many bytes as it says.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from phyla.backend.device import BackendFacts
from phyla.kv.group import with_readers
from phyla.kv.plain import create_plain
from phyla.kv.prefix.publishing import Published, owned_row
from phyla.kv.row_state import TARGET, RowState
from phyla.kv.scheme import KVScheme
from phyla.kv.state import LayerState
from phyla.testing.bits import same_bits, same_state
from phyla.testing.layer_feeds import KeyValueFeed, padded_ids
from phyla.testing.layer_state import LayerStateContract
from phyla.testing.stepping import TEST_BACKEND

HISTORY = ((17, 17), (1, 1), (8, 5), (1, 1), (4, 4), (1, 1))
"""Wide, single and padded steps; the first is computed before anything is encoded."""


class SchemeContract(LayerStateContract):
    """Subclass and set `scheme`, `layer` and `error_bound`."""

    scheme: KVScheme
    error_bound: float
    """Largest error of what a step gets out, relative to what plain storage gives: root mean squares, float32."""

    backend: BackendFacts = TEST_BACKEND

    def new_state(self) -> LayerState:
        return self.scheme.create(self.layer, self.backend, "float32")

    def test_it_stores_the_kind_it_is_tested_with(self) -> None:
        assert self.layer.kind in self.scheme.kinds
        assert self.scheme.supports(self.layer, self.backend)

    def test_its_spec_reads_back_as_itself(self) -> None:
        if self.scheme.parse is None:
            assert self.scheme.spec == ""
        else:
            assert self.scheme.parse(self.scheme.spec).identity == self.scheme.identity

    @pytest.mark.parametrize("num_steps", range(1, len(HISTORY) + 1))
    def test_what_comes_out_is_near_plain_storage(self, num_steps: int) -> None:
        history = HISTORY[:num_steps]
        plain = create_plain(self.layer, self.backend, "float32")
        num_real = history[-1][1]
        want = self.give(plain, *history)[:, :num_real]
        got = self.give(self.new_state(), *history)[:, :num_real]
        error = float(mx.sqrt(mx.mean(mx.square(got - want)) / mx.mean(mx.square(want))))
        assert error <= self.error_bound, f"relative error {error:.3g} after {num_steps} steps"

    def test_a_token_takes_the_bytes_that_the_formula_says(self) -> None:
        arrays = self.filled([(40, 40), *[(1, 1)] * 4]).arrays().arrays.values()
        num_columns = next(iter(arrays)).shape[2]
        assert sum(array.nbytes for array in arrays) == self.scheme.bytes_per_token(self.layer, "float32") * num_columns

    def test_a_borrowing_layer_reads_what_its_donor_reads(self) -> None:
        state = self.filled(HISTORY)
        borrower = replace(self.layer, index=1, source=self.layer.index)
        own, reader = with_readers((self.layer, borrower), [type(state).loop([state])])
        feed, ids = KeyValueFeed(self.layer), padded_ids([[3, 4]], 2)
        computed = feed.step(own, ids, (2,))
        assert same_bits(feed.look(reader, ids, (2,)), computed)

    def test_rows_publish_and_go_on_from_what_they_published(self) -> None:
        """What the prefix index does with a row: copy exactly the used length, later clone and go on."""
        state = self.filled(HISTORY)
        row = RowState({TARGET: [state]}, range(state.num_tokens))
        kept = owned_row(Published(row)).sets[TARGET][0]
        self.assert_goes_on_equally(kept.clone(), state)
        assert same_state(kept, self.filled(HISTORY))
