"""Losses for multi-label targets: eq. 5 of the paper, and those it is compared with.

All take logits [..., K] and multi-hot labels [..., K] (bool, integer or float, 0 or 1) and sum over the labels of a
sample; ``reduction`` ("batchmean", "sum" or "none") then applies to samples: "batchmean" is their mean, as in torch's
``kl_div``. In the formulas ``z`` are the logits, ``y`` the labels, and ``eta = y / |y|_1`` the target distribution; in
a sample without a positive label it is zero, and so is every term that needs one. A negative label whose logit is
``-inf`` is ignored. Half precision is computed, and returned, in float32: sums over pairs exceed float16's range.

The sums over pairs of labels take ``O(K log K)`` time and ``O(K)`` memory for a sample, gradients included: see
:func:`_over_pairs`. For class indices see :mod:`rsoftmax.losses`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax._rows import check_input, check_value
from rsoftmax._tensors import Value, all_or_none, at_least_float32, shape_of
from rsoftmax.mappings import Q, budget, hourglass_scale, r_softmax, sparsemax, weighted_softmax

__all__ = [
    "budget_loss",
    "label_count_loss",
    "label_rate_loss",
    "multilabel_r_softmax_loss",
    "multilabel_t_softmax_loss",
    "sigmoid_binary_cross_entropy",
    "softmax_cross_entropy",
    "sparsehourglass_hinge_loss",
    "sparsemax_hinge_loss",
    "sparsemax_huber_loss",
    "zlpr_loss",
]

Reduction = Literal["batchmean", "sum", "none"]


def multilabel_r_softmax_loss(
    logits: Tensor, labels: Tensor, r: Value, *, reduction: Reduction = "batchmean"
) -> Tensor:
    r"""The paper's loss: squared error on the positive labels, and a hinge between positive and negative ones.

    .. math:: \|y \cdot (\mathrm{r\text{-}softmax}(z, r) - \eta)\|^2
              + \sum_{y_i = 1, y_j = 0} \max(0, \eta_i - (z_i - z_j)) \qquad (5)

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        r: the rate, in [0, 1]; a number, or a tensor that broadcasts to [..., 1].
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> z, y = torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0])
        >>> multilabel_r_softmax_loss(z, y, 0.5)
        tensor(0.7374)

    When the rate is predicted, the paper adds its cross-entropy to the true rate, :func:`label_rate_loss`.

    Reference: Bałazy et al., r-softmax (2023), eq. 5.
    """
    z, y, eta = _prepare("multilabel_r_softmax_loss", logits, labels)
    fit = (y * (r_softmax(z, r) - eta)).square().sum(-1)
    return reduce_samples("multilabel_r_softmax_loss", fit + _hinge(z, y, _margin(y)), reduction)


def multilabel_t_softmax_loss(
    logits: Tensor, labels: Tensor, threshold: Value, *, reduction: Reduction = "batchmean"
) -> Tensor:
    r"""Squared error on the positive labels, as in eq. 5, and the likelihood of being above the threshold.

    .. math:: \|y \cdot (\mathrm{t\text{-}softmax}(z, \max(z) - \theta) - \eta)\|^2
              + \mathrm{binary\ cross\text{-}entropy}(z - \theta)

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        threshold: a label counts as positive above it; a number, or a tensor that broadcasts to [..., 1].
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> z, y = torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0])
        >>> multilabel_t_softmax_loss(z, y, 0.9)
        tensor(2.1529)

    Where no logit is above the threshold the probabilities are zero, and the second term alone has a gradient.
    """
    z, y, eta = _prepare("multilabel_t_softmax_loss", logits, labels)
    u = z - threshold
    fit = (y * (weighted_softmax(u, F.relu(u)) - eta)).square().sum(-1)
    return reduce_samples("multilabel_t_softmax_loss", fit + _misses(u, y), reduction)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""Softmax cross-entropy against the uniform distribution over the positive labels.

    .. math:: -\sum_i \eta_i \log \mathrm{softmax}(z)_i

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> softmax_cross_entropy(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(1.0417)
    """
    z, y, eta = _prepare("softmax_cross_entropy", logits, labels)
    log_p = torch.where(y == 1, F.log_softmax(z, -1), 0)
    return reduce_samples("softmax_cross_entropy", -(eta * log_p).sum(-1), reduction)


