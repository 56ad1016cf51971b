"""Losses, values and gradients, against sums that are written pair by pair."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_draw import FLOATS, Draw
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import r_softmax, sparsemax, use_kernels, weighted_softmax
from rsoftmax.labels import losses

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-4, torch.bfloat16: 1e-4}


def eta(y: Tensor) -> Tensor:
    return y / y.sum(-1, keepdim=True).clamp(min=1)


def hinge(z: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """The sum over positive i and negative j of ``max(0, margin - (z_i - z_j))``."""
    both = y[..., :, None] * (1 - y[..., None, :])
    return (both * F.relu(margin[..., None] - (z[..., :, None] - z[..., None, :]))).sum((-1, -2))


def spread(z: Tensor, y: Tensor) -> Tensor:
    both = y[..., :, None] * y[..., None, :]
    return (both * (z[..., :, None] - z[..., None, :]).abs()).sum((-1, -2)) / 2


def margin(y: Tensor) -> Tensor:
    return eta(y).amax(-1, keepdim=True) + (y.sum(-1, keepdim=True) == 0)


def multilabel_r_softmax_loss(z: Tensor, y: Tensor, r: Any) -> Tensor:
    return (y * (r_softmax(z, r) - eta(y)) ** 2).sum(-1) + hinge(z, y, margin(y))


def multilabel_t_softmax_loss(z: Tensor, y: Tensor, theta: Any) -> Tensor:
    p = weighted_softmax(z, F.relu(z - theta))
    return (y * (p - eta(y)) ** 2).sum(-1) + sigmoid_binary_cross_entropy(z - theta, y)


def softmax_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return (eta(y) * (z.logsumexp(-1, keepdim=True) - z)).sum(-1)


def sparsemax_huber_loss(z: Tensor, y: Tensor) -> Tensor:
    p = sparsemax(z)
    loss = (z * (p - eta(y))).sum(-1) + (eta(y) ** 2 - p**2).sum(-1) / 2
    return loss * y.any(-1)


def sparsemax_hinge_loss(z: Tensor, y: Tensor) -> Tensor:
    return spread(z, y) + hinge(z, y, margin(y))


def sparsehourglass_hinge_loss(z: Tensor, y: Tensor, q: Any) -> Tensor:
    n = z.shape[-1]
    a = (1 + n * q) / (z.sum(-1, keepdim=True).abs() + n * q)
    return spread(z, y) + hinge(z, y, margin(y) / a)


def sigmoid_binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z)).sum(-1)


def zlpr_loss(z: Tensor, y: Tensor) -> Tensor:
    return torch.log1p((z.exp() * (1 - y)).sum(-1)) + torch.log1p(((-z).exp() * y).sum(-1))


PAIR_BY_PAIR: dict[str, Callable[..., Tensor]] = {
    f.__name__: f
    for f in (
        multilabel_r_softmax_loss, multilabel_t_softmax_loss, softmax_cross_entropy, sparsemax_huber_loss,
        sparsemax_hinge_loss, sparsehourglass_hinge_loss, sigmoid_binary_cross_entropy, zlpr_loss,
    )
}  # fmt: skip


def parameter(draw: Draw, name: str, rows: tuple[int, ...]) -> list[Any]:
    """What a loss takes besides logits and labels."""
    low, high = {
        "multilabel_r_softmax_loss": (0, 1),
        "multilabel_t_softmax_loss": (-2, 2),
        "sparsehourglass_hinge_loss": (0.1, 20),
    }.get(name, (0, 0))
    if low == high:
        return []
    number = draw.number(low, high)
    return [number if draw.chance(0.5) else torch.full((*draw.smaller(*rows), 1), number)]


def labels(draw: Draw, *shape: int) -> Tensor:
    y = draw.keep(*shape)
    return torch.zeros_like(y) if draw.chance(0.05) else y


def check(draw: Draw) -> None:
    """One loss on a few rows."""
    name, dtype = draw.one_of(*PAIR_BY_PAIR), draw.one_of(*FLOATS)
    rows = tuple(draw.integer(1, 3) for _ in range(draw.integer(0, 2)))
    shape = (*rows, draw.one_of(1, 2, 3, 7, 20, 60))
    z = draw.scores(*shape, special=False).to(dtype).requires_grad_()
    y = labels(draw, *shape).to(draw.one_of(torch.bool, torch.int64, torch.float32))
    given, reduction = parameter(draw, name, rows), draw.one_of("batchmean", "sum", "none")
    with use_kernels(draw.one_of("native", "reference")):
        found = getattr(losses, name)(z, y, *given, reduction=reduction)
        mine = torch.autograd.grad(found.sum(), z)[0].double()
    exact = z.detach().double().requires_grad_()
    with use_kernels("reference"):
        expected = PAIR_BY_PAIR[name](exact, y.double(), *(a.double() if isinstance(a, Tensor) else a for a in given))
        expected = expected if reduction == "none" else getattr(expected, reduction.removeprefix("batch"))()
        gradient = torch.autograd.grad(expected.sum(), exact)[0]
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(found.double(), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    if not _undecided(name, exact.detach(), ROUNDING[dtype]):
        assert_close(mine, gradient, rtol=_loose(dtype), atol=_loose(dtype) * float(1 + gradient.abs().max()))


def _undecided(name: str, z: Tensor, rounding: float) -> bool:
    """Whether there are entries whose order is a matter of rounding, or, if tied, of choice; or a sum at its kink."""
    if name == "sparsehourglass_hinge_loss" and (z.sum(-1).abs() < 100 * rounding).any():
        return True
    gaps = z.sort(-1).values.diff(dim=-1)
    close = gaps < rounding if name == "multilabel_r_softmax_loss" else (gaps > 0) & (gaps < rounding)
    return bool(close.any())


def _loose(dtype: torch.dtype) -> float:
    return max(10 * ROUNDING[dtype], 4 * torch.finfo(dtype).eps)
