"""What the page shows, as functions of its inputs: values in, figures and tables out. No widgets."""

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from rsoftmax.attention.transformers.measure import attention_map
from rsoftmax.labels.decoding import AVERAGES, Average, Decoder
from rsoftmax.labels.models.card import printable, readable
from rsoftmax.labels.models.encoder_model import LabelModel
from rsoftmax.labels.rules import Output
from rsoftmax.plots import attention_figure, compare_mappings, labels_figure, mapping_gradients, mappings_figure

GRADIENT = "gradient of the largest logit's p"
YES = "✓"
NO_EDGE = 8.0  # this position of the slider means none


def compare(*values: float) -> tuple[Figure, list[list[str]]]:
    """Logits through every mapping: the figure, and the table of probabilities.

    Args:
        values: the logits, then temperature, r, t, k, edge and alpha, in the order of the sliders.
    """
    logits, scaled, parameters = _split(values)
    results = compare_mappings(scaled, parameters)
    table = [
        [title, *("0" if value == 0 else readable(value) for value in p.tolist()), str(int((p == 0).sum()))]
        for title, p in results.items()
    ]
    return mappings_figure(results, logits), table


def gradients(*values: float) -> Figure:
    """The gradients of the largest logit's probability; values as in :func:`compare`."""
    logits, scaled, parameters = _split(values)
    return mappings_figure(mapping_gradients(scaled, parameters), logits, GRADIENT)


def _split(values: tuple[float, ...]) -> tuple[list[float], list[float], dict[str, float]]:
    """The logits, the logits divided by the temperature, and the parameters by name."""
    logits, (temperature, r, t, k, edge, alpha) = list(values[:-6]), values[-6:]
    parameters = {"r": r, "t": t, "k": k, "alpha": alpha} | ({"edge": edge} if edge < NO_EDGE else {})
    return logits, [logit / temperature for logit in logits], parameters


def attend(model: str, sentence: str, r: float, layer: float, head: float) -> tuple[Figure, str]:
    """The attention map of one head under r-softmax, and a sentence about its zeros."""
    if not model or not sentence:
        raise ValueError("enter a model (a folder or hub id) and a sentence")
    weights = attention_map(model, sentence, int(layer), [int(head)], "r_softmax", {"r": r})
    (number,) = weights.weights
    return attention_figure(weights), f"Head {number}: {weights.zeros(number):.1%} of the weights are exactly zero."


def show_labels(model: LabelModel, item: Any) -> tuple[Figure, list[list[str]]]:
    """The labels of an item: a bar for each with its threshold, and a table, both with the most probable first.

    The table has the label's name, its marginal, whether it is predicted, and the same for each other F1.
    """
    output = model.outputs([item])
    (marginals,), (predicted,) = model.name_labels(output, every_label=True), model.name_labels(output)
    others = [labels_for(average, model, output)[0] for average in other_averages(model)]
    sets = [set(predicted), *({model.names[i] for i in labels.nonzero()} for labels in others)]
    table = [
        [printable(name), readable(p), *(YES if name in labels else "" for labels in sets)]
        for name, p in marginals.items()
    ]
    return labels_figure(marginals, predicted, thresholds(model)), table


def thresholds(model: LabelModel) -> dict[str, float]:
    """The probability above which each label is predicted; empty if it depends on the item."""
    head = model.network.head
    if head.rule.name != "expected_f1" or head.decoder.average == "samples":
        return {}
    cutoffs = head.decoder.threshold.sigmoid().expand(len(model.names))
    return dict(zip(model.names, cutoffs.tolist(), strict=True))


def other_averages(model: LabelModel) -> list[Average]:
    """The kinds of F1 that the model was not trained for."""
    head = model.network.head
    return [average for average in AVERAGES if head.rule.name != "expected_f1" or average != head.decoder.average]


def labels_for(average: Average, model: LabelModel, output: Output) -> Tensor:
    """The labels [items, K], bool, that maximize another expected F1, from the same marginals.

    The optimal threshold is half the optimal F1 (:func:`rsoftmax.labels.expected_f1_threshold`), which is estimated
    by the F1 on held-out items in its evaluation.
    """
    own, scores = model.network.head.decoder, output.scores
    decoder = Decoder(len(model.names), average, min_labels=own.min_labels, max_labels=own.max_labels)
    decoder.no_label = own.no_label
    decoder.threshold.copy_(half_f1(average, model).logit(eps=1e-6))
    no_label = None
    if scores.no_label_logit is not None and scores.threshold is not None:
        no_label = scores.no_label_logit - scores.threshold
    return decoder.decide(output.marginals.logit() if output.log_odds is None else output.log_odds, no_label).labels


def half_f1(average: Average, model: LabelModel) -> Tensor:
    """Half the held-out F1: [K] per label for "macro", otherwise [1]; 0.5 where it is unknown."""
    if not model.evaluation:
        return torch.tensor(0.5)
    labels = model.evaluation["labels"]
    f1 = [label["f1"] for label in labels] if average == "macro" else [model.evaluation["micro"]]
    return torch.tensor([1.0 if value is None else value for value in f1]) / 2
