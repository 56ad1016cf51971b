"""The preparation of dense features as a module of torch, made of the numbers that scikit-learn has found."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.sklearn.features import FARTHEST

EDGE = 1e-7  # as in scikit-learn: what is this close to the smallest or largest value is taken for it
NEAREST = 0.0005  # to 0 and 1: beyond, every quantile is farther than FARTHEST


class Preparation(nn.Module):
    r"""Each column made normal by its quantiles, clipped at 3 and standardised.

    .. math:: y = (\mathrm{clip}(\Phi^{-1}(p(x)), -3, 3) - \mathrm{mean}) / \mathrm{scale}

    where p(x) is the share of training rows below x, linear between quantiles, and the middle of equal ones; in
    float64, in which scikit-learn decides whether a float32 value equals a quantile.

    Args:
        features: their number.
        quantiles: how many of them.

    Returns:
        From features [rows, d] to features [rows, d].

    Reference: scikit-learn's QuantileTransformer, of which this is the part that is used here.
    """

    def __init__(self, features: int, quantiles: int) -> None:
        super().__init__()
        self.register_buffer("quantiles", torch.zeros(features, quantiles, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    quantiles: Tensor
    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, fitted: Any) -> "Preparation":
        """With the numbers of what :func:`rsoftmax.sklearn.features.prepared_by` gave for dense features."""
        quantile, _, scaler = (step for _, step in fitted.steps)
        made = cls(quantile.quantiles_.shape[1], quantile.quantiles_.shape[0])
        made.quantiles.copy_(torch.from_numpy(quantile.quantiles_.T.copy()))
        made.mean.copy_(torch.from_numpy(scaler.mean_))
        made.scale.copy_(torch.from_numpy(scaler.scale_))
        return made

    def forward(self, x: Tensor) -> Tensor:
        """The features, prepared."""
        z = normal_quantile(self._shares(x).float()).clamp(-FARTHEST, FARTHEST)
        return (z - self.mean) / self.scale

    def _shares(self, x: Tensor) -> Tensor:
        """p(x)."""
        q, entries = self.quantiles, x.double().unsqueeze(-1)
        last = q.shape[1] - 1
        below, upto = (q < entries).sum(-1), (q <= entries).sum(-1)
        left = (upto - 1).clamp(0, max(last - 1, 0))
        low, high = self._at(left), self._at((left + 1).clamp(max=last))
        between = left + (x - low) / (high - low).where(high > low, 1)
        share = torch.where(upto > below, (below + upto - 1) / 2, between) / max(last, 1)
        share = share.where((x + EDGE).double() <= q[:, -1], 1)
        return share.where((x - EDGE).double() >= q[:, 0], 0)

    def _at(self, places: Tensor) -> Tensor:
        return self.quantiles.expand(places.shape[0], -1, -1).gather(-1, places.unsqueeze(-1)).squeeze(-1)


def normal_quantile(p: Tensor) -> Tensor:
    r"""The inverse of the normal distribution function, for p from 0.0005 to 0.9995; others are moved there.

    Written with what ONNX has: a first guess that is right to 0.005, and three steps of Newton's method.

    Example:
        >>> normal_quantile(torch.tensor([0.0, 0.5, 0.975])).round(decimals=3)
        tensor([-3.2910,  0.0000,  1.9600])

    Reference: Winitzki, A handy approximation for the error function and its inverse (2008), for the guess.
    """
    p = p.clamp(NEAREST, 1 - NEAREST)
    log = torch.log(4 * p * (1 - p))
    half = 2 / (math.pi * 0.147) + log / 2
    z = math.sqrt(2) * (p - 0.5).sign() * ((half.square() - log / 0.147).clamp(min=0).sqrt() - half).clamp(min=0).sqrt()
    for _ in range(3):
        z = z - (0.5 * (1 + torch.erf(z / math.sqrt(2))) - p) * math.sqrt(2 * math.pi) * (z.square() / 2).exp()
    return z
