"""The losses for class indices: their formula, their gradient, and the conventions of torch's cross-entropy."""

from collections.abc import Callable

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from cases import spread_apart
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from rsoftmax import entmax, normmax, use_kernels
from rsoftmax.losses import (
    Entmax15Loss,
    EntmaxLoss,
    NormmaxLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_loss,
    normmax_loss,
    sparsemax_loss,
)

ALPHAS = (1.0, 1.25, 1.5, 2.0, 3.0)
LOSSES: dict[str, tuple[Callable[..., Tensor], float]] = {
    "entmax15_loss": (entmax15_loss, 1.5),
    "sparsemax_loss": (sparsemax_loss, 2.0),
}
Y = torch.tensor([1, 0, 5, 2])


def by_hand(x: np.ndarray, y: int, alpha: float) -> float:
    p = oracle.entmax(x, alpha)
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum() if alpha == 1 else (1 - (p**alpha).sum()) / (alpha * (alpha - 1))
    return float(entropy + p @ x - x[y])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_equals_its_formula(alpha: float) -> None:
    x = spread_apart((4, 6))
    expected = [by_hand(row.numpy(), int(y), alpha) for row, y in zip(x, Y, strict=True)]
    assert_close(entmax_loss(x, Y, alpha, reduction="none"), torch.tensor(expected, dtype=torch.float64))
    for_each_row = torch.full((4, 1), alpha, dtype=torch.float64)
    assert_close(entmax_loss(x, Y, for_each_row, reduction="none"), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 6.0])
def test_the_loss_of_normmax_equals_its_formula_and_its_gradient_is_p_less_the_target(alpha: float) -> None:
    x = spread_apart((4, 6)).requires_grad_()
    p = normmax(x.detach(), alpha)
    expected = 1 - (p**alpha).sum(-1) ** (1 / alpha) + (p * x).sum(-1) - x.gather(-1, Y[:, None]).squeeze(-1)
    loss = normmax_loss(x, Y, alpha, reduction="none")
    assert_close(loss, expected)
    assert_close(torch.autograd.grad(loss.sum(), x)[0], p - F.one_hot(Y, 6))
    for_each_row = torch.full((4, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, a: normmax_loss(x, Y, a, reduction="none"), (x, for_each_row))
    with use_kernels("reference"):
        assert gradgradcheck(lambda x: normmax_loss(x, Y, alpha, reduction="none"), (x,), atol=1e-4)
    easy = 9.0 * F.one_hot(Y, 6).double()
    assert (normmax_loss(easy, Y, alpha, reduction="none") == 0).all()


def test_a_loss_is_a_module_with_torchs_settings() -> None:
    x, y = spread_apart((4, 6)), torch.tensor([1, 5, 5, 2])
    losses = ((EntmaxLoss, entmax_loss, [1.25]), (NormmaxLoss, normmax_loss, [2.0]))
    for kind, function, arguments in (*losses, (Entmax15Loss, entmax15_loss, []), (SparsemaxLoss, sparsemax_loss, [])):
        for options in ({}, {"reduction": "sum"}, {"reduction": "none", "ignore_index": 5}):
            assert torch.equal(kind(*arguments, **options)(x, y), function(x, y, *arguments, **options))


@pytest.mark.parametrize("name", LOSSES)
def test_the_named_losses_are_entmax_losses(name: str) -> None:
    loss, alpha = LOSSES[name]
    x = spread_apart((4, 6))
    for options in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 5}):
        assert torch.equal(loss(x, Y, **options), entmax_loss(x, Y, alpha, **options))


def test_with_alpha_one_it_is_torchs_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((6,), (4, 6), (4, 6, 3), (2, 6, 3, 2)):
        x = torch.randn(shape, generator=generator, requires_grad=True)
        y = torch.randint(0, 6, shape[:1] + shape[2:] if len(shape) > 1 else (), generator=generator)
        if y.dim():
            y.view(-1)[0] = -100
        for reduction in ("mean", "sum", "none"):
            mine, torchs = entmax_loss(x, y, 1.0, reduction=reduction), F.cross_entropy(x, y, reduction=reduction)
            assert_close(mine, torchs)
            assert_close(*(torch.autograd.grad(loss.sum(), x)[0] for loss in (mine, torchs)))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_gradient_is_the_probabilities_less_the_target(alpha: float) -> None:
    x = spread_apart((4, 6)).requires_grad_()
    entmax_loss(x, Y, alpha, reduction="sum").backward()
    assert_close(x.grad, entmax(x.detach(), alpha) - F.one_hot(Y, 6))


@pytest.mark.parametrize("value", [1.0, 1.3, 2.4])
def test_derivatives_are_true_to_second_order(value: float) -> None:
    x, y = spread_apart((2, 6)).requires_grad_(), Y[:2]
    alpha = torch.full((2, 1), value, dtype=torch.float64)
    assert gradcheck(lambda x: entmax_loss(x, y, alpha, reduction="none"), (x,), check_forward_ad=True)
    assert gradgradcheck(lambda x: entmax_loss(x, y, alpha, reduction="none"), (x,))
    if value > 1:  # a step below 1 leaves the domain
        inputs = (x, alpha.requires_grad_())
        assert gradcheck(lambda x, alpha: entmax_loss(x, y, alpha, reduction="none"), inputs)


def test_it_is_zero_where_the_probabilities_are_the_target_and_never_negative() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * 5
    loss = sparsemax_loss(x, x.argmax(-1), reduction="none")
    assert (loss >= 0).all()
    assert torch.equal(loss == 0, entmax(x, 2.0).amax(-1) == 1)


def test_an_ignored_target_has_neither_loss_nor_gradient() -> None:
    x = spread_apart((4, 6))
    x[2] = torch.nan
    x.requires_grad_()
    y = torch.tensor([1, 0, -100, 2])
    loss = sparsemax_loss(x, y, reduction="none")
    assert loss[2] == 0
    assert_close(sparsemax_loss(x, y), loss.sum() / 3)
    loss.sum().backward()
    assert x.grad is not None
    assert (x.grad[2] == 0).all()
    assert x.grad.isfinite().all()
    assert sparsemax_loss(x, torch.full((4,), -100)).isnan()  # as torch's


def test_a_class_at_minus_infinity_is_not_there() -> None:
    x = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = entmax_loss(x, torch.tensor([0]), 1.25)
    assert_close(loss, entmax_loss(x[:, :2], torch.tensor([0]), 1.25))
    loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert entmax_loss(x, torch.tensor([2]), 1.25) == torch.inf


def test_half_precision_is_computed_in_float32() -> None:
    x = spread_apart((4, 6)).bfloat16()
    loss = entmax15_loss(x, Y)
    assert loss.dtype == torch.float32
    assert_close(loss, entmax15_loss(x.float(), Y))


def test_bad_input() -> None:
    x = torch.zeros(4, 6)
    with pytest.raises(ValueError, match=r"sparsemax_loss: targets must be classes 0 to 5.*, got 6"):
        sparsemax_loss(x, torch.tensor([0, 6, 1, 1]))
    with pytest.raises(TypeError, match=r"class indices, a tensor of int64, got torch.float32 of shape \(4,\)"):
        sparsemax_loss(x, torch.zeros(4))
    with pytest.raises(ValueError, match=r"classes in dimension 1, so targets must be of shape \(4,\), got \(6,\)"):
        sparsemax_loss(x, torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'max'"):
        sparsemax_loss(x, Y, reduction="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"entmax_loss: alpha must be in \[1, 4\], got 5\.0"):
        entmax_loss(x, Y, 5.0)
