r"""Fenchel-Young losses of entmax and normmax for class indices, with the conventions of torch's cross-entropy.

.. math:: L(x, y) = H_\alpha(p) + p \cdot x - x_y, \qquad p = \mathrm{entmax}(x, \alpha), \qquad
          H_\alpha(p) = \frac{1 - \sum_i p_i^\alpha}{\alpha (\alpha - 1)}

and :math:`H_\alpha(p) = 1 - \|p\|_\alpha` for normmax.

They are convex, never negative, and zero exactly where ``p`` is one-hot at ``y``; the gradient in ``x`` is ``p`` minus
the one-hot vector of ``y``. With alpha = 1, H is the Shannon entropy and the loss is torch's cross-entropy.

Logits x are [C], [N, C] or [N, C, d1, ...]; targets y are class indices, int64, without the dimension C. Those equal to
``ignore_index`` have no loss and no gradient, and "mean" divides by the number of the others. Half precision is
computed, and returned, in float32. Each loss is a module, too: ``EntmaxLoss(alpha)``, ``Entmax15Loss()``, ...
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rsoftmax._rows import ParamSpec, check_input, check_value
from rsoftmax._tensors import Value, all_or_none, at_least_float32, row_max, shape_of
from rsoftmax.mappings import ALPHA, ALPHA_NORM, entmax, normmax

__all__ = [
    "Entmax15Loss",
    "EntmaxLoss",
    "NormmaxLoss",
    "SparsemaxLoss",
    "entmax15_loss",
    "entmax_loss",
    "normmax_loss",
    "sparsemax_loss",
]

Reduction = Literal["mean", "sum", "none"]


def entmax_loss(
    logits: Tensor,
    targets: Tensor,
    alpha: Value,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The loss of :func:`rsoftmax.entmax`, for class indices.

    Args:
        logits: [C], [N, C] or [N, C, d1, ...].
        targets: class indices, int64, of the shape of ``logits`` without C.
        alpha: in [1, 4]; a number, or a tensor that broadcasts against ``logits`` with C of size 1.
        ignore_index: a target that is ignored.
        reduction: "mean", "sum" or "none", over targets.

    Returns:
        The loss; a scalar, or the shape of ``targets`` with ``reduction="none"``.

    Example:
        >>> x, y = torch.tensor([[2.0, 1.0, 0.1], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
        >>> entmax_loss(x, y, 1.25)
        tensor(0.0850)
        >>> entmax_loss(x, y, 1.0), torch.nn.functional.cross_entropy(x, y)
        (tensor(0.2560), tensor(0.2560))

    Reference: Peters et al., Sparse sequence-to-sequence models (2019); Blondel et al., Learning with Fenchel-Young
    losses (2020).
    """
    return _fenchel_young("entmax_loss", logits, targets, alpha, ignore_index, reduction)


