"""What stands behind features, whatever they are features of: one hidden layer, or none, and a head."""

from typing import Any

from torch import Tensor, nn

from rsoftmax.multilabel.head import MultiLabelHead
from rsoftmax.multilabel.scores import Output, Scores


class LabelNetwork(nn.Module):
    r"""A hidden layer of rectified linear units, if there is one, and a :class:`MultiLabelHead`.

    .. math:: h = [V x + a]_+ \text{, or } x, \qquad z = W h + b

    Args:
        features: their number.
        labels: their number.
        hidden: the number of hidden units; 0: no hidden layer.
        head: what :class:`MultiLabelHead` is told: mapping, loss, rate, average, and so on.

    Returns:
        From features [rows, features]: an :class:`Output`.

    Example:
        >>> import torch
        >>> LabelNetwork(8, labels=3, hidden=16, average="micro")(torch.ones(2, 8)).marginals.shape
        torch.Size([2, 3])

    The mean of the scores of several such networks is one of them again, with all their hidden units.
    """

    def __init__(self, features: int, labels: int, hidden: int = 0, **head: Any) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(features, hidden), nn.ReLU()) if hidden else nn.Sequential()
        self.head = MultiLabelHead(hidden or features, labels, **head)

    @property
    def width(self) -> int:
        """The number of hidden units; 0: there is no hidden layer."""
        return sum(layer.out_features for layer in self.hidden if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor) -> Output:
        """From features to marginals and labels."""
        return self.head.decode(self.scores(x))

    def scores(self, x: Tensor) -> Scores:
        """What the head says, not decoded: all that its loss needs."""
        return self.head.scores(self.hidden(x))
