"""Ensembles merged into a single network, and the classifier's training on features that an encoder computed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.labels.estimators.classifier import SparseLabelClassifier
from rsoftmax.labels.estimators.training import Network
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.head import resolve_rule
from rsoftmax.labels.models.base import LabelNetwork

CONSTANT = 1e-6  # standard deviation up to which a feature counts as constant


def fit_features(
    x: Tensor,
    y: Tensor,
    held_out: tuple[Tensor, Tensor] | None,
    names: Sequence[str],
    head: dict[str, Any],
    **settings: Any,
) -> tuple[LabelNetwork, Evaluation]:
    """Train a :class:`SparseLabelClassifier` on standardised features and merge its ensemble.

    Args:
        x: features [rows, d].
        y: labels [rows, K], 0 or 1, NaN where unknown; rows without a known label are left out.
        held_out: features and labels of held-out rows, in place of folds.
        names: the names of the labels.
        head: settings of the head.
        settings: settings of the classifier.

    Returns:
        A single network for features that are not standardised, and its evaluation on held-out rows.
    """
    shift, spread = x.mean(0), x.std(0, correction=0)
    scale = spread.where(spread > CONSTANT, torch.inf)
    model = SparseLabelClassifier(preprocessing=None, **{**head, **settings})
    check_mergeable(model)
    validation = None if held_out is None else training_rows((held_out[0] - shift) / scale, held_out[1])
    model.fit(*training_rows((x - shift) / scale, y), validation=validation)
    return merge(model, shift, scale), model.evaluation_.rename(names)


def training_rows(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """Features and labels as the classifier takes them, without the rows of which no label is known.

    A single label is passed as sets, because one column would mean two classes.
    """
    known = ~y.isnan().all(1)
    x, y = x[known], y[known]
    return x.numpy(), y.numpy() if y.shape[1] > 1 else [["it"] if has else [] for has in y[:, 0].bool().tolist()]


def check_mergeable(model: SparseLabelClassifier) -> None:
    """Raise before training if the networks could not be merged: a rule that reads logits needs those of each."""
    if model.backbone is not None:
        raise ValueError("networks with a backbone cannot be merged; use hidden_layer_sizes=(512,)")
    if model.n_estimators != 1 and resolve_rule(model.mapping, model.loss, model.rule).logit_mlps:
        raise ValueError(f"networks with rule={model.rule!r} cannot be merged; pass n_estimators=1 or another rule")


@torch.no_grad()
def merge(model: SparseLabelClassifier, shift: Tensor, scale: Tensor) -> LabelNetwork:
    r"""Merge the networks of a classifier, and the standardisation of its features, into a single network.

    .. math:: \frac1n \sum_i W_i [V_i y + a_i]_+ + b_i, \qquad y = (x - \mathrm{shift}) / \mathrm{scale}

    is one hidden layer with all rows of the V_i, followed by the W_i / n side by side; shift and scale go into the
    first layer.

    Args:
        model: a fitted classifier whose networks have at most one hidden layer.
        shift, scale: mean and standard deviation of the features, [features].
    """
    check_mergeable(model)
    nets: list[Network] = [net.module_ for net in model.estimators_]
    first = nets[0].head
    layers = [[part for part in net.backbone.modules() if isinstance(part, nn.Linear)] for net in nets]
    if len(layers[0]) > 1:
        raise ValueError(
            f"networks with {len(layers[0])} hidden layers cannot be merged; use hidden_layer_sizes=(512,)"
        )
    width = sum(part[0].out_features for part in layers if part)
    network = LabelNetwork(len(shift), first.num_labels, width, **model._head())
    if width:
        weight, bias = (torch.cat([getattr(part[0], name) for part in layers]) for name in ("weight", "bias"))
        _copy(network.hidden[0], *_unstandardise(weight, bias, shift, scale))
    for name in first.rule.layers(first.num_labels):
        outs: list[Any] = [net.head.get_submodule(name) for net in nets]
        bias = torch.stack([part.bias for part in outs]).mean(0)
        if width:
            _copy(network.head.get_submodule(name), torch.cat([part.weight for part in outs], 1) / len(nets), bias)
        else:
            mean = torch.stack([part.weight for part in outs]).mean(0)
            _copy(network.head.get_submodule(name), *_unstandardise(mean, bias, shift, scale))
    for name in first.rule.logit_mlps:
        network.head.get_submodule(name).load_state_dict(first.get_submodule(name).state_dict())
    network.head.decoder.load_state_dict(first.decoder.state_dict())
    return network.eval()


def _unstandardise(weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """A linear layer on standardised features as one on the features themselves."""
    weight = weight / scale
    return weight, bias - weight @ shift


def _copy(layer: Any, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
