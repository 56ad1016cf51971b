"""The network of :class:`rsoftmax.sklearn.SparseLabelClassifier`."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from rsoftmax.multilabel import MultiLabelHead, Output, Scores


class Network(nn.Module):
    """Hidden layers of rectified linear units and a head; in training, the scores that the loss needs, else everything.

    Args:
        features: their number.
        labels: their number.
        hidden: sizes of the hidden layers.
        head: arguments of :class:`rsoftmax.multilabel.MultiLabelHead`: mapping, loss, rate, r.
    """

    def __init__(self, features: int, labels: int, hidden: Sequence[int], head: dict[str, Any]) -> None:
        super().__init__()
        sizes = [features, *hidden]
        self.backbone = nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())))
        self.head = MultiLabelHead(sizes[-1], labels, **head)
        self.float()  # as the features are, whatever torch's default type

    def forward(self, x: Tensor) -> Scores | Output:
        """From features [rows, features] to what the head says."""
        h = self.backbone(x)
        return self.head.scores(h) if self.training else self.head(h)
