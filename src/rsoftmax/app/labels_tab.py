"""The tab *Labels*: the labels of a text or a picture, their marginals, and the answer for another F1."""

from collections.abc import Callable
from typing import Any

import gradio as gr
import torch
from torch import Tensor

from rsoftmax.app.errors import told
from rsoftmax.huggingface import LabelModel
from rsoftmax.multilabel import Decoder, Output
from rsoftmax.multilabel.expected_f1 import AVERAGES, Average
from rsoftmax.printable import printable, readable

NO_MODEL = """No model was given. Make one from a table of texts, or of pictures with `--image`, and open it:

```sh
rsoftmax train texts.csv --text text --labels tags --out model --encoder sentence-transformers/all-MiniLM-L6-v2
rsoftmax app --model model
```
"""
EXPLAINED = """*answer* is what the model says. The other columns show what it would say of the same marginals if
another F1 counted. *samples*: the labels with the highest expected F1 of this item. *micro* and *macro* are estimates:
the labels whose marginal is above half the F1 on rows held out, of all labels together or of each label; above 0.5 if
that F1 is not known."""
YES = "✓"


def decided(model: LabelModel, item: Any) -> list[list[str]]:
    """A line for each label, the most probable first: name, marginal, the model's answer, those for the other F1."""
    output = model.outputs([item])
    columns = [output.labels[0], *(answer_for(average, model, output)[0] for average in other_averages(model))]
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
    """The kinds of F1 that the model does not decide by."""
    head = model.network.head
    return [average for average in AVERAGES if head.rate != "expected_f1" or average != head.decoder.average]


def answer_for(average: Average, model: LabelModel, output: Output) -> Tensor:
    """The labels [items, K], bool, that the marginals of an output give for one kind of F1.

    The best cut is half the best F1, :func:`rsoftmax.multilabel.expected_f1_cut`. The F1 on rows held out, which the
    model keeps, stands for it, as the rows themselves are not kept.
    """
    own = model.network.head.decoder
    decoder = Decoder(len(model.names), average, at_least=own.at_least, at_most=own.at_most)
    decoder.none = own.none
    decoder.cut.copy_(half_of_f1(average, model).logit(eps=1e-6))
    none = None if output.none is None or output.theta is None else output.none - output.theta
    return decoder.decided(output.marginals.logit() if output.odds is None else output.odds, none).labels


def half_of_f1(average: Average, model: LabelModel) -> Tensor:
    """Half the F1 on rows held out: [K] of each label for "macro", [1] of all together otherwise; 0.5 if not known."""
    if not model.scores:
        return torch.tensor(0.5)
    found = [one["f1"] for one in model.scores["labels"]] if average == "macro" else [model.scores["micro"]]
    return torch.tensor(found) / 2


def labels_tab(model: LabelModel | None) -> None:
    """A text or a picture on the left, its labels on the right; without a model, how to make one."""
    if model is None:
        gr.Markdown(NO_MODEL)
        return
    texts = "max_tokens" in model.about()
    with gr.Row():
        item = gr.Textbox(label="Text", lines=4) if texts else gr.Image(label="Picture", type="pil", height=320)
        table = gr.Dataframe(
            headers=["label", "marginal", "answer", *other_averages(model)], interactive=False, scale=2
        )
    gr.Markdown(EXPLAINED)
    item.change(told(_answering(model)), item, table, trigger_mode="always_last", show_progress="hidden")


def _answering(model: LabelModel) -> Callable[[Any], list[list[str]]]:
    """What the page calls: nothing typed or dropped has no labels."""
    return lambda item: decided(model, item) if item else []
