"""Decision rules from logits to labels, fitted on the dev rows only."""

from collections.abc import Callable

import torch
from torch import Tensor

from rsoftmax.labels import AVERAGES, Average, Decoder, evaluate
from rsoftmax_lab.comparison import TUNE

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


def tuned(average: Average) -> Rule:
    """The threshold, or one for each label, with the highest F1 on the dev rows."""

    def rule(u: Tensor, truth: Tensor) -> Callable[[Tensor], Tensor]:
        threshold = torch.from_numpy(TUNE[average](u.numpy(), truth.numpy() == 1))
        return lambda u: u >= threshold

    return rule


RULES: dict[str, Rule] = {
    **{f"ours, {average}": decoded(average) for average in AVERAGES},
    "at .5": above(0.5),
    "at .3": above(0.3),
    "tuned": tuned("micro"),
    "tuned for each label": tuned("macro"),
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
