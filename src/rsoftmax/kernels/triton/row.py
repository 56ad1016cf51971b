"""Shared by the kernels: rows in memory, the exponential, floats as ordered integers, order statistics.

A program maps a few rows, chunk by chunk of their columns. A row that fits into one chunk is read once and stays in
registers; longer rows are read again in each pass. A pass is written once for both:

    for start in range(0, end(chunks), BLOCK):
        entries = chunk(chunks, start)
"""
# mypy: ignore-errors
# ruff: noqa: N803

from typing import Any, NamedTuple

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)
SMALLEST = tl.constexpr(1.401298464324817e-45)
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)

LOG2_E = tl.constexpr(1.4426950408889634)
LN2_HIGH = tl.constexpr(0.693359375)  # ln 2 in two terms: the product of the first with a small integer is exact
LN2_LOW = tl.constexpr(-2.12194440e-4)
ROUND = tl.constexpr(1.5 * 2**23 + 64)  # added to a small number, leaves its nearest integer + 64 in the lowest bits


class Rows(NamedTuple):
    """A tensor as rows. The index of a row, divided by the sizes in turn, gives its index along each stride."""

    data: Any
    step: int  # from one entry of a row to the next
    sizes: tuple[int, ...]  # of all dimensions of rows but the outermost, innermost first
    strides: tuple[int, ...]


class Chunks(NamedTuple):
    """The rows of a program: their first chunk, and how to read the others, if any."""

    tile: Any
    tensor: Rows | None
    mask: Rows | None
    row: Any  # the indices of the rows
    col: Any  # the columns of a chunk
    n: int
    other: float  # the value of masked entries, and of those beyond the end of a row


