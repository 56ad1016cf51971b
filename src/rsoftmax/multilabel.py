"""Multi-label learning without a tuned threshold: from features to logits, a rate of zeros, and the labels.

A head scores ``K`` labels and maps the scores to probabilities; the labels of a row are those with a non-zero one. How
many that are is the head's ``rate``, a choice with a name:

================= ============= ===========================================================================
rate              mapping       the labels are
================= ============= ===========================================================================
``"expected_f1"`` ``r_softmax`` the k best, k maximising the expected F1 under the predicted marginals
``"count"``       ``r_softmax`` the k best, k predicted by a layer of its own: the paper's head
``"fixed"``       ``r_softmax`` the share ``1 - r`` of best ones, ``r`` given
``"threshold"``   ``t_softmax`` those above a threshold predicted from the features: the paper's version (1)
``"zero"``        ``t_softmax`` those above 0, which is what binary cross-entropy and ZLPR mean by a label
``None``          any other     what the mapping itself leaves non-zero
================= ============= ===========================================================================
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsoftmax import losses
from rsoftmax.domains import RATE
from rsoftmax.mappings import MAPPINGS, r_softmax, weighted_softmax
from rsoftmax.tensors import exact

__all__ = ["LOSSES", "RATES", "MultiLabelHead", "Output", "Scores", "expected_f1_count", "keep_above", "keep_count"]

# The rates that each mapping knows, and the losses that teach each rate what it needs; the default comes first.
RATES: dict[str, tuple[str, ...]] = {
    "r_softmax": ("expected_f1", "count", "fixed"),
    "t_softmax": ("threshold", "zero"),
}
_RANKING = (
    "cross_entropy", "sparsemax_huber_loss", "sparsemax_hinge_loss", "sparsehourglass_loss",
    "binary_cross_entropy", "zlpr_loss",
)  # fmt: skip
LOSSES: dict[str | None, tuple[str, ...]] = {
    "expected_f1": ("binary_cross_entropy", "t_softmax_loss"),  # marginals
    "count": ("r_softmax_loss", *_RANKING),  # a ranking
    "fixed": ("r_softmax_loss", *_RANKING),
    "threshold": ("t_softmax_loss", "binary_cross_entropy", "zlpr_loss"),  # labels on the right side of it
    "zero": ("binary_cross_entropy", "zlpr_loss", "t_softmax_loss"),
    None: _RANKING,
}
_OWN_LOSS = {
    "softmax": "cross_entropy",
    "sparsemax": "sparsemax_huber_loss",
    "sparsehourglass": "sparsehourglass_loss",
}  # of mappings without a rate; the hinge, which only asks for an order, serves the others


class Scores(NamedTuple):
    """What a head has learned about its input: enough for the loss.

    Attributes:
        z: logits [..., K].
        theta: the threshold that logits are measured from, [..., 1], if the rate knows one.
        c: logits of the label counts 0..K, [..., K + 1], if the rate is "count".
        none: the logit of there being no label, [..., 1], if the rate is "expected_f1".
    """

    z: Tensor
    theta: Tensor | None = None
    c: Tensor | None = None
    none: Tensor | None = None


class Output(NamedTuple):
    """:class:`Scores`, decoded.

    Attributes:
        z: logits [..., K].
        theta: the threshold that logits are measured from, [..., 1], if the rate knows one.
        c: logits of the label counts 0..K, [..., K + 1], if the rate is "count".
        none: the logit of there being no label, [..., 1], if the rate is "expected_f1".
        r: the rate of zeros, float64 [..., 1], if the mapping is r_softmax; 1 where there is no label.
        p: probabilities [..., K]; exactly zero where the label is negative, and everywhere if there is no label.
    """

    z: Tensor
    theta: Tensor | None
    c: Tensor | None
    none: Tensor | None
    r: Tensor | None
    p: Tensor

    @property
    def labels(self) -> Tensor:
        """The labels [..., K], bool: the non-zero probabilities."""
        return self.p > 0


class MultiLabelHead(nn.Module):
    r"""The last layer of a multi-label network, with its own loss.

    .. math:: z = W h + b, \qquad p = \mathrm{mapping}(z, r(h)), \qquad \text{labels} = \{i : p_i > 0\}

    Args:
        in_features: size d of the features.
        labels: their number, K.
        mapping: a mapping that keeps the order of scores; parameters other than t and r stay at the table's example.
        loss: a name in :mod:`rsoftmax.losses`, or "auto": the one that fits the rate, or else the mapping.
        rate: how the number of labels is found, see the head of this module; "auto": "fixed" if ``r`` is given,
            "expected_f1" with r_softmax, "threshold" with t_softmax, None with the others.
        r: the rate of zeros, in [0, 1], for ``rate="fixed"``.

    Returns:
        From features h [..., d]: an :class:`Output`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> head = MultiLabelHead(16, labels=5)
        >>> h, y = torch.randn(2, 16), torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0]])
        >>> output = head(h)
        >>> output.labels
        tensor([[ True,  True,  True, False,  True],
                [ True,  True,  True,  True, False]])
        >>> head.loss(output, y)
        tensor(5.0694, grad_fn=<MeanBackward0>)
        >>> MultiLabelHead(16, labels=5, rate="count")
        MultiLabelHead(
          mapping=r_softmax, rate=count, loss=r_softmax_loss
          (logits): Linear(in_features=16, out_features=5, bias=True)
          (count): Linear(in_features=16, out_features=6, bias=True)
        )

    With "count", eq. 5 takes the true number of labels in training, and the argmax of the counts otherwise: the rate is
    taught by its own cross-entropy, and the scores need not wait for it. With "threshold" and "expected_f1" everything
    depends on ``z - theta``, the log-odds of the labels. With "expected_f1" that there is none is learned as one more
    label, for labels are not independent where there is always one. In training the loss needs :meth:`scores` only,
    which saves decoding them. No step takes more than ``O(K log K)`` time or ``O(K)`` memory for a row.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, for "count" and "threshold".
    """

    def __init__(
        self,
        in_features: int,
        labels: int,
        mapping: str = "r_softmax",
        loss: str = "auto",
        rate: str | None = "auto",
        *,
        r: float | None = None,
    ) -> None:
        super().__init__()
        if in_features < 1 or labels < 1:
            raise ValueError(f"MultiLabelHead: needs a feature and a label at least, got {in_features=}, {labels=}")
        self.mapping = _checked_mapping(mapping)
        self.rate = _checked_rate(mapping, rate, r)
        self.criterion = _checked_loss(mapping, self.rate, loss)
        self.r = r
        self.labels = labels
        self.logits = nn.Linear(in_features, labels + (self.rate == "expected_f1"))  # "no label" is one more label
        self.threshold = nn.Linear(in_features, 1) if self.rate in ("threshold", "expected_f1") else None
        self.count = nn.Linear(in_features, labels + 1) if self.rate == "count" else None

    def forward(self, h: Tensor) -> Output:
        """From features [..., d] to logits, rate and probabilities."""
        return self.decode(self.scores(h))

    def scores(self, h: Tensor) -> Scores:
        """The part of :meth:`forward` that the loss needs."""
        z, *none = self.logits(h).split(self.labels, -1)
        theta = None if self.threshold is None else self.threshold(h)
        c = None if self.count is None else self.count(h)
        return Scores(z, z.new_zeros(1) if self.rate == "zero" else theta, c, *none)

    def decode(self, scores: Scores) -> Output:
        """The rest of :meth:`forward`: from scores to a rate and probabilities."""
        z, theta, c, none = scores
        match self.rate:
            case "expected_f1":
                assert theta is not None
                return self._best(scores, expected_f1_count(z - theta, None if none is None else none - theta))
            case "count":
                assert c is not None
                return self._best(scores, c.argmax(-1, keepdim=True))
            case "fixed":
                assert self.r is not None
                r = torch.full((*z.shape[:-1], 1), self.r, dtype=exact(z), device=z.device)
                return Output(*scores, r, r_softmax(z, r))
            case "threshold" | "zero":
                assert theta is not None
                return Output(*scores, None, keep_above(z, theta))
        parameter = MAPPINGS[self.mapping].parameter
        return Output(*scores, None, MAPPINGS[self.mapping].function(z, *([parameter.example] if parameter else [])))

    def loss(self, output: Output | Scores, y: Tensor, *, reduction: losses.Reduction = "mean") -> Tensor:
        """What to minimise, given labels y [..., K], 0 or 1; ``reduction`` as in :mod:`rsoftmax.losses`."""
        z, theta, c, none = output[:4]
        if none is not None:
            z, y = torch.cat([z, none], -1), torch.cat([y, y.any(-1, keepdim=True).logical_not()], -1)
        match self.criterion:
            case "t_softmax_loss":
                assert theta is not None
                loss = losses.t_softmax_loss(z, y, theta, reduction=reduction)
            case "r_softmax_loss":
                r = _rate_of_count(y.sum(-1, keepdim=True), z) if self.r is None else self.r
                loss = losses.r_softmax_loss(z, y, r, reduction=reduction)
            case name:
                loss = getattr(losses, name)(z if theta is None else z - theta, y, reduction=reduction)
        return loss if c is None else loss + losses.label_count_loss(c, y, reduction=reduction)

    def extra_repr(self) -> str:
        """What ``repr`` shows: the choices made."""
        r = "" if self.r is None else f", r={self.r}"
        return f"mapping={self.mapping}, rate={self.rate}{r}, loss={self.criterion}"

    def _best(self, scores: Scores, k: Tensor) -> Output:
        return Output(*scores, _rate_of_count(k, scores.z), keep_count(scores.z, k))


def expected_f1_count(u: Tensor, none: Tensor | None = None) -> Tensor:
    r"""The number of labels that promises the highest F1, from the log-odds of the labels.

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
    empty = (-F.softplus(u).sum(-1, keepdim=True)).exp() if none is None else none.detach().to(u.dtype).sigmoid()
    return torch.cat([empty, some], -1).argmax(-1, keepdim=True)


