"""The network of :class:`rsoftmax.sklearn.SparseLabelClassifier`, which draws from a generator of its own."""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rsoftmax.multilabel import Decoder, MultiLabelHead, Output, Scores

M = TypeVar("M", bound=nn.Module)


class Dropout(nn.Module):
    """Dropout that draws from a given generator, so that other threads do not matter.

    Args:
        p: the share of entries to set to zero in training.
        generator: of the CPU; on another device, one with the same seed takes its place.
    """

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p, self.generator = p, generator

    def forward(self, x: Tensor) -> Tensor:
        """Some entries zero, the others enlarged such that the mean stays."""
        if not self.training or self.p == 0:
            return x
        if self.generator.device != x.device:
            self.generator = torch.Generator(x.device).manual_seed(self.generator.initial_seed())
        kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept / (1 - self.p)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"p={self.p}"


class Network(nn.Module):
    """Hidden layers of rectified linear units and a head; in training, the scores that the loss needs, else everything.

    Args:
        features: their number.
        labels: their number.
        hidden: sizes of the hidden layers.
        head: arguments of :class:`rsoftmax.multilabel.MultiLabelHead`: mapping, loss, rate, r, and so on.
        seed: of the weights, and of dropout.
        dropout: the share of hidden units that dropout sets to zero.
        input_dropout: the share of features.
        backbone: a module in place of the hidden layers, from rows to features of the head; a copy is trained, from the
            weights that it has.
        example: a few rows, from which the number of features that a backbone gives is found.
    """

    def __init__(
        self,
        features: int,
        labels: int,
        hidden: Sequence[int],
        head: dict[str, Any],
        seed: int,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        backbone: nn.Module | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(seed)
        sizes = [features, *hidden]
        with torch.device("meta"):
            if backbone is None:
                layers: list[nn.Module] = [Dropout(input_dropout, generator)]
                for size, following in pairwise(sizes):
                    layers += [nn.Linear(size, following), nn.ReLU(), Dropout(dropout, generator)]
                own: nn.Module = drawn(nn.Sequential(*layers), generator)
            else:
                own, sizes = copy.deepcopy(backbone), [_width(backbone, example)]
            self.backbone = own
            self.head = drawn(MultiLabelHead(sizes[-1], labels, **head), generator)

    def forward(self, x: Tensor) -> Scores | Output:
        """From features [rows, features] to what the head says."""
        scores = self.scores(x)
        return scores if self.training else self.head.decode(scores)

    def scores(self, x: Tensor) -> Scores:
        """What the head says, not decoded."""
        return self.head.scores(self.backbone(x))


def drawn(module: M, generator: torch.Generator) -> M:
    """Fill a module made on the meta device: weights from the generator, as torch draws those of linear layers."""
    module = module.float().to_empty(device="cpu")
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            bound = 1 / math.sqrt(layer.in_features)
            for weights in layer.parameters():
                nn.init.uniform_(weights, -bound, bound, generator=generator)
        elif isinstance(layer, Decoder):
            layer.reset()
    return module


@torch.no_grad()
def _width(backbone: nn.Module, example: Tensor | None) -> int:
    found = copy.deepcopy(backbone).cpu().eval()(example)
    if not isinstance(found, Tensor) or found.ndim != 2:
        kind = f"a tensor {[*found.shape]}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"SparseLabelClassifier: backbone must give a tensor [rows, features], got {kind}")
    return int(found.shape[1])
