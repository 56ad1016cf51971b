"""Decision rules from logits to labels, fitted on the dev rows only."""

from collections.abc import Callable

import torch
from torch import Tensor

from rsoftmax.multilabel import AVERAGES, Average, Decoder, evaluate

Rule = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
"""Fits a function from logits to labels, given the logits and labels of the dev rows."""


def decoded(average: Average) -> Rule:
    """Ours: calibrated marginals and the threshold that maximizes the expected F1."""

    def rule(u: Tensor, truth: Tensor) -> Callable[[Tensor], Tensor]:
        decoder = Decoder(truth.shape[1], average).fit(u, truth)
        return lambda u: decoder(u).labels

    return rule


def above(p: float) -> Rule:
    """A given threshold for all labels."""
    return lambda u, truth: lambda u: u.sigmoid() > p


def tuned(u: Tensor, truth: Tensor) -> Callable[[Tensor], Tensor]:
    """The threshold for all labels with the highest micro-F1 on the dev rows."""
    cut = best_cut(u.reshape(-1, 1), truth.reshape(-1, 1))
    return lambda u: u >= cut


def tuned_for_each(u: Tensor, truth: Tensor) -> Callable[[Tensor], Tensor]:
    """For each label the threshold with the highest F1 on the dev rows."""
    cuts = best_cut(u, truth)
    return lambda u: u >= cuts


def best_cut(u: Tensor, truth: Tensor) -> Tensor:
    """For each column, the value v for which ``u >= v`` has the highest F1, [columns].

    Example:
        >>> best_cut(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([[1.0], [0.0], [1.0]]))
        tensor([2.])
    """
    falling, order = u.sort(0, descending=True)
    right = truth.gather(0, order).cumsum(0)
    given = torch.arange(1, len(u) + 1).unsqueeze(-1)
    f1 = 2 * right / (given + truth.sum(0))
    f1[:-1][falling[:-1] == falling[1:]] = -1  # ties are on the same side of a threshold
    return falling.gather(0, f1.argmax(0, keepdim=True))[0]


RULES: dict[str, Rule] = {
    **{f"ours, {average}": decoded(average) for average in AVERAGES},
    "at .5": above(0.5),
    "at .3": above(0.3),
    "tuned": tuned,
    "tuned for each label": tuned_for_each,
}
"""The decision rules, by name."""


def scored(dev: Tensor, dev_truth: Tensor, test: Tensor, test_truth: Tensor) -> dict[str, dict[str, dict[str, float]]]:
    """The F1 of each rule on dev and test rows, in per cent."""
    found = {}
    for name, rule in RULES.items():
        decide = rule(dev, dev_truth)
        found[name] = {"dev": _f1(decide(dev), dev_truth), "test": _f1(decide(test), test_truth)}
    return found


def _f1(found: Tensor, truth: Tensor) -> dict[str, float]:
    scores = evaluate(found.float(), found, truth, [""] * truth.shape[1])
    return {average: round(100 * getattr(scores, average), 4) for average in AVERAGES}
