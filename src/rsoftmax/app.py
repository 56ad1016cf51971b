"""A local page to explore mappings, labels and attention: ``rsoftmax app``. Needs ``pip install 'rsoftmax[app]'``.

No data leaves the machine: Gradio's analytics are off, and fonts and scripts are served locally.
"""

import os
from collections.abc import Callable
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read by Gradio when it is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

try:
    import gradio as gr
except ImportError as missing:
    raise ImportError(f"rsoftmax.app needs {missing.name}: pip install 'rsoftmax[app]'") from missing

import torch
from matplotlib.figure import Figure
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from torch import Tensor

from rsoftmax.attention.transformers.measure import attention_map
from rsoftmax.labels.decoding import AVERAGES, Average, Decoder
from rsoftmax.labels.models.base import BaseLabelModel
from rsoftmax.labels.models.card import printable, readable
from rsoftmax.labels.models.explanation import STYLE as HIGHLIGHTS
from rsoftmax.labels.models.explanation import highlighted
from rsoftmax.labels.rules import Output
from rsoftmax.plots import attention_figure, compare_mappings, labels_figure, mapping_gradients, mappings_figure

__all__ = ["page", "serve"]

# --------------------------------------------------------------------------- what the page shows
# Functions of its inputs: values in, figures and tables out. No widgets.

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


def show_labels(model: BaseLabelModel, item: Any) -> tuple[Figure, list[list[str]]]:
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


def show_evidence(model: BaseLabelModel, text: str) -> str:
    """HTML of a text for each predicted label, with the passages behind it highlighted."""
    (explained,) = model.explain([text])
    parts = (f"<h3>{escape(printable(label))}</h3>\n{highlighted(text, one)}" for label, one in explained.items())
    return "\n".join(parts)


def thresholds(model: BaseLabelModel) -> dict[str, float]:
    """The probability above which each label is predicted; empty if it depends on the item."""
    if model.rule != "expected_f1" or model.decoder.average == "samples":
        return {}
    cutoffs = model.decoder.threshold.sigmoid().expand(len(model.names))
    return dict(zip(model.names, cutoffs.tolist(), strict=True))


def other_averages(model: BaseLabelModel) -> list[Average]:
    """The kinds of F1 that the model was not trained for."""
    return [average for average in AVERAGES if model.rule != "expected_f1" or average != model.decoder.average]


def labels_for(average: Average, model: BaseLabelModel, output: Output) -> Tensor:
    """The labels [items, K], bool, that maximize another expected F1, from the same marginals.

    The optimal threshold is half the optimal F1 (:func:`rsoftmax.labels.expected_f1_threshold`), which is estimated
    by the F1 on held-out items in its evaluation.
    """
    own, scores = model.decoder, output.scores
    rules: Any = {"implies": own.constraints.implies, "exclusive": own.constraints.exclusive}
    decoder = Decoder(len(model.names), average, 1.0, own.min_labels, own.max_labels, own.zero_division, **rules)
    decoder.no_label = own.no_label
    decoder.threshold.copy_(half_f1(average, model).logit(eps=1e-6))
    no_label = None
    if scores.no_label_logit is not None and scores.threshold is not None:
        no_label = scores.no_label_logit - scores.threshold
    return decoder.decide(output.marginals.logit() if output.log_odds is None else output.log_odds, no_label).labels


def half_f1(average: Average, model: BaseLabelModel) -> Tensor:
    """Half the held-out F1: [K] per label for "macro", otherwise [1]; 0.5 where it is unknown."""
    if not model.evaluation:
        return torch.tensor(0.5)
    labels = model.evaluation["labels"]
    f1 = [label["f1"] for label in labels] if average == "macro" else [model.evaluation["micro"]]
    return torch.tensor([1.0 if value is None else value for value in f1]) / 2


# --------------------------------------------------------------------------- the page
# Its three tabs, its style, and the local server.

LOGITS = (2.0, 1.5, 0.3, -0.5, -1.0)
SENTENCE = "The cat that the dog chased ran up a tree."
NO_MODEL = """No model was given. Train one on a table of texts (or of images, with `--image`) and pass it to the page:

```sh
rsoftmax train texts.csv --text text --labels tags --out model
rsoftmax app --model model
```
"""
EXPLANATION = """*predicted* marks the model's labels. The other columns mark what would be predicted from the same
marginals to maximize another F1. *samples*: the label set with the highest expected F1 for this item. *micro* and
*macro* are estimates: the labels whose marginal exceeds half the held-out F1, pooled or for each label;
0.5 if the model was not evaluated."""
WIDE = "wide-figure"
STYLE = f"""
.{WIDE} {{ overflow-x: auto !important }}
.{WIDE} img {{ min-width: 45rem }}
.{WIDE} div {{ align-items: safe center !important }}
{HIGHLIGHTS}"""
"""On a narrow screen the panels stay legible and scroll sideways, starting at the first one."""
THEME = gr.themes.Base(
    primary_hue="blue",
    text_size="md",
    font=("system-ui", "sans-serif"),  # system fonts need no download
    font_mono=("ui-monospace", "monospace"),
)
MIDDLEWARE = [Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])]
"""Rejects other Host headers, so that a foreign page cannot reach this one by DNS rebinding."""
P = ParamSpec("P")
T = TypeVar("T")


