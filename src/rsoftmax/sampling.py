"""Logits processors that make ``generate`` sample from a sparse distribution.

Each returns log-probabilities ``[batch, tokens]``, ``-inf`` outside the support. Scores of ``-inf`` stay ``-inf``, even
in a fully masked row. The order of tokens is preserved. A row with NaN becomes NaN.
"""

import math
from typing import Any

import torch
from torch import Tensor

try:
    from transformers import LogitsProcessor
except ImportError as missing:
    raise ImportError(f"rsoftmax.sampling needs {missing.name}: pip install 'rsoftmax[attention]'") from missing

from rsoftmax.mappings import EDGE, R, T, k_softmax, r_softmax, t_softmax
from rsoftmax.registry import check_option, row_function

_k_softmax = row_function("k_softmax")  # without the checks of k_softmax, which take as long as 50 tokens


class TSoftmaxLogitsWarper(LogitsProcessor):
    r"""Sample from t-softmax: tokens whose score is ``t`` or more below the highest get probability zero.

    .. math:: p \propto \min(x - \max(x) + t,\; \mathrm{edge})_+ \, e^x

    The support is that of min-p with ``min_p = exp(-t)``; ``edge=0`` is min-p. With a positive edge, probabilities fall
    continuously to zero at the threshold; min-p cuts them off there.

    Args:
        t: the distance of the threshold from the highest score, above 0; ``math.inf`` is softmax.
        edge: the distance above the threshold over which weights rise; see :func:`rsoftmax.t_softmax`.
        in_sigmas: ``t`` is in standard deviations of the finite scores of the row; with ``edge=0``, top-n-sigma.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, -1.0, -torch.inf]])
        >>> TSoftmaxLogitsWarper(2.0)(None, scores).exp()
        tensor([[0.8446, 0.1554, 0.0000, 0.0000]])
        >>> TSoftmaxLogitsWarper(2.0, edge=0)(None, scores).exp()
        tensor([[0.7311, 0.2689, 0.0000, 0.0000]])
        >>> TSoftmaxLogitsWarper(0.5, edge=0, in_sigmas=True)(None, scores).exp()
        tensor([[1., 0., 0., 0.]])

    References: Bałazy et al., r-softmax (2023), eq. 1; Nguyen et al., min-p sampling (2024); Tang et al.,
    Top-n-sigma: not all logits are you need (2024).
    """

    def __init__(self, t: float, *, edge: float = math.inf, in_sigmas: bool = False) -> None:
        self.t = check_option("TSoftmaxLogitsWarper", T, t)
        self.edge = check_option("TSoftmaxLogitsWarper", EDGE, edge)
        self.in_sigmas = in_sigmas

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Log-probabilities."""
        x = scores.float()
        tiny = torch.finfo(x.dtype).tiny  # equal scores have no deviation; t is above 0
        t = (self.t * _deviation(x).clamp(min=tiny)).clamp(min=tiny) if self.in_sigmas else self.t
        return _log(t_softmax(x, t, edge=self.edge))


class RSoftmaxLogitsWarper(LogitsProcessor):
    r"""Sample from r-softmax: keep the fraction ``1 - r`` of the tokens with finite scores.

    .. math:: p \propto \min(x - \mathrm{quantile}(x, r),\; \mathrm{edge})_+ \, e^x

    Args:
        r: the fraction of zeros in [0, 1], among the tokens with finite scores.
        edge: the distance above the threshold over which weights rise; see :func:`rsoftmax.t_softmax`.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, 0.0, -1.0], [3.0, 1.0, -torch.inf, -torch.inf]])
        >>> RSoftmaxLogitsWarper(0.5)(None, scores).exp()
        tensor([[0.8908, 0.1092, 0.0000, 0.0000],
                [1.0000, 0.0000, 0.0000, 0.0000]])

    Reference: Bałazy et al., r-softmax (2023), eq. 3.
    """

    def __init__(self, r: float, *, edge: float = math.inf) -> None:
        self.r = check_option("RSoftmaxLogitsWarper", R, r)
        self.edge = check_option("RSoftmaxLogitsWarper", EDGE, edge)

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Log-probabilities."""
        return _log(r_softmax(scores.float(), self.r, edge=self.edge))


class KSoftmaxLogitsWarper(LogitsProcessor):
    r"""Sample from k-softmax: keep the ``k`` tokens with the highest scores; ``edge=0`` is top-k.

    .. math:: p \propto \min(x - \theta,\; \mathrm{edge})_+ \, e^x

    where :math:`\theta` is the highest score outside the support.

    Args:
        k: the number of tokens in the support. Tokens tied at the threshold are left out; top-k keeps them.
        edge: the distance above the threshold over which weights rise; see :func:`rsoftmax.t_softmax`.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, 0.0, -1.0], [3.0, 1.0, -torch.inf, -torch.inf]])
        >>> KSoftmaxLogitsWarper(2)(None, scores).exp()
        tensor([[0.8446, 0.1554, 0.0000, 0.0000],
                [0.8808, 0.1192, 0.0000, 0.0000]])
        >>> KSoftmaxLogitsWarper(2, edge=0)(None, scores).exp()
        tensor([[0.7311, 0.2689, 0.0000, 0.0000],
                [0.8808, 0.1192, 0.0000, 0.0000]])
    """

    def __init__(self, k: int, *, edge: float = math.inf) -> None:
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"KSoftmaxLogitsWarper: k must be a positive integer, got {k!r}")
        self.k, self.edge = k, check_option("KSoftmaxLogitsWarper", EDGE, edge)

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Log-probabilities, from the ``k + 1`` highest scores alone unless these have ties or NaN."""
        x = scores.float()
        if x.numel() and self.k < x.shape[-1]:
            highest, indices = x.topk(self.k + 1)
            p = _k_softmax(highest, None, float(self.k), edge=self.edge)
            if not any(p.select(-1, -1).flatten().tolist()):
                return torch.full_like(x, -torch.inf).scatter_(-1, indices, p.log_())
        return _log(k_softmax(x, self.k, edge=self.edge))


def _deviation(x: Tensor) -> Tensor:
    """The standard deviation of the finite entries of each row, [..., 1]."""
    finite = x != -math.inf
    n = finite.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(finite, x, 0).sum(-1, keepdim=True) / n
    return (torch.where(finite, x - mean, 0).square().sum(-1, keepdim=True) / n).sqrt()


def _log(p: Tensor) -> Tensor:
    """``log(p)`` where ``p`` is not zero, ``-inf`` elsewhere: torch's logarithm is slow at zero."""
    support = p.flatten().nonzero().squeeze(1)
    return torch.full_like(p, -torch.inf).put_(support, p.take(support).log_())
