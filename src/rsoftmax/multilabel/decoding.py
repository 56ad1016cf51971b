"""From scores to labels, as plain functions: probabilities that keep some labels and leave out the others.

Nothing here knows of layers or losses; the rules in :mod:`rsoftmax.multilabel.rules` are composed of these functions.
"""

import torch.nn.functional as F
from torch import Tensor

from rsoftmax.mappings import r_softmax, weighted_softmax
from rsoftmax.tensors import exact


def keep_count(z: Tensor, k: Tensor) -> Tensor:
    """r-softmax that keeps k labels: ``r = 1 - k/K``, and nothing at all where ``k = 0``.

    Args:
        z: logits [..., K].
        k: how many, from 0 to K; integers [..., 1].

    Returns:
        Probabilities [..., K], exactly k of them non-zero in a row of distinct logits. A row with NaN stays NaN, even
        where k = 0.

    Example:
        >>> import torch
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
        >>> import torch
        >>> keep_above(torch.tensor([[2.0, 1.0, -1.0], [-2.0, -1.0, -3.0]]), torch.tensor(0.0))
        tensor([[0.8446, 0.1554, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    return weighted_softmax(z, F.relu(z - theta))


def best_labels(u: Tensor, k: Tensor) -> Tensor:
    """The k highest entries of each row, as bool [..., K]; exactly k of them, ties too.

    Args:
        u: scores [..., K].
        k: how many, [..., 1].

    Example:
        >>> import torch
        >>> best_labels(torch.tensor([[2.0, 1.0, 1.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    ranks = u.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return ranks.lt(k)


def rate_of_count(k: Tensor, z: Tensor) -> Tensor:
    """The rate of zeros that leaves k of the K entries of ``z``: ``r = 1 - k/K``, exact for every k."""
    labels = z.shape[-1]
    return (labels - k).to(exact(z)) / labels


def _has_nan(z: Tensor) -> Tensor:
    """Which rows hold NaN, [..., 1]. Their count is meaningless, and 0 of it would look like "no label"."""
    return z.isnan().any(-1, keepdim=True)
