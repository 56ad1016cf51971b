"""From scores to labels, as plain functions: how many labels a row should have, and probabilities that keep these.

Nothing here knows of layers or losses; the rules in :mod:`rsoftmax.multilabel.rules` are composed of these functions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.mappings import r_softmax, weighted_softmax
from rsoftmax.tensors import exact


def expected_f1_count(u: Tensor, none: Tensor | None = None) -> Tensor:
    r"""The number of labels with the highest expected F1, from the log-odds of the labels.

    .. math:: k^* = \arg\max_k F(k), \qquad F(k) = \frac{2 \sum_{i \le k} \pi_i}{k + \sum_i \pi_i}, \qquad
              F(0) = \mathrm{sigmoid}(\mathrm{none}), \qquad \pi = \mathrm{sigmoid}(u) \text{ in descending order}

    Args:
        u: log-odds of the labels, [..., K].
        none: log-odds that there is no label, [..., 1]; if not given, as of independent labels: F(0) = prod(1 - pi).

    Returns:
        k, [..., 1], int64.

    Example:
        >>> expected_f1_count(torch.tensor([[3.0, -0.3, -3.0], [-4.0, -3.0, -5.0]]))
        tensor([[2],
                [0]])

    The ratio of expectations stands for the expectation of the ratio, which would take ``O(K^2)`` and more. The F1 of
    an empty answer is 1 if there is no label and 0 otherwise: F(0) is the probability of that.

    Reference: Lipton et al., Optimal thresholding of classifiers to maximize F1 measure (2014), for the ratio.
    """
    u = u.detach().to(exact(u)).sort(-1, descending=True).values
    pi, k = u.sigmoid(), torch.arange(1, u.shape[-1] + 1, device=u.device)
    some = 2 * pi.cumsum(-1) / (k + pi.sum(-1, keepdim=True))
    empty = _no_independent_label(u) if none is None else none.detach().to(u.dtype).sigmoid()
    return torch.cat([empty, some], -1).argmax(-1, keepdim=True)


def keep_count(z: Tensor, k: Tensor) -> Tensor:
    """r-softmax that keeps k labels: ``r = 1 - k/K``, and nothing at all where ``k = 0``.

    Args:
        z: logits [..., K].
        k: how many, from 0 to K; integers [..., 1].

    Returns:
        Probabilities [..., K], exactly k of them non-zero in a row of distinct logits. A row with NaN stays NaN, even
        where k = 0.

    Example:
        >>> keep_count(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[0.9158, 0.0842, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    return r_softmax(z, rate_of_count(k, z), mask=(k > 0) | _has_nan(z))


def keep_above(z: Tensor, theta: Tensor) -> Tensor:
    r"""t-softmax that keeps the labels above a threshold: ``t = max(z) - theta``, and nothing if all lie below.

    .. math:: p_i = w_i e^{z_i} / \sum_j w_j e^{z_j}, \qquad w_i = [z_i - \theta]_+

    Args:
        z: logits [..., K].
        theta: broadcasts to [..., 1].

    Returns:
        Probabilities [..., K], non-zero where ``z > theta``.

    Example:
        >>> keep_above(torch.tensor([[2.0, 1.0, -1.0], [-2.0, -1.0, -3.0]]), torch.tensor(0.0))
        tensor([[0.8446, 0.1554, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    return weighted_softmax(z, F.relu(z - theta))


def rate_of_count(k: Tensor, z: Tensor) -> Tensor:
    """The rate of zeros that leaves k of the K entries of ``z``: ``r = 1 - k/K``, exact for every k."""
    labels = z.shape[-1]
    return (labels - k).to(exact(z)) / labels


def _no_independent_label(u: Tensor) -> Tensor:
    """The probability that there is no label if labels are independent, ``prod(1 - pi)``; [..., 1]."""
    return (-F.softplus(u).sum(-1, keepdim=True)).exp()


def _has_nan(z: Tensor) -> Tensor:
    """Which rows hold NaN, [..., 1]. Their count is meaningless, and 0 of it would look like "no label"."""
    return z.isnan().any(-1, keepdim=True)
