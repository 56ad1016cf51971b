"""Items that are read in windows, such as long texts: their features, and scores pooled over the windows."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rsoftmax.labels.rules import Scores
from rsoftmax.nn import Pooled, SparsePooling

__all__ = ["Windows", "pool_scores", "window_weights"]

AT_ONCE = 256  # items whose scores are padded to the same number of windows


class Windows:
    """The features of items with different numbers of windows.

    Args:
        x: the features of all windows, [windows, d], those of an item next to each other.
        counts: the number of windows of each item, int [items], at least 1.
        pooling: pools the scores of the windows of an item.
    """

    ndim = 3

    def __init__(self, x: Tensor, counts: Tensor, pooling: SparsePooling) -> None:
        self.x, self.counts, self.pooling = x, counts, pooling

    @property
    def shape(self) -> tuple[int, int]:
        """The number of items and of features."""
        return len(self.counts), self.x.shape[1]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: Tensor) -> "Windows":
        """Some of the items, by their numbers or as a mask."""
        items = torch.arange(len(self))[index]
        counts = self.counts[items]
        first, new = (n.cumsum(0) - n for n in (self.counts, counts))
        shift = (first[items] - new).repeat_interleave(counts)
        return Windows(self.x[torch.arange(len(shift)) + shift], counts, self.pooling)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Windows":
        """Apply a function to the features of all windows."""
        return Windows(function(self.x), self.counts, self.pooling)

    def to(self, device: torch.device) -> "Windows":
        """The same with features on a device."""
        return self.map(lambda x: x.to(device))

    def mean(self) -> Tensor:
        """The mean features of each item, [items, d]."""
        index = torch.arange(len(self)).repeat_interleave(self.counts)
        return torch.zeros(self.shape).index_add_(0, index, self.x) / self.counts[:, None]

    def pool(self, scores: Tensor) -> list[Pooled]:
        """Pool the scores of all windows, [windows, K], into those of items, some of them at a time."""
        pooled = []
        for counts, some in zip(self.counts.split(AT_ONCE), self._by_item(scores), strict=True):
            padded = pad_sequence(some, batch_first=True)
            mask = torch.arange(padded.shape[1]) < counts[:, None]
            pooled.append(self.pooling.scores(padded, mask=mask.to(padded.device)))
        return pooled

    def _by_item(self, scores: Tensor) -> list[list[Tensor]]:
        parts = list(scores.split(self.counts.tolist()))
        return [parts[start : start + AT_ONCE] for start in range(0, len(parts), AT_ONCE)]


def pool_scores(score: Callable[[Tensor], Scores], x: Tensor | Windows) -> Scores:
    r"""The scores of items: from their features, or pooled over their windows.

    .. math:: z_k = \sum_i a_{ki} z_{ki}, \qquad a_k = \mathrm{mapping}(z_{k1}, ..., z_{kn})

    A label is where its scores are high. "No label" is the opposite of a last label, "some label": an item has none if
    none of its windows has one.
    """
    if isinstance(x, Tensor):
        return score(x)
    scores = score(x.x)
    some_label = [] if scores.no_label_margin is None else [-scores.no_label_margin]
    pooled = torch.cat([part.features for part in x.pool(torch.cat([scores.margins, *some_label], -1))])
    return Scores(pooled, None) if not some_label else Scores(pooled[:, :-1], no_label_logit=-pooled[:, -1:])


def window_weights(score: Callable[[Tensor], Scores], x: Windows) -> list[Tensor]:
    """The weights a of :func:`pool_scores` of each item, [K, windows]."""
    weights = (one for part in x.pool(score(x.x).margins) for one in part.weights)
    return [one[:, :count] for one, count in zip(weights, x.counts.tolist(), strict=True)]
