"""Sampling from sparse distributions: logits processors for ``generate``, which takes softmax of what they return."""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from rsoftmax.domains import RATE
from rsoftmax.mappings import r_softmax, t_softmax


class TSoftmaxWarper(LogitsProcessor):
    r"""t-softmax in place of softmax: tokens whose score is t or more below the best one get nothing.

    .. math:: p \propto [x - \max(x) + t]_+ \, e^x

    The tokens that are kept are those of min-p with ``min_p = exp(-t)``; their weights fade to zero at the edge, where
    those of min-p end abruptly.

    Args:
        t: how far below the best score the edge is, above 0.

    Returns:
        From scores [rows, tokens]: logarithms of the probabilities, ``-inf`` for what gets nothing.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, -1.0, -torch.inf]])
        >>> TSoftmaxWarper(2.0)(None, scores).softmax(-1)
        tensor([[0.8446, 0.1554, 0.0000, 0.0000]])

    A score of ``-inf`` stays so, and so does a row of nothing else. The best token stays the best.

    References: Bałazy et al., r-softmax (2023), eq. 1; Nguyen et al., min-p sampling (2024).
    """

    def __init__(self, t: float) -> None:
        if not t > 0:
            raise ValueError(f"TSoftmaxWarper: t must be above 0, got {t!r}; exp(-t) is the min_p with the same tokens")
        self.t = float(t)

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """The logarithms of the probabilities."""
        return t_softmax(scores.float(), self.t).log_()


class RSoftmaxWarper(LogitsProcessor):
    r"""r-softmax in place of softmax: the k best tokens, or the share 1 - r of them, are kept, with soft edges.

    .. math:: p \propto [x - \mathrm{quantile}(x, r)]_+ \, e^x

    Args:
        k: how many tokens are kept, as top-k keeps them; the last of them has the smallest weight.
        r: the share of tokens that get nothing, in [0, 1]; of those that other processors have left.

    Returns:
        From scores [rows, tokens]: logarithms of the probabilities, ``-inf`` for what gets nothing.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, 0.0, -1.0], [3.0, 1.0, -torch.inf, -torch.inf]])
        >>> RSoftmaxWarper(k=2)(None, scores).softmax(-1)
        tensor([[0.8908, 0.1092, 0.0000, 0.0000],
                [0.8808, 0.1192, 0.0000, 0.0000]])

    A score of ``-inf`` stays so, and so does a row of nothing else. The best token stays the best.

    Reference: Bałazy et al., r-softmax (2023), eq. 3.
    """

    def __init__(self, *, k: int | None = None, r: float | None = None) -> None:
        if (k is None) == (r is None):
            raise ValueError(f"RSoftmaxWarper: give k or r, and not both; got k={k!r}, r={r!r}")
        if k is not None and (not isinstance(k, int) or k < 1):
            raise ValueError(f"RSoftmaxWarper: k must be a whole number from 1, got {k!r}")
        if r is not None and not RATE.contains(r):
            raise ValueError(f"RSoftmaxWarper: r must be {RATE.text}, got {r!r}; {RATE.remedy}")
        self.k, self.r = k, r

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """The logarithms of the probabilities."""
        return r_softmax(scores.float(), self._rate(scores)).log_()

    def _rate(self, scores: Tensor) -> Tensor | float:
        """The share of zeros, of the tokens that are left in each row."""
        if self.k is None:
            return float(self.r or 0.0)
        left = (scores > -torch.inf).sum(-1, keepdim=True).clamp(min=1)
        return (left - self.k).clamp(min=0).double() / left
