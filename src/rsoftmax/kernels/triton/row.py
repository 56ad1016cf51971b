"""Shared by the kernels: rows in memory, the exponential, and floats as ordered integers.

A program maps a few rows, chunk by chunk of their columns. A row that fits into one chunk is read once and stays in
registers; longer rows are read again in each pass. A pass is written once for both:

    for start in range(0, end(line), BLOCK):
        entries = chunk(line, start)
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


class Line(NamedTuple):
    """The rows of a program: their first chunk, and how to read the others, if any."""

    tile: Any
    tensor: Rows | None
    mask: Rows | None
    row: Any  # the indices of the rows
    col: Any  # the columns of a chunk
    n: int
    beyond: float  # the value of removed entries, and of those beyond the end of a row


@triton.jit
def places(rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The indices of this program's rows and of a chunk's columns. Beyond the last row, that row is computed again."""
    return tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1), tl.arange(0, BLOCK)


@triton.jit
def end(line):
    """The end of a pass over the columns."""
    return line.tile.shape[1] if line.tensor is None else line.n


@triton.jit
def chunk(line, start):
    """Some columns of a program's rows."""
    if line.tensor is None:
        return line.tile
    else:
        return entries(line.tensor, line.mask, line.row, start + line.col, line.n, line.beyond)


@triton.jit
def entries(tensor, mask, row, col, n, beyond):
    """Entries of rows as float32."""
    read = load(tensor, row, col, n, beyond).to(tl.float32)
    if mask is not None:
        read = tl.where(load(mask, row, col, n, 0), read, beyond)
    return read


@triton.jit
def load(tensor, row, col, n, beyond):
    """Entries of rows in their stored dtype."""
    place = beginning(tensor, row)[:, None] + col.to(tl.int64)[None, :] * tensor.step
    return tl.load(place, mask=col[None, :] < n, other=beyond)


@triton.jit
def beginning(tensor, row):
    """Where rows begin in memory."""
    place = tensor.data
    for i in tl.static_range(len(tensor.sizes)):
        place += (row % tensor.sizes[i]).to(tl.int64) * tensor.strides[i]
        row = row // tensor.sizes[i]
    return place + row.to(tl.int64) * tensor.strides[len(tensor.sizes)]


@triton.jit
def write(to, row, col, n, entries):
    """Store entries of contiguous rows."""
    place = to + row.to(tl.int64)[:, None] * n + col[None, :]
    tl.store(place, entries.to(to.dtype.element_ty), mask=col[None, :] < n)


@triton.jit
def lifted_exp(d):
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
