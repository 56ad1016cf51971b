"""Attention in which removed keys hold NaN and infinity: nothing of it reaches the output or a gradient."""

import math
from typing import Any

import torch
from cases import case as named
from fuzz_draw import Draw
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS, use_kernels
from rsoftmax.attention.functional import sparse_attention

BAD = (math.nan, math.inf, -math.inf)


def check(draw: Draw) -> None:
    """The same call with bad entries and with zeros in their place."""
    batch, heads, rows, width = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 9), draw.integer(1, 9)
    length, causal = rows + draw.integer(1, 40), draw.chance(0.3)
    dtype = draw.one_of(torch.float32, torch.float64)
    q, k, v = (draw.normal(batch, heads, n, width).to(dtype) for n in (rows, length, length))
    removed = torch.zeros(batch, heads, length, dtype=torch.bool)
    removed[..., rows:] = causal  # no query sees these
    mask = None if causal else _mask(draw, removed, rows, dtype)
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": causal, **_mapping(draw)}
    g = draw.normal(batch, heads, rows, width).to(dtype)
    kernels = draw.one_of("native", "reference")
    case = f"{kernels} kernels, {dtype}, {_kind(mask)}, {dict(list(options.items())[2:])}"
    with use_kernels(kernels):
        clean = _run(q, _filled(draw, k, removed, 0.0), _filled(draw, v, removed, 0.0), g, options)
        found = _run(q, _filled(draw, k, removed, None), _filled(draw, v, removed, None), g, options)
    with use_kernels("reference"):
        k_clean, v_clean = (_filled(draw, x, removed, 0.0).double() for x in (k, v))
        true = _run(q.double(), k_clean, v_clean, g.double(), options)
    for name, a, b, truth in zip(("output", "dq", "dk", "dv"), found, clean, true, strict=True):
        rounding = float((b.double() - truth).abs().max())  # slopes are as steep as scores are near
        with named(name, case):
            assert_close(a, b, rtol=1e-6, atol=1e-6 + 4 * rounding)


def _kind(mask: Tensor | None) -> str:
    return "causal" if mask is None else f"{mask.dtype} mask"


def _mask(draw: Draw, removed: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """A mask that removes some keys from all queries, which are written to ``removed``, and others from some."""
    keep = draw.keep(*removed.shape[:2], rows, removed.shape[-1])
    gone = draw.keep(*removed.shape)
    keep = keep & ~gone[:, :, None]
    removed |= ~keep.any(-2)
    if draw.chance(0.5):
        return keep
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -math.inf)


def _mapping(draw: Draw) -> dict[str, Any]:
    name = draw.one_of(*MAPPINGS)
    parameter = MAPPINGS[name].parameter
    return {"mapping": name, **({} if parameter is None else {parameter.name: float(draw.inside(parameter))})}


def _filled(draw: Draw, x: Tensor, removed: Tensor, value: float | None) -> Tensor:
    """The tensor with a value, or with bad ones, at the removed keys."""
    bad = torch.tensor([draw.one_of(*BAD) for _ in range(x.numel())]).reshape(x.shape).to(x.dtype)
    return torch.where(removed[..., None], bad if value is None else value, x)


def _run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, options: dict[str, Any]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    output = sparse_attention(leaves[0], leaves[1], leaves[2], **options)
    return [output.detach(), *torch.autograd.grad(output, leaves, g)]
