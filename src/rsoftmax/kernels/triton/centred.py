"""The gradient of softmax, sparsemax and entmax15: ``q (g - mean of g under q)``, where q is what p depends on x by."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from rsoftmax.kernels.triton.row import Line, chunk, end, entries, places, write


@triton.jit
def backward(g, p, dx, rows, n, NAME: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """The gradient in the rows."""
    row, col = places(rows, ROWS, BLOCK)
    ps = Line(entries(p, None, row, col, n, 0.0), None if WHOLE else p, None, row, col, n, 0.0)
    gs = Line(entries(g, None, row, col, n, 0.0), None if WHOLE else g, None, row, col, n, 0.0)
    total = tl.zeros_like(ps.tile)
    mean = tl.zeros_like(ps.tile)
    for start in range(0, end(ps), BLOCK):
        q = steepness(chunk(ps, start), NAME)
        total += q
        mean += q * chunk(gs, start)
    total = tl.sum(total, 1)
    mean = (tl.sum(mean, 1) / tl.where(total == 0, 1.0, total))[:, None]
    for start in range(0, end(ps), BLOCK):
        write(dx, row, start + col, n, steepness(chunk(ps, start), NAME) * (chunk(gs, start) - mean))


@triton.jit
def steepness(p, NAME: tl.constexpr):
    """dp/dx of an entry, if threshold and sum stood still: p, or 1 or the root of p in the support. NaN stays NaN."""
    if NAME == "sparsemax":
        return tl.where(p > 0, 1.0, p)
    elif NAME == "entmax15":
        return tl.sqrt(p)
    else:
        return p
