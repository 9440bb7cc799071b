"""The codebooks computed anew, in float64: Lloyd's iteration on 200,000 standard normals of MLX's own stream."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

NUM_SAMPLES = 200_000
MAX_ITERATIONS = 500


def lloyd_max(bits: int) -> np.ndarray:
    """The centroids that minimise the squared error of a standard normal in 2^bits cells, ascending.

    Source:
        Lloyd 1982, method I, on a sample.
    """
    samples = np.sort(np.array(mx.random.normal((NUM_SAMPLES,), key=mx.random.key(0))).astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(samples)])
    centroids = np.linspace(samples[0], samples[-1], 2**bits)
    tolerance = 1e-6 if bits < 5 else 1e-4
    for _ in range(MAX_ITERATIONS):
        # A sample on a boundary belongs to the lower cell.
        edges = np.searchsorted(samples, (centroids[1:] + centroids[:-1]) / 2, side="right")
        edges = np.concatenate([[0], edges, [NUM_SAMPLES]])
        counts = np.diff(edges)
        moved = np.where(counts > 0, np.diff(sums[edges]) / np.maximum(counts, 1), centroids)
        step, centroids = np.abs(moved - centroids).max(), moved
        if step < tolerance:
            break
    return centroids
