"""Embeddings: lookup, tied projection, scale and overlay."""

import mlx.core as mx
from phyla.model.step import Overlay, StepInput
from phyla.nn.embedding import Embedding, embed_step
from phyla.nn.weight import Weight
from phyla.testing.weights import random_tensors

TABLE = random_tensors({"e.weight": (32, 16)})["e.weight"]


def step(overlay=None):
    return StepInput(mx.array([[1, 2, 3], [4, 5, 0]]), (3, 2), (0, 0), overlay=overlay)


def test_a_step_is_embedded_as_one_row_of_all_its_tokens():
    hidden = embed_step(Embedding(Weight(TABLE)), step())
    assert mx.array_equal(hidden, TABLE[mx.array([1, 2, 3, 4, 5, 0])])


def test_the_tied_projection_is_the_product_with_the_table():
    hidden = TABLE[None, :4]
    assert mx.array_equal(Embedding(Weight(TABLE)).project(hidden), hidden @ TABLE.T)


def test_overlay_rows_replace_embeddings_and_are_not_scaled_again():
    overlay = Overlay(mx.array([1, 4]), mx.ones((2, 16)), mx.array([0, 0]))
    hidden = embed_step(Embedding(Weight(TABLE)), step(overlay), scale=mx.array(3.0))
    assert mx.array_equal(hidden[mx.array([1, 4])], mx.ones((2, 16)))
    assert mx.array_equal(hidden[0], 3.0 * TABLE[1])


def test_an_overlay_leaves_the_table_as_it_was():
    table = mx.array(TABLE)
    overlay = Overlay(mx.array([0]), mx.ones((1, 16)), mx.array([0]))
    mx.eval(embed_step(Embedding(Weight(table)), step(overlay)))
    assert mx.array_equal(table, TABLE)
