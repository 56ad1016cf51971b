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
    """One row of logits through every mapping: the figure, and the table of probabilities.

    Args:
        values: the logits, then temperature, r, t, k, edge and alpha, in the order of the sliders.
    """
    logits, scaled, parameters = _split(values)
    rows = compare_mappings(scaled, parameters)
    return mappings_figure(rows, logits), [_table_row(title, p) for title, p in rows.items()]


def gradients(*values: float) -> Figure:
    """The gradients of the largest logit's probability; values as in :func:`compare`."""
    logits, scaled, parameters = _split(values)
    return mappings_figure(mapping_gradients(scaled, parameters), logits, GRADIENT)


def _split(values: tuple[float, ...]) -> tuple[list[float], list[float], dict[str, float]]:
    """The logits, the logits divided by the temperature, and the parameters by letter."""
    logits, (temperature, r, t, k, edge, alpha) = list(values[:-6]), values[-6:]
    parameters = {"r": r, "t": t, "k": k, "alpha": alpha} | ({"edge": edge} if edge < NO_EDGE else {})
    return logits, [logit / temperature for logit in logits], parameters


def _table_row(title: str, p: Tensor) -> list[str]:
    return [title, *("0" if value == 0 else readable(value) for value in p.tolist()), str(int((p == 0).sum()))]


def attend(model: str, sentence: str, r: float, layer: float, head: float) -> tuple[Figure, str]:
    """The attention map of one head under r-softmax, and a sentence about its zeros."""
    if not model or not sentence:
        raise ValueError("enter a model (a folder or hub id) and a sentence")
    found = attention_map(model, sentence, int(layer), [int(head)], "r_softmax", {"r": r})
    (number,) = found.weights
    return attention_figure(found), f"Head {number}: {found.zeros(number):.1%} of the weights are exactly zero."


def label_figure(model: LabelModel, item: Any) -> Figure:
    """A bar for each label with its threshold, if the model's rule has fixed thresholds."""
    every, predicted = model.predict([item], every_label=True)[0], model.predict_labels([item])[0]
    return labels_figure(every, predicted, thresholds(model))


def thresholds(model: LabelModel) -> dict[str, float]:
    """The probability above which each label is predicted; empty if it depends on the item."""
    head = model.network.head
    if head.rule.name != "expected_f1" or head.decoder.average == "samples":
        return {}
    found = head.decoder.threshold.sigmoid().expand(len(model.names))
    return dict(zip(model.names, found.tolist(), strict=True))


def label_table(model: LabelModel, item: Any) -> list[list[str]]:
    """One row per label, the most probable first: name, marginal, predicted or not, and the same for each other F1."""
    output = model.outputs([item])
    columns = [output.labels[0], *(labels_for(average, model, output)[0] for average in other_averages(model))]
    order = output.marginals[0].argsort(descending=True, stable=True).tolist()
    return [
        [
            printable(model.names[place]),
            readable(float(output.marginals[0, place])),
            *(YES if column[place] else "" for column in columns),
        ]
        for place in order
    ]


def other_averages(model: LabelModel) -> list[Average]:
    """The kinds of F1 that the model was not trained for."""
    head = model.network.head
    return [average for average in AVERAGES if head.rule.name != "expected_f1" or average != head.decoder.average]


def labels_for(average: Average, model: LabelModel, output: Output) -> Tensor:
    """The labels [items, K], bool, that maximize another expected F1, from the same marginals.

    The optimal threshold is half the optimal F1 (:func:`rsoftmax.labels.expected_f1_threshold`), which is estimated
    by the F1 on held-out rows that the model keeps.
    """
    own = model.network.head.decoder
    decoder = Decoder(len(model.names), average, min_labels=own.min_labels, max_labels=own.max_labels)
    decoder.no_label = own.no_label
    decoder.threshold.copy_(half_f1(average, model).logit(eps=1e-6))
    none = (
        None if output.no_label_logit is None or output.threshold is None else output.no_label_logit - output.threshold
    )
    return decoder.decide(output.marginals.logit() if output.log_odds is None else output.log_odds, none).labels


def half_f1(average: Average, model: LabelModel) -> Tensor:
    """Half the held-out F1: [K] per label for "macro", otherwise [1]; 0.5 where it is not known."""
    if not model.evaluation:
        return torch.tensor(0.5)
    found = [one["f1"] for one in model.evaluation["labels"]] if average == "macro" else [model.evaluation["micro"]]
    return torch.tensor([1.0 if f1 is None else f1 for f1 in found]) / 2
