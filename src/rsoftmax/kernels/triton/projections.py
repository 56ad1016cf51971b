"""sparsemax and entmax15: ``p = [z - tau]+^power``, z = (x - max) / power, tau such that the row sums to one.

The norm of [z - tau]+ is decreasing and convex in tau, so Newton's steps approach the root from the left and never pass
it. They begin in float32 at -1, below every root; the last ones, which decide the support, are in float64 as in the
reference. ``backward`` is the gradient of softmax, too.
"""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from rsoftmax.kernels.triton.row import (
    INF,
    Chunks,
    chunk,
    end,
    indices,
    load_rows,
    round_down,
    row_statistics,
    store_rows,
)


@triton.jit
def forward(
    x, mask, p, rows, n,
    POWER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Map rows of ``x`` into ``p``."""
    row, col = indices(rows, ROWS, BLOCK)
    chunks = Chunks(load_rows(x, mask, row, col, n, -INF), None if WHOLE else x, mask, row, col, n, -INF)
    m, _, count, bad = row_statistics(chunks)
    tau = newton(chunks, m, count > 0, tl.zeros_like(m) - 1, POWER)
    tau = newton(chunks, m, count > 0, step(chunks, m, tau.to(tl.float64), POWER), POWER)
    limit, near = round_down(tau)[:, None], tau.to(tl.float32)
    rest = (tau - near.to(tl.float64)).to(tl.float32)
    for start in range(0, end(chunks), BLOCK):
        z = scaled(chunk(chunks, start), m, POWER)
        above = tl.where(z > limit, tl.maximum((z - near[:, None]) - rest[:, None], 0.0), 0.0)
        share = above * above if POWER == 2 else above
        store_rows(p, row, start + col, n, tl.where(bad[:, None], float("nan"), share))


@triton.jit
def newton(chunks, m, going, tau, POWER: tl.constexpr):
    """Newton's steps from the left, as long as they rise."""
    while tl.max(going.to(tl.int32), 0) > 0:
        higher = step(chunks, m, tau, POWER)
        going = going & (higher > tau)
        tau = tl.where(going, higher, tau)
    return tau


@triton.jit
def step(chunks, m, tau, POWER: tl.constexpr):
    """One of Newton's steps for ``(sum [z - tau]+^power)^(1/power) = 1``, in the precision of tau."""
    count = tl.zeros_like(chunks.tile)
    sum_ = tl.zeros_like(chunks.tile).to(tau.dtype)
    square_sum = tl.zeros_like(chunks.tile).to(tau.dtype)
    for start in range(0, end(chunks), chunks.tile.shape[1]):
        z = scaled(chunk(chunks, start), m, POWER).to(tau.dtype)
        support = z > tau[:, None]
        if POWER == 1:
            count += tl.where(support, 1.0, 0.0)
            sum_ += tl.where(support, z, 0.0)
        else:
            above = tl.where(support, z - tau[:, None], 0.0)
            sum_ += above
            square_sum += above * above
    sum_ = tl.sum(sum_, 1)
    if POWER == 1:
        return (sum_ - 1) / tl.sum(count, 1).to(tau.dtype)
    norm = tl.sqrt(tl.sum(square_sum, 1))
    return tau + norm * (norm - 1) / sum_


@triton.jit
def scaled(v, m, POWER: tl.constexpr):
    """(x - max) / power."""
    return (v - m[:, None]) * (1.0 / POWER)


@triton.jit
def backward(g, p, dx, rows, n, NAME: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """The gradient in the rows."""
    row, col = indices(rows, ROWS, BLOCK)
    ps = Chunks(load_rows(p, None, row, col, n, 0.0), None if WHOLE else p, None, row, col, n, 0.0)
    gs = Chunks(load_rows(g, None, row, col, n, 0.0), None if WHOLE else g, None, row, col, n, 0.0)
    total = tl.zeros_like(ps.tile)
    mean = tl.zeros_like(ps.tile)
    for start in range(0, end(ps), BLOCK):
        q = slope(chunk(ps, start), NAME)
        total += q
        mean += q * chunk(gs, start)
    total = tl.sum(total, 1)
    mean = (tl.sum(mean, 1) / tl.where(total == 0, 1.0, total))[:, None]
    for start in range(0, end(ps), BLOCK):
        store_rows(dx, row, start + col, n, slope(chunk(ps, start), NAME) * (chunk(gs, start) - mean))


@triton.jit
def slope(p, NAME: tl.constexpr):
    """dp/dx of an entry, if threshold and sum stood still: p, or 1 or the root of p in the support. NaN stays NaN."""
    if NAME == "sparsemax":
        return tl.where(p > 0, 1.0, p)
    elif NAME == "entmax15":
        return tl.sqrt(p)
    else:
        return p