def keep_count(z: Tensor, k: Tensor) -> Tensor:
    """r-softmax that keeps k labels: ``r = 1 - k/K``, and nothing at all where ``k = 0``.

    Args:
        z: logits [..., K].
        k: how many, from 0 to K; integers [..., 1].

    Returns:
        Probabilities [..., K], exactly k of them non-zero in a row of distinct logits. NaN stays NaN, even where k = 0.

    Example:
        >>> keep_count(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[0.9158, 0.0842, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    broken = z.isnan().any(-1, keepdim=True)  # a count made of NaN is 0: no labels would look like an answer
    return r_softmax(z, _rate_of_count(k, z), mask=(k > 0) | broken)


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


def _rate_of_count(k: Tensor, z: Tensor) -> Tensor:
    labels = z.shape[-1]
    return (labels - k).to(exact(z)) / labels


def _checked_mapping(mapping: str) -> str:
    fit = [name for name, row in MAPPINGS.items() if row.keeps_order]
    if mapping not in MAPPINGS:
        raise ValueError(f"MultiLabelHead: no mapping is called {mapping!r}; there are {', '.join(fit)}")
    if mapping not in fit:
        raise ValueError(
            f"MultiLabelHead: {mapping} does not keep the order of scores, on which the losses rest;"
            f" use one of {', '.join(fit)}"
        )
    return mapping


def _checked_rate(mapping: str, rate: str | None, r: float | None) -> str | None:
    known = RATES.get(mapping, (None,))
    if rate == "auto":
        rate = "fixed" if r is not None and "fixed" in known else known[0]
    if rate not in known:
        others = [
            f"{other!r} with mapping={name!r}" for name, rates in RATES.items() for other in rates if name != mapping
        ]
        raise ValueError(
            f"MultiLabelHead: rate={rate!r} does not go with mapping={mapping!r}, which takes"
            f" {_listed(known)}; there are also {', '.join(others)}"
        )
    if (rate == "fixed") != (r is not None):
        wanted = "rate='fixed' needs r, say r=0.9" if r is None else f"r={r!r} needs rate='fixed', got rate={rate!r}"
        raise ValueError(f"MultiLabelHead: {wanted}; it is the share of labels to set to zero")
    if r is not None and not RATE.contains(r):
        raise ValueError(f"MultiLabelHead: r must be {RATE.text}, got {r!r}; {RATE.remedy}")
    return rate


def _checked_loss(mapping: str, rate: str | None, loss: str) -> str:
    known = LOSSES[rate]
    if loss == "auto":
        return known[0] if rate else _OWN_LOSS.get(mapping, "sparsemax_hinge_loss")
    if loss not in known:
        raise ValueError(
            f"MultiLabelHead: loss={loss!r} does not teach what mapping={mapping!r} with rate={rate!r} needs;"
            f" use 'auto' or one of {_listed(known)}"
        )
    return loss


def _listed(names: tuple[str | None, ...]) -> str:
    return ", ".join(map(repr, names))