def normmax_loss(
    logits: Tensor, targets: Tensor, alpha: Value, *, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """The loss of :func:`rsoftmax.normmax`, for class indices.

    Args:
        logits, targets, ignore_index, reduction: as in :func:`entmax_loss`.
        alpha: greater than 1; a number, or a tensor that broadcasts against ``logits`` with C of size 1.

    Example:
        >>> normmax_loss(torch.tensor([[2.0, 1.5, 0.1], [0.0, 3.0, 0.0]]), torch.tensor([0, 1]), 2.0, reduction="none")
        tensor([0.0886, 0.0000])

    Reference: Blondel et al., Learning with Fenchel-Young losses (2020).
    """
    map_and_entropy = (normmax, _norm_entropy)
    return _fenchel_young("normmax_loss", logits, targets, alpha, ignore_index, reduction, ALPHA_NORM, *map_and_entropy)


def entmax15_loss(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """The loss of :func:`rsoftmax.entmax15`, for class indices: :func:`entmax_loss` with ``alpha = 1.5``.

    Example:
        >>> entmax15_loss(torch.tensor([[2.0, 1.0, 0.1], [0.0, 3.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.0308)

    Reference: Peters et al., Sparse sequence-to-sequence models (2019).
    """
    return _fenchel_young("entmax15_loss", logits, targets, 1.5, ignore_index, reduction)


def sparsemax_loss(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """The loss of :func:`rsoftmax.sparsemax`, for class indices: :func:`entmax_loss` with ``alpha = 2``.

    Example:
        >>> sparsemax_loss(torch.tensor([[2.0, 1.5, 0.1], [0.0, 3.0, 0.0]]), torch.tensor([0, 1]), reduction="none")
        tensor([0.0625, 0.0000])

    For multi-label targets use :func:`rsoftmax.labels.losses.sparsemax_huber_loss`.

    Reference: Martins & Astudillo, From softmax to sparsemax (2016).
    """
    return _fenchel_young("sparsemax_loss", logits, targets, 2.0, ignore_index, reduction)


class EntmaxLoss(nn.Module):
    """:func:`entmax_loss` as a module, like :class:`torch.nn.CrossEntropyLoss`.

    Example:
        >>> EntmaxLoss(1.25)(torch.tensor([[2.0, 1.0, 0.1], [0.0, 3.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.0850)
    """

    function = staticmethod(entmax_loss)

    def __init__(self, alpha: Value, *, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.alpha, self.ignore_index, self.reduction = alpha, ignore_index, reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of logits [C], [N, C] or [N, C, d1, ...] for class indices."""
        return self.function(logits, targets, self.alpha, ignore_index=self.ignore_index, reduction=self.reduction)


class NormmaxLoss(EntmaxLoss):
    """:func:`normmax_loss` as a module; see :class:`EntmaxLoss`."""

    function = staticmethod(normmax_loss)


class Entmax15Loss(EntmaxLoss):
    """:func:`entmax15_loss` as a module; see :class:`EntmaxLoss`."""

    def __init__(self, *, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(1.5, ignore_index=ignore_index, reduction=reduction)


class SparsemaxLoss(EntmaxLoss):
    """:func:`sparsemax_loss` as a module; see :class:`EntmaxLoss`."""

    def __init__(self, *, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(2.0, ignore_index=ignore_index, reduction=reduction)


def _tsallis_entropy(p: Tensor, alpha: Value) -> Tensor:
    """The sum of -p (p^b - 1) / (alpha b), b = alpha - 1, or -p log p."""
    log_p = torch.where(p > 0, p, 1).log()
    return -(p * log_p * _expm1_quotient((alpha - 1) * log_p) / alpha).sum(-1)


def _norm_entropy(p: Tensor, alpha: Value) -> Tensor:
    """1 minus the norm; the logarithm of the sum, which is at most 0, keeps its digits where p is almost one-hot."""
    log_p = torch.where(p > 0, p, 1).log()
    total = torch.where(p > 0, alpha * log_p, -math.inf).logsumexp(-1, keepdim=True)
    return -torch.expm1(total / alpha).squeeze(-1)


def _fenchel_young(
    name: str,
    logits: Tensor,
    targets: Tensor,
    alpha: Value,
    ignore_index: int,
    reduction: Reduction,
    parameter: ParamSpec = ALPHA,
    mapping: Callable[[Tensor, Value], Tensor] = entmax,
    entropy: Callable[[Tensor, Value], Tensor] = _tsallis_entropy,
) -> Tensor:
    dim = min(1, logits.dim() - 1) if isinstance(logits, Tensor) else -1
    check_input(name, logits, dim, argument="logits")
    used = _used_targets(name, logits, targets, dim, ignore_index)
    if reduction not in get_args(Reduction):
        raise ValueError(f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    alpha = check_value(name, parameter, alpha, logits, dim)
    alpha = alpha.movedim(dim, -1) if isinstance(alpha, Tensor) else alpha
    x = torch.where(used.unsqueeze(dim), logits, 0).movedim(dim, -1).to(at_least_float32(logits.dtype))
    x = x - row_max(x).detach()  # p minus a one-hot vector sums to zero: the shift changes only the rounding
    p = mapping(x, alpha)
    mean = (torch.where(x == -math.inf, 0, x) * p).sum(-1)
    x_y = x.gather(-1, torch.where(used, targets, 0).unsqueeze(-1)).squeeze(-1)
    loss = torch.where(used, entropy(p, alpha) + mean - x_y, 0)
    if reduction == "mean":
        return loss.sum() / used.sum()
    return loss.sum() if reduction == "sum" else loss


def _used_targets(name: str, logits: Tensor, targets: Tensor, dim: int, ignore_index: int) -> Tensor:
    """Which targets are not ignored; raises unless these are classes."""
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        got = f"{targets.dtype} of shape {shape_of(targets)}" if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(f"{name}: targets must be class indices, a tensor of int64, got {got}; use targets.long()")
    shape = shape_of(logits)[:dim] + shape_of(logits)[dim + 1 :]
    if shape_of(targets) != shape:
        raise ValueError(
            f"{name}: logits of shape {shape_of(logits)} have their classes in dimension {dim}, so targets must be of"
            f" shape {shape}, got {shape_of(targets)}"
        )
    used, classes = targets != ignore_index, logits.shape[dim]
    valid = ~used | ((targets >= 0) & (targets < classes))
    if all_or_none(valid) is False:
        raise ValueError(
            f"{name}: targets must be classes 0 to {classes - 1}, or ignore_index={ignore_index},"
            f" got {targets[~valid][0].item()}"
        )
    return used


def _expm1_quotient(t: Tensor) -> Tensor:
    """(e^t - 1) / t for t <= 0, differentiable at 0."""
    small = t > -0.5
    near, series = torch.where(small, t, 0), torch.ones_like(t)
    for k in range(14, 1, -1):
        series = 1 + series * near / k  # 1 + t/2 (1 + t/3 (...))
    far = torch.where(small, -1.0, t)
    return torch.where(small, series, torch.expm1(far) / far)
