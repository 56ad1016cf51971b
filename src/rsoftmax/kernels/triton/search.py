"""Extremes and order statistics of rows."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from rsoftmax.kernels.triton.row import INF, chunk, end, key, unkey


@triton.jit
def survey(line):
    """The largest and the smallest kept entry, how many are kept, and whether there is a NaN or +inf.

    The largest is 0 if nothing is kept, or in a row with NaN or +inf.
    """
    top = tl.full(line.tile.shape, -INF, tl.float32)
    bottom = tl.full(line.tile.shape, INF, tl.float32)
    kept = tl.zeros_like(line.tile)
    bad = tl.zeros_like(line.tile)
    for start in range(0, end(line), line.tile.shape[1]):
        v = chunk(line, start)
        top = tl.maximum(top, v)
        bottom = tl.minimum(bottom, tl.where(v > -INF, v, INF))
        kept += tl.where(v > -INF, 1.0, 0.0)
        bad += tl.where(v < INF, 0.0, 1.0)
    top, bottom, kept, bad = tl.max(top, 1), tl.min(bottom, 1), tl.sum(kept, 1), tl.sum(bad, 1) > 0
    kept = tl.where(bad, 0.0, kept)
    return tl.where(kept == 0, 0.0, top), bottom, kept, bad


@triton.jit
def kth_largest(line, k, bottom, top, PIVOTS: tl.constexpr):
    """The k-th largest entry of each row, of those from ``bottom`` to ``top``.

    Bisection on keys: ``low`` has at least k entries from it on, everything above ``high`` has fewer. It ends when one
    key is left or exactly k entries are found. Rows that are read again in each pass are divided by several pivots.
    """
    low, high = key(bottom), key(top)
    share = (tl.arange(0, PIVOTS) + 1).to(tl.uint32)[None, :]
    while tl.max((low < high).to(tl.int32), 0) > 0:
        span = tl.where(low < high, high - low, 0).to(tl.uint32, bitcast=True)[:, None]
        step = (span + PIVOTS) // (PIVOTS + 1)  # rounded up
        pivot = low[:, None] + tl.minimum(step * share, span).to(tl.int32, bitcast=True)
        count = count_from(line, unkey(pivot))
        enough = count >= k[:, None]
        found = tl.min(tl.where(enough, count, INF), 1) == k
        low = tl.max(tl.where(enough, pivot, low[:, None]), 1)
        high = tl.where(found, low, tl.min(tl.where(enough, high[:, None], pivot - 1), 1))
    return least_from(line, unkey(low))


@triton.jit
def count_from(line, limits):
    """How many entries of each row are not below each of its limits."""
    count = tl.zeros([limits.shape[0], limits.shape[1], line.tile.shape[1]], tl.float32)
    for start in range(0, end(line), line.tile.shape[1]):
        count += tl.where(chunk(line, start)[:, None, :] >= limits[:, :, None], 1.0, 0.0)
    return tl.sum(count, 2)


@triton.jit
def least_from(line, limit):
    """The smallest entry of each row that is not below a limit."""
    least = tl.full(line.tile.shape, INF, tl.float32)
    for start in range(0, end(line), line.tile.shape[1]):
        v = chunk(line, start)
        least = tl.minimum(least, tl.where(v >= limit[:, None], v, INF))
    return tl.min(least, 1)


@triton.jit
def count_above(line, lo):
    """How many entries of each row are larger than ``lo``, and the smallest of them."""
    count = tl.zeros_like(line.tile)
    least = tl.full(line.tile.shape, INF, tl.float32)
    for start in range(0, end(line), line.tile.shape[1]):
        v = chunk(line, start)
        count += tl.where(v > lo[:, None], 1.0, 0.0)
        least = tl.minimum(least, tl.where(v > lo[:, None], v, INF))
    return tl.sum(count, 1), tl.min(least, 1)
