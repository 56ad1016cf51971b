"""Several networks whose scores are averaged, as the one network that they are."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.multilabel import LabelNetwork
from rsoftmax.sklearn.network import Network


@torch.no_grad()
def merged(nets: Sequence[Network], head: dict[str, Any], shift: Tensor, scale: Tensor) -> LabelNetwork:
    r"""One network that says what the mean of several says of standardised features.

    .. math:: \frac1n \sum_i W_i [V_i y + a_i]_+ + b_i, \qquad y = (x - \mathrm{shift}) / \mathrm{scale}

    is one hidden layer with all rows of the V_i, behind which the W_i / n stand side by side; shift and scale go
    into the first layer.

    Args:
        nets: with one hidden layer each, or with none. The first holds calibration and cuts.
        head: the settings of their heads.
        shift, scale: of the features, [features].
    """
    first = nets[0]
    layers = [[part for part in net.backbone.modules() if isinstance(part, nn.Linear)] for net in nets]
    if len(layers[0]) > 1:
        raise ValueError(f"a model with {len(layers[0])} hidden layers cannot be saved as one; hidden=(512,) can")
    width = sum(part[0].out_features for part in layers if part)
    network = LabelNetwork(len(shift), first.head.labels, width, **head)
    if width:
        weight, bias = (torch.cat([getattr(part[0], name) for part in layers]) for name in ("weight", "bias"))
        _write(network.hidden[0], *_standardised(weight, bias, shift, scale))
    for name in first.head.rule.layers(first.head.labels):
        outs: list[Any] = [net.head.get_submodule(name) for net in nets]
        bias = torch.stack([part.bias for part in outs]).mean(0)
        if width:
            _write(network.head.get_submodule(name), torch.cat([part.weight for part in outs], 1) / len(nets), bias)
        else:
            mean = torch.stack([part.weight for part in outs]).mean(0)
            _write(network.head.get_submodule(name), *_standardised(mean, bias, shift, scale))
    network.head.decoder.load_state_dict(first.head.decoder.state_dict())
    return network.eval()


def _standardised(weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """A layer of standardised features as one of the features themselves."""
    weight = weight / scale
    return weight, bias - weight @ shift


def _write(layer: Any, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