@triton.jit
def indices(rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The indices of this program's rows and of a chunk's columns. Beyond the last row, that row is computed again."""
    return tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1), tl.arange(0, BLOCK)


@triton.jit
def end(chunks):
    """The end of a pass over the columns."""
    return chunks.tile.shape[1] if chunks.tensor is None else chunks.n


@triton.jit
def chunk(chunks, start):
    """Some columns of a program's rows."""
    if chunks.tensor is None:
        return chunks.tile
    else:
        return load_rows(chunks.tensor, chunks.mask, chunks.row, start + chunks.col, chunks.n, chunks.other)


@triton.jit
def load_rows(tensor, mask, row, col, n, other):
    """Entries of rows as float32."""
    read = load(tensor, row, col, n, other).to(tl.float32)
    if mask is not None:
        read = tl.where(load(mask, row, col, n, 0), read, other)
    return read


@triton.jit
def load(tensor, row, col, n, other):
    """Entries of rows in their stored dtype."""
    address = row_start(tensor, row)[:, None] + col.to(tl.int64)[None, :] * tensor.step
    return tl.load(address, mask=col[None, :] < n, other=other)


@triton.jit
def row_start(tensor, row):
    """Where rows begin in memory."""
    address = tensor.data
    for i in tl.static_range(len(tensor.sizes)):
        address += (row % tensor.sizes[i]).to(tl.int64) * tensor.strides[i]
        row = row // tensor.sizes[i]
    return address + row.to(tl.int64) * tensor.strides[len(tensor.sizes)]


@triton.jit
def store_rows(to, row, col, n, entries):
    """Store entries of contiguous rows."""
    address = to + row.to(tl.int64)[:, None] * n + col[None, :]
    tl.store(address, entries.to(to.dtype.element_ty), mask=col[None, :] < n)


@triton.jit
def scaled_exp(d):
    """``2^64 e^d`` for d <= 0, within 2 units in the last place: d = k ln 2 + r, and a polynomial for e^r.

    With the factor, every result is a normal number; the division by a sum of such results cancels it.
    """
    d = tl.maximum(d, -104.0)  # below, e^d rounds to zero
    shifted = d * LOG2_E + ROUND
    k = shifted - ROUND
    r = (d - k * LN2_HIGH) - k * LN2_LOW
    e = 1.38145964699801597e-3 * r + 8.36871685026245498e-3
    e = e * r + 4.16683880721639183e-2
    e = e * r + 1.66665206321606605e-1
    e = e * r + 4.99999934477993070e-1
    e = (e * r + 1.0) * r + 1.0
    return (e.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def key(x):
    """A float as an integer, in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unkey(k):
    """The float of a key."""
    return (k ^ ((k >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def round_down(a):
    """The largest float32 that is not above a float64, so that ``x > round_down(a)`` is ``x > a`` for every float32."""
    near = a.to(tl.float32)
    return tl.where(near.to(tl.float64) > a, unkey(key(near) - 1), near)


@triton.jit
def power_near_inverse(span):
    """A power of two near 1 / span, by which numbers can be multiplied without rounding."""
    exponent = span.to(tl.int32, bitcast=True) >> 23
    return (tl.maximum(254 - exponent, 1) << 23).to(tl.float32, bitcast=True)


# --------------------------------------------------------------------------- extremes and order statistics


@triton.jit
def row_statistics(chunks):
    """The largest and the smallest unmasked entry, their number, and whether there is a NaN or +inf.

    The largest is 0 in a fully masked row, or in a row with NaN or +inf.
    """
    top = tl.full(chunks.tile.shape, -INF, tl.float32)
    bottom = tl.full(chunks.tile.shape, INF, tl.float32)
    count = tl.zeros_like(chunks.tile)
    bad = tl.zeros_like(chunks.tile)
    for start in range(0, end(chunks), chunks.tile.shape[1]):
        v = chunk(chunks, start)
        top = tl.maximum(top, v)
        bottom = tl.minimum(bottom, tl.where(v > -INF, v, INF))
        count += tl.where(v > -INF, 1.0, 0.0)
        bad += tl.where(v < INF, 0.0, 1.0)
    top, bottom, count, bad = tl.max(top, 1), tl.min(bottom, 1), tl.sum(count, 1), tl.sum(bad, 1) > 0
    count = tl.where(bad, 0.0, count)
    return tl.where(count == 0, 0.0, top), bottom, count, bad


@triton.jit
def kth_largest(chunks, k, bottom, top, PIVOTS: tl.constexpr):
    """The k-th largest entry of each row, of those from ``bottom`` to ``top``.

    Bisection on keys: ``low`` has at least k entries from it on, everything above ``high`` has fewer. It ends when one
    key is left or exactly k entries remain. Rows that are read again in each pass are divided by several pivots.
    """
    low, high = key(bottom), key(top)
    share = (tl.arange(0, PIVOTS) + 1).to(tl.uint32)[None, :]
    while tl.max((low < high).to(tl.int32), 0) > 0:
        span = tl.where(low < high, high - low, 0).to(tl.uint32, bitcast=True)[:, None]
        step = (span + PIVOTS) // (PIVOTS + 1)  # rounded up
        pivot = low[:, None] + tl.minimum(step * share, span).to(tl.int32, bitcast=True)
        count = count_from(chunks, unkey(pivot))
        enough = count >= k[:, None]
        exact = tl.min(tl.where(enough, count, INF), 1) == k
        low = tl.max(tl.where(enough, pivot, low[:, None]), 1)
        high = tl.where(exact, low, tl.min(tl.where(enough, high[:, None], pivot - 1), 1))
    return least_from(chunks, unkey(low))


@triton.jit
def count_from(chunks, limits):
    """How many entries of each row are not below each of its limits."""
    count = tl.zeros([limits.shape[0], limits.shape[1], chunks.tile.shape[1]], tl.float32)
    for start in range(0, end(chunks), chunks.tile.shape[1]):
        count += tl.where(chunk(chunks, start)[:, None, :] >= limits[:, :, None], 1.0, 0.0)
    return tl.sum(count, 2)


@triton.jit
def least_from(chunks, limit):
    """The smallest entry of each row that is not below a limit."""
    least = tl.full(chunks.tile.shape, INF, tl.float32)
    for start in range(0, end(chunks), chunks.tile.shape[1]):
        v = chunk(chunks, start)
        least = tl.minimum(least, tl.where(v >= limit[:, None], v, INF))
    return tl.min(least, 1)


@triton.jit
def count_above(chunks, lo):
    """How many entries of each row are larger than ``lo``, and the smallest of them."""
    count = tl.zeros_like(chunks.tile)
    least = tl.full(chunks.tile.shape, INF, tl.float32)
    for start in range(0, end(chunks), chunks.tile.shape[1]):
        v = chunk(chunks, start)
        count += tl.where(v > lo[:, None], 1.0, 0.0)
        least = tl.minimum(least, tl.where(v > lo[:, None], v, INF))
    return tl.sum(count, 1), tl.min(least, 1)
