"""Ensembles merged into a single network, and the classifier's training on features that an encoder computed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.labels.estimators.classifier import SparseLabelClassifier
from rsoftmax.labels.estimators.options import HeadOptions, TrainingOptions
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.head import resolve_rule
from rsoftmax.labels.models.base import LabelNetwork
from rsoftmax.labels.windows import Windows

CONSTANT = 1e-6  # standard deviation up to which a feature counts as constant


Features = Tensor | Windows


def fit_features(
    x: Features,
    y: Tensor,
    held_out: tuple[Features, Tensor] | None,
    names: Sequence[str],
    head_arguments: dict[str, Any],
    *,
    head: HeadOptions | None = None,
    training: TrainingOptions | None = None,
    **settings: Any,
) -> tuple[LabelNetwork, Evaluation]:
    """Train a :class:`SparseLabelClassifier` on standardised features and merge its ensemble.

    Args:
        x: features [samples, d], or those of the windows of each sample.
        y: labels [samples, K], 0 or 1, NaN where unknown; samples without a known label are left out.
        held_out: features and labels of held-out samples, in place of folds.
        names: the names of the labels.
        head_arguments: arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        head, training, settings: arguments of the classifier; there is no preprocessing.

    Returns:
        A single network for features that are not standardised, and its evaluation on held-out samples.
    """
    rows = x.x if isinstance(x, Windows) else x
    shift, spread = rows.mean(0), rows.std(0, correction=0)
    scale = spread.where(spread > CONSTANT, torch.inf)
    choices = {name: head_arguments[name] for name in ("mapping", "loss", "rule") if name in head_arguments}
    decoder = {name: value for name, value in head_arguments.items() if name not in choices}
    for rules in decoder.keys() & {"implies", "exclusive"}:
        decoder[rules] = [[names[label] for label in group] for group in decoder[rules]]
    head = replace(head or HeadOptions(), **choices)
    training = replace(training or TrainingOptions(), preprocessing=None)
    model = SparseLabelClassifier(head=head, training=training, **decoder | settings)

    def standardise(x: Features) -> Features:
        return x.map(lambda x: (x - shift) / scale) if isinstance(x, Windows) else (x - shift) / scale

    validation = None if held_out is None else (standardise(held_out[0]), held_out[1])
    fit_mergeable(model, standardise(x), y, names, validation)
    return merge(model, shift, scale), model.evaluation_


def fit_mergeable(
    model: SparseLabelClassifier,
    x: Features,
    y: Tensor,
    names: Sequence[str],
    held_out: tuple[Features, Tensor] | None = None,
) -> SparseLabelClassifier:
    """Fit a classifier on the samples of which a label is known; raise before if it could not be merged."""
    check_mergeable(model)
    if not (y == 1).any():
        raise ValueError("no sample has a label; pass samples with and without each label")
    validation = None if held_out is None else _known_samples(*held_out)
    return model.fit(*_known_samples(x, y), classes=names, validation=validation)


def _known_samples(x: Features, y: Tensor) -> tuple[Any, Any]:
    known = ~y.isnan().all(1)
    samples = x[known]
    return samples if isinstance(samples, Windows) else samples.numpy(), y[known].numpy()


def check_mergeable(model: SparseLabelClassifier) -> None:
    """Raise if networks cannot be merged: they need one hidden layer, and a rule that does not read logits."""
    if model.backbone is not None or len(model.hidden_layer_sizes) > 1:
        raise ValueError(
            "networks with a backbone or several hidden layers cannot be merged; use hidden_layer_sizes=(512,)"
        )
    head = model.head or HeadOptions()
    if model.n_estimators != 1 and resolve_rule(head.mapping, head.loss, head.rule).logit_mlps:
        raise ValueError(f"networks with rule={head.rule!r} cannot be merged; pass n_estimators=1 or another rule")


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
    heads = [network.head for network in model.estimators_]
    hidden = [layer for net in model.estimators_ for layer in net.backbone.modules() if isinstance(layer, nn.Linear)]
    width = sum(layer.out_features for layer in hidden)
    merged = LabelNetwork(len(shift), heads[0].num_labels, width, **model._head_arguments())
    if hidden:
        weight, bias = (torch.cat([getattr(layer, name) for layer in hidden]) for name in ("weight", "bias"))
        merged.hidden[0].load_state_dict(_unstandardise(weight, bias, shift, scale))
    for name in heads[0].rule.layers(heads[0].num_labels):
        layers: list[Any] = [head.get_submodule(name) for head in heads]
        weights, bias = [layer.weight for layer in layers], torch.stack([layer.bias for layer in layers]).mean(0)
        state = {"weight": torch.cat(weights, 1) / len(weights), "bias": bias}
        if not hidden:
            state = _unstandardise(torch.stack(weights).mean(0), bias, shift, scale)
        merged.head.get_submodule(name).load_state_dict(state)
    for name in (*heads[0].rule.logit_mlps, "decoder"):
        merged.head.get_submodule(name).load_state_dict(heads[0].get_submodule(name).state_dict())
    return merged.eval()


def _unstandardise(weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """A linear layer on standardised features as one on the features themselves."""
    weight = weight / scale
    return {"weight": weight, "bias": bias - weight @ shift}