def sparsemax_huber_loss(logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""The sparsemax loss for multi-label targets; convex, its gradient is ``sparsemax(z) - eta``.

    .. math:: \tfrac12 \|\eta\|^2 - \tfrac12 \|p\|^2 + z \cdot (p - \eta), \qquad p = \mathrm{sparsemax}(z)

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> sparsemax_huber_loss(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(0.2500)

    Zero exactly where ``p = eta``, and in a sample without a positive label.

    Reference: Martins & Astudillo, From softmax to sparsemax (2016), section 3.4.
    """
    z, y, eta = _prepare("sparsemax_huber_loss", logits, labels)
    return reduce_samples("sparsemax_huber_loss", y.any(-1) * _fenchel_young(z, sparsemax(z), eta), reduction)


def budget_loss(logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""The Fenchel-Young loss of budget; convex, its gradient is ``budget(z, k) - y`` with the number k of labels.

    .. math:: \tfrac12 \|y\|^2 - \tfrac12 \|p\|^2 + z \cdot (p - y), \qquad p = \mathrm{budget}(z, \|y\|_1)

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> budget_loss(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(0.1600)

    Zero exactly where every positive logit is at least 1 above every negative one.

    Reference: Blondel et al., Learning with Fenchel-Young losses (2020), for k-subsets.
    """
    z, y, _ = _prepare("budget_loss", logits, labels)
    return reduce_samples("budget_loss", _fenchel_young(z, budget(z, y.sum(-1, keepdim=True)), y), reduction)


def sparsemax_hinge_loss(logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""The alternative loss for sparsemax: equal logits for positive labels, and a margin to negative ones.

    .. math:: \sum_{i < j,\; y_i = y_j = 1} |z_i - z_j| + \sum_{y_i = 1, y_j = 0} \max(0, \eta_i - (z_i - z_j))

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> sparsemax_hinge_loss(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(1.3000)

    Reference: Laha et al., On controllable sparse alternatives to softmax (2018), with lambda = 0.
    """
    z, y, _ = _prepare("sparsemax_hinge_loss", logits, labels)
    return reduce_samples("sparsemax_hinge_loss", _spread(z, y) + _hinge(z, y, _margin(y)), reduction)


def sparsehourglass_hinge_loss(
    logits: Tensor, labels: Tensor, q: Value = 10.0, *, reduction: Reduction = "batchmean"
) -> Tensor:
    r""":func:`sparsemax_hinge_loss` with the margin scaled for sparsehourglass.

    .. math:: \sum_{i < j,\; y_i = y_j = 1} |z_i - z_j|
              + \sum_{y_i = 1, y_j = 0} \max(0, \eta_i / a(z) - (z_i - z_j)), \quad a = \frac{1 + Kq}{|\sum z| + Kq}

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        q: as in :func:`rsoftmax.sparsehourglass`.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> sparsehourglass_hinge_loss(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(1.3220)

    Reference: Laha et al., On controllable sparse alternatives to softmax (2018).
    """
    name = "sparsehourglass_hinge_loss"
    z, y, _ = _prepare(name, logits, labels)
    spread = _spread(z, y)
    margin = _margin(y) / hourglass_scale(z, check_value(name, Q, q, z, -1))
    return reduce_samples(name, spread + _hinge(z, y, margin), reduction)


def label_count_loss(count_logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    """Cross-entropy of the number of positive labels.

    Args:
        count_logits: logits of the counts 0..K, [..., K + 1].
        labels: [..., K], 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> label_count_loss(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1, 1]))
        tensor(0.1698)

    Trains a network that predicts how many labels a sample has.
    """
    check_input("label_count_loss", count_logits, -1)
    check_labels("label_count_loss", labels)
    if count_logits.shape != (*labels.shape[:-1], labels.shape[-1] + 1):
        raise ValueError(
            f"label_count_loss: count_logits of shape {shape_of(count_logits)} must be [..., K + 1] for labels [..., K]"
            f" of shape {shape_of(labels)}: a logit for each count from 0 to K"
        )
    log_p = F.log_softmax(count_logits.to(at_least_float32(count_logits.dtype)), -1)
    count = labels.sum(-1, keepdim=True).long()
    return reduce_samples("label_count_loss", -log_p.gather(-1, count).squeeze(-1), reduction)


def label_rate_loss(rate_logit: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""Cross-entropy of the rate of zeros: the part of the paper's loss that trains the predicted rate.

    .. math:: -\bar r \log \sigma(c) - (1 - \bar r) \log (1 - \sigma(c)), \qquad \bar r = 1 - \|y\|_1 / K

    Args:
        rate_logit: [..., 1].
        labels: [..., K], 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> label_rate_loss(torch.tensor([0.5]), torch.tensor([1, 0, 0, 0]))
        tensor(0.5991)

    Reference: Bałazy et al., r-softmax (2023), section 4.1.
    """
    check_input("label_rate_loss", rate_logit, -1)
    check_labels("label_rate_loss", labels)
    if rate_logit.shape != (*labels.shape[:-1], 1):
        raise ValueError(
            f"label_rate_loss: rate_logit of shape {shape_of(rate_logit)} must be [..., 1] for labels [..., K] of shape"
            f" {shape_of(labels)}"
        )
    rate_logit = rate_logit.squeeze(-1).to(at_least_float32(rate_logit.dtype))
    rate = 1 - labels.to(rate_logit.dtype).mean(-1)
    loss = F.binary_cross_entropy_with_logits(rate_logit, rate, reduction="none")
    return reduce_samples("label_rate_loss", loss, reduction)


def sigmoid_binary_cross_entropy(logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""The negative log-likelihood of independent labels, summed over the labels of a sample.

    .. math:: \sum_i \log(1 + e^{-z_i}) \text{ over positive} + \sum_j \log(1 + e^{z_j}) \text{ over negative labels}

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> sigmoid_binary_cross_entropy(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(1.9246)
    """
    z, y, _ = _prepare("sigmoid_binary_cross_entropy", logits, labels)
    return reduce_samples("sigmoid_binary_cross_entropy", _misses(z, y), reduction)


def zlpr_loss(logits: Tensor, labels: Tensor, *, reduction: Reduction = "batchmean") -> Tensor:
    r"""Zero-bounded log-sum-exp and pairwise rank: positive labels above 0, negative ones below.

    .. math:: \log\left(1 + \sum_{y_j = 0} e^{z_j}\right) + \log\left(1 + \sum_{y_i = 1} e^{-z_i}\right)

    Args:
        logits, labels: [..., K]; the labels 0 or 1.
        reduction: "batchmean", "sum" or "none", over samples.

    Example:
        >>> zlpr_loss(torch.tensor([2.0, 1.0, 0.8, -1.0]), torch.tensor([1, 1, 0, 0]))
        tensor(1.6867)

    Reference: Su et al., ZLPR: a novel loss for multi-label classification (2022).
    """
    z, y, _ = _prepare("zlpr_loss", logits, labels)
    zero, never = z.new_zeros((*z.shape[:-1], 1)), -torch.inf
    negative = torch.cat([zero, z.masked_fill(y == 1, never)], -1).logsumexp(-1)
    positive = torch.cat([zero, (-z).masked_fill(y == 0, never)], -1).logsumexp(-1)
    return reduce_samples("zlpr_loss", negative + positive, reduction)


def _fenchel_young(z: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """(target^2 - p^2) / 2 + z (p - target), summed over labels; p is the projection of z."""
    z = z - z.amax(-1, keepdim=True).detach()  # p - target sums to zero: the shift changes only the rounding
    fit = (torch.where(z == -torch.inf, 0, z) * (p - target)).sum(-1)
    return (target.square() - p.square()).sum(-1) / 2 + fit


def _misses(z: Tensor, y: Tensor) -> Tensor:
    """The negative log-likelihood of each sample's labels."""
    return F.softplus(torch.where(y == 1, -z, z)).sum(-1)


def _hinge(z: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """The sum over positive i and negative j of ``max(0, margin - (z_i - z_j))``."""
    return _over_pairs(z - margin * y, 1 - y, y)


def _spread(z: Tensor, y: Tensor) -> Tensor:
    """The sum of ``|z_i - z_j|`` over unordered pairs of positive labels."""
    return _over_pairs(z, y, y)


def _over_pairs(v: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """The sum of ``max(0, v_j - v_i)`` over j in ``upper`` and i in ``lower``, without the pairs.

    In descending order, the gap between two neighbours counts once for every upper entry above it and lower entry below
    it: a sum without negative terms, so without cancellation. Its derivative is a count as well: the lower entries
    below an upper one, minus the upper entries above a lower one; tied entries are neither above nor below each other.
    """
    order = v.argsort(stable=True, descending=True)
    upper, lower, v = upper.gather(-1, order), lower.gather(-1, order), v.gather(-1, order)
    uppers, lowers = upper.cumsum(-1), lower.sum(-1, keepdim=True) - lower.cumsum(-1)
    first, last = _tied(v.detach())
    above, below = (uppers - upper).gather(-1, first), lowers.gather(-1, last)
    slope = upper * below - lower * above
    pairs = (uppers * lowers)[..., :-1]
    gap = torch.where(pairs > 0, -v.detach().diff(dim=-1), 0)
    change = torch.where(slope == 0, 0, v - v.detach())  # zero, with the derivative of the entries that have one
    return (pairs * gap).sum(-1) + (slope * change).sum(-1)


def _tied(v: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry of a sorted row, the positions of the first and the last entry equal to it."""
    index = torch.arange(v.shape[-1], device=v.device).expand(v.shape)
    same = F.pad(v[..., 1:] == v[..., :-1], (1, 0))  # equal to the previous entry
    first = index.masked_fill(same, 0).cummax(-1).values
    ends = ~F.pad(same[..., 1:], (0, 1))
    last = index.masked_fill(~ends, v.shape[-1] - 1).flip(-1).cummin(-1).values.flip(-1)
    return first, last


def _margin(y: Tensor) -> Tensor:
    """``eta_i`` of the positive labels: all are equal, [..., 1]."""
    return 1 / y.sum(-1, keepdim=True).clamp(min=1)


def _prepare(name: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits z, labels y and eta in the dtype to compute in."""
    check_input(name, logits, -1)
    check_labels(name, labels, logits.shape)
    z = logits.to(at_least_float32(logits.dtype))
    y = labels.to(z.dtype)
    return z, y, y * _margin(y)


def check_labels(name: str, labels: Tensor, shape: torch.Size | None = None, *, unknown: bool = False) -> None:
    """Raise unless labels are multi-hot, of the shape of the logits; with ``unknown`` they may be NaN."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name}: the labels must be a torch.Tensor, got {type(labels).__name__}; use torch.tensor")
    if labels.dim() == 0 or labels.shape[-1] == 0:
        raise ValueError(f"{name}: needs labels [..., K] with K >= 1, got shape {shape_of(labels)}")
    if shape is not None and labels.shape != shape:
        raise ValueError(f"{name}: labels and logits must both be [..., K], got {shape_of(labels)} and {tuple(shape)}")
    valid = (labels == 0) | (labels == 1)
    valid = valid | labels.isnan() if unknown else valid
    if all_or_none(valid) is False:
        raise ValueError(
            f"{name}: labels of shape {shape_of(labels)} must be 0 or 1{', or NaN where unknown' if unknown else ''},"
            f" got {labels[~valid][0].item()!r}; use multi-hot labels"
        )


def reduce_samples(name: str, loss: Tensor, reduction: str) -> Tensor:
    """Reduce the losses of samples, [...]."""
    match reduction:
        case "batchmean":
            return loss.mean()
        case "sum":
            return loss.sum()
        case "none":
            return loss
    raise ValueError(f"{name}: reduction must be 'batchmean', 'sum' or 'none', got {reduction!r}")