def page(model: BaseLabelModel | None = None, folder: Path | None = None) -> gr.Blocks:
    """The page with its tabs.

    Args:
        model: the model of the tab *Labels*; without one, the tab explains how to train it.
        folder: the folder of the model, with which the tab *Attention* starts.
    """
    blocks = gr.Blocks(title="rsoftmax", analytics_enabled=False)
    with blocks:
        gr.Markdown("# rsoftmax\nSparse probability mappings with a controllable fraction of zeros.")
        with gr.Tab("Mappings"):
            _mappings_tab()
        with gr.Tab("Labels"):
            _labels_tab(model)
        with gr.Tab("Attention"):
            _attention_tab("" if model is None or model.modality != "text" or folder is None else str(folder))
    return blocks


def serve(model: BaseLabelModel | None, folder: Path | None, port: int) -> None:
    """Serve the page to this machine only, until the process is stopped."""
    page(model, folder).launch(
        server_name="127.0.0.1",
        server_port=port,
        share=False,
        quiet=True,
        ssr_mode=False,
        footer_links=[],
        theme=THEME,
        css=STYLE,
        app_kwargs={"middleware": MIDDLEWARE},
    )


def _mappings_tab() -> None:
    """Sliders above, figures and the table of probabilities below."""
    with gr.Row():
        sliders = [gr.Slider(-4, 4, logit, step=0.1, label=f"logit {i}") for i, logit in enumerate(LOGITS, 1)]
    with gr.Row():
        sliders += [
            gr.Slider(0.1, 5, 1, step=0.1, label="temperature", info="divides the logits"),
            gr.Slider(0, 1, 0.4, step=0.05, label="r", info="r_softmax: fraction of zeros"),
            gr.Slider(0.1, 8, 2, step=0.1, label="t", info="t_softmax: distance below the maximum"),
            gr.Slider(1, len(LOGITS), 3, step=0.1, label="k", info="k_softmax: number of non-zero entries"),
            gr.Slider(
                0, NO_EDGE, NO_EDGE, step=0.1, label="edge", info=f"for r, t and k: 0 cuts off, {NO_EDGE:g} is none"
            ),
            gr.Slider(1, 4, 1.25, step=0.05, label="alpha", info="entmax: larger is sparser"),
        ]
    gr.Markdown("These logits under each mapping. A red dot marks an exact zero.")
    bars = gr.Plot(show_label=False, elem_classes=WIDE)
    wanted = gr.Checkbox(label="Show the gradient of the largest logit's probability with respect to each logit")
    slopes = gr.Plot(show_label=False, visible=False, elem_classes=WIDE)
    table = gr.Dataframe(
        headers=["mapping", *(f"p {i}" for i in range(1, len(LOGITS) + 1)), "zeros"], interactive=False
    )

    def show_gradients(wanted: bool, *values: float) -> gr.Plot:
        return gr.Plot(gradients(*values) if wanted else None, visible=wanted)

    quiet = {"trigger_mode": "always_last", "show_progress": "hidden"}
    # without explicit triggers: when the page loads and when an input changes
    gr.on(None, _shows_errors(compare), sliders, [bars, table], **quiet)
    gr.on(None, _shows_errors(show_gradients), [wanted, *sliders], slopes, **quiet)


def _labels_tab(model: BaseLabelModel | None) -> None:
    """A text or an image on the left, its labels on the right; without a model, how to train one."""
    if model is None:
        gr.Markdown(NO_MODEL)
        return
    texts = model.modality == "text"
    with gr.Row():
        with gr.Column():
            item = gr.Textbox(label="Text", lines=4) if texts else gr.Image(label="Image", type="pil", height=320)
            evidence = gr.HTML(visible=texts)
        with gr.Column(scale=2):
            bars = gr.Plot(show_label=False)
            table = gr.Dataframe(headers=["label", "marginal", "predicted", *other_averages(model)], interactive=False)
    gr.Markdown(EXPLANATION)

    def labels(item: Any) -> tuple[Figure | None, list[list[str]], str]:
        if not item:
            return None, [], ""
        return (*show_labels(model, item), show_evidence(model, item) if texts else "")

    outputs = [bars, table, evidence]
    item.change(_shows_errors(labels), item, outputs, trigger_mode="always_last", show_progress="hidden")


def _attention_tab(folder: str) -> None:
    """Inputs on the left, the attention map on the right."""
    with gr.Row():
        with gr.Column(scale=1):
            model = gr.Textbox(folder, label="Model", info="a folder or hub id of a model with its tokenizer")
            sentence = gr.Textbox(SENTENCE, label="Sentence", lines=2)
            r = gr.Slider(0, 1, 0.5, step=0.05, label="r", info="fraction of zeros of r-softmax; 0 is softmax")
            with gr.Row():
                layer = gr.Number(-1, precision=0, label="Layer", info="-1 is the last")
                head = gr.Number(0, precision=0, label="Head", info="the first is 0")
            button = gr.Button("Show attention", variant="primary")
        with gr.Column(scale=2):
            figure = gr.Plot(show_label=False)
            zeros = gr.Markdown()
    inputs = [model, sentence, r, layer, head]
    shown: dict[str, Any] = {"outputs": [figure, zeros], "show_progress_on": figure}
    gr.on([button.click, sentence.submit, model.submit], _shows_errors(attend), inputs, **shown)
    r.release(_shows_errors(attend), inputs, **shown, trigger_mode="always_last")


def _shows_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Show errors of the library as messages on the page; Gradio renders HTML, so the text is escaped."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (ImportError, OSError, TypeError, ValueError) as error:
            raise gr.Error(escape(str(error)), duration=None, print_exception=False) from None

    return wrapped
