"""Logits processors that make ``generate`` sample from a sparse distribution."""

from numbers import Real
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from rsoftmax.extend import RATE
from rsoftmax.mappings import r_softmax


class TSoftmaxWarper(LogitsProcessor):
    r"""Sample from t-softmax: tokens whose score is ``t`` or more below the highest get probability zero.

    .. math:: p \propto [x - \max(x) + t]_+ \, e^x

    The support is that of min-p with ``min_p = exp(-t)``. Probabilities fall to zero continuously at the threshold,
    where min-p cuts them off.

    Args:
        t: the distance of the threshold from the highest score, above 0; ``math.inf`` is softmax.

    Returns:
        Log-probabilities ``[rows, tokens]``; ``-inf`` outside the support.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, -1.0, -torch.inf]])
        >>> TSoftmaxWarper(2.0)(None, scores).exp()
        tensor([[0.8446, 0.1554, 0.0000, 0.0000]])

    Scores of ``-inf`` stay ``-inf``, also if the whole row is. The order of tokens is kept. A row with NaN becomes NaN.

    References: Bałazy et al., r-softmax (2023), eq. 1; Nguyen et al., min-p sampling (2024).
    """

    def __init__(self, t: float) -> None:
        if not (isinstance(t, (float, Real)) and t > 0):
            raise ValueError(
                f"TSoftmaxWarper: t must be above 0, got {t!r}; exp(-t) is the min_p with the same support"
            )
        self.t = float(t)

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Log-probabilities; only those of the support are computed."""
        x = scores.float()
        best = x.amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).min)  # finite even if every score is -inf
        below = (x - best).flatten()  # 0 for the highest score, which is kept for any t
        kept = (below <= -self.t).logical_not_().nonzero()[:, 0]  # includes NaN
        weights, rows = below[kept] + (below[kept] / self.t).log1p(), kept // x.shape[-1]
        sums = x.new_zeros(x.numel() // x.shape[-1]).index_add_(0, rows, weights.exp())
        log_p = weights - sums.log()[rows]
        return torch.full_like(below, -torch.inf).index_copy_(0, kept, log_p).view_as(x)


class RSoftmaxWarper(LogitsProcessor):
    r"""Sample from r-softmax: keep the ``k`` highest tokens, or the fraction ``1 - r`` of them.

    .. math:: p \propto [x - \mathrm{quantile}(x, r)]_+ \, e^x

    Args:
        k: the number of tokens in the support, as in top-k.
        r: the fraction of zeros in [0, 1], among the tokens with finite scores.

    Returns:
        Log-probabilities ``[rows, tokens]``; ``-inf`` outside the support.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, 0.0, -1.0], [3.0, 1.0, -torch.inf, -torch.inf]])
        >>> RSoftmaxWarper(k=2)(None, scores).exp()
        tensor([[0.8908, 0.1092, 0.0000, 0.0000],
                [0.8808, 0.1192, 0.0000, 0.0000]])

    Scores of ``-inf`` stay ``-inf``, also if the whole row is. The order of tokens is kept. A row with NaN becomes NaN.

    Reference: Bałazy et al., r-softmax (2023), eq. 3.
    """

    def __init__(self, *, k: int | None = None, r: float | None = None) -> None:
        if (k is None) == (r is None):
            raise ValueError(f"RSoftmaxWarper: give either k or r, got k={k!r}, r={r!r}")
        if k is not None and (not isinstance(k, int) or k < 1):
            raise ValueError(f"RSoftmaxWarper: k must be a positive integer, got {k!r}")
        if r is not None and not (isinstance(r, (float, Real)) and RATE.contains(r)):
            raise ValueError(f"RSoftmaxWarper: r must be {RATE.text}, got {r!r}; {RATE.remedy}")
        self.k, self.r = k, r

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Log-probabilities."""
        x = scores.float()
        if self.k is None:
            return r_softmax(x, float(self.r or 0.0)).log_()
        left = (x > -torch.inf).sum(-1, keepdim=True).clamp(min=1)
        if (left > self.k).all():
            best, places = x.topk(self.k + 1, -1)
            if (best[..., 0] > best[..., -1]).all():
                return torch.full_like(x, -torch.inf).scatter_(-1, places[..., :-1], _log_p(best, left))
        return r_softmax(x, (left - self.k).clamp(min=0).double() / left).log_()


def _log_p(best: Tensor, left: Tensor) -> Tensor:
    """Log-probabilities of the k highest scores, given the k + 1 highest: the quantile lies between the last two."""
    k = best.shape[-1] - 1
    kept, last, below = best[..., :-1], best[..., -2:-1], best[..., -1:]
    quantile = below + (last - below) * (k / left)
    return (kept + (kept - quantile).log()).log_softmax(-1)
