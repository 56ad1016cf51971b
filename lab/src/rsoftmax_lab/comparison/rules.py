"""Decision rules: from the outputs of a trained network to labels.

Most methods have one rule, the non-zero probabilities. Softmax has no zeros, so one training is evaluated at every
threshold of a grid. Two rules are not in the paper: ``tuned`` chooses its threshold on the validation rows, and
``true_count`` is given the number of labels of each row, which measures the quality of the ranking alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rsoftmax_lab.comparison.data import Labels
from rsoftmax_lab.comparison.scores import best_threshold


class Outputs(NamedTuple):
    """The outputs of a network for some rows: logits and probabilities [rows, K], and the true labels."""

    z: NDArray[np.float32]
    p: NDArray[np.float32]
    Y: Labels


def outputs(z: NDArray[np.float32], p: NDArray[np.float32], Y: Labels, ignored: Labels | None) -> Outputs:
    """:class:`Outputs` in which ignored labels are never predicted and never true."""
    if ignored is None:
        return Outputs(z, p, Y)
    return Outputs(np.where(ignored, -np.inf, z), np.where(ignored, 0, p), Y & ~ignored)


Decision = Callable[[Outputs], Labels]
Rule = Callable[[Outputs], Decision]  # from the validation rows to a decision; only "tuned" uses them


def nonzero(validation: Outputs) -> Decision:
    """The labels are the non-zero probabilities."""
    return lambda outputs: outputs.p > 0


def at_least(p0: float) -> Rule:
    """The labels are the probabilities of at least p0."""
    return lambda validation: lambda outputs: outputs.p >= p0


def tuned(what: str) -> Rule:
    """The labels are the logits ("z") or probabilities ("p") above the threshold that is best on validation."""

    def rule(validation: Outputs) -> Decision:
        threshold = best_threshold(getattr(validation, what), validation.Y)
        return lambda outputs: getattr(outputs, what) >= threshold

    return rule


def true_count(validation: Outputs) -> Decision:
    """The labels are the k largest logits, where k is the true number of labels."""

    def top(outputs: Outputs) -> Labels:
        k = torch.from_numpy(outputs.Y.sum(1, keepdims=True))
        z = torch.from_numpy(outputs.z)
        least = z.topk(max(int(k.max()), 1), -1).values.gather(-1, (k - 1).clamp(min=0))
        return ((z >= least) & (k > 0)).numpy()

    return top
