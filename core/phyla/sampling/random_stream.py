"""The random numbers of one row: a key per step, so that company, chunks and windows can't move a draw."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import mlx.core as mx

_SEED_MODULUS = 1 << 64
_STEP_FACTOR = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: neighbouring steps land far apart."""


def fresh_seed() -> int:
    """A seed for a request that gave none: no two alike, however close in time."""
    return secrets.randbits(32)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of several samples of a request; the first one's is the request's own."""
    return (seed + sample * 0xD1342543DE82EF95) % _SEED_MODULUS


def step_seed(seed: int, step: int) -> int:
    """The 64-bit seed of one step.

    Args:
        seed: any integer; negative and huge ones count modulo 2^64, and 0 is a seed like others.
        step: tokens emitted so far, asserted ones included.
    """
    return (seed ^ ((step + 1) * _STEP_FACTOR)) % _SEED_MODULUS


def step_key(seed: int, step: int) -> mx.array:
    """(2,) uint32 key of one step."""
    return step_keys([(seed, step)])[0]


def step_keys(draws: Sequence[tuple[int, int]]) -> mx.array:
    """(M, 2) uint32 keys of several `(seed, step)` pairs, each as `step_key` gives it."""
    seeds = [step_seed(seed, step) for seed, step in draws]
    return mx.array([[one >> 32, one & 0xFFFFFFFF] for one in seeds], dtype=mx.uint32)


def split_keys(keys: mx.array, num: int = 2) -> list[mx.array]:
    """(M, 2) keys to `num` independent ones of the same shape."""
    halves = mx.vmap(lambda key: mx.random.split(key, num))(keys)
    return [halves[:, index] for index in range(num)]


def uniforms(keys: mx.array) -> mx.array:
    """(M, 1) float32 in [0, 1), one per key."""
    drawn: mx.array = mx.vmap(lambda key: mx.random.uniform(key=key))(keys)
    return drawn[:, None]


def categorical(logits: mx.array, keys: mx.array) -> mx.array:
    """(M,) ids drawn from (M, V) unnormalised log-probabilities.

    Each row draws what the one-dimensional form draws from its key; the (1, V) form would draw something else.
    """
    drawn: mx.array = mx.vmap(lambda row, key: mx.random.categorical(row, key=key))(logits, keys)
    return drawn
