"""The page: its three tabs, its style, and the local server."""

from collections.abc import Callable
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gradio as gr
from matplotlib.figure import Figure
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rsoftmax.app.views import NO_EDGE, attend, compare, gradients, other_averages, show_labels
from rsoftmax.labels.models.encoder_model import LabelModel

LOGITS = (2.0, 1.5, 0.3, -0.5, -1.0)
SENTENCE = "The cat that the dog chased ran up a tree."
NO_MODEL = """No model was given. Train one on a table of texts (or of images, with `--image`) and pass it to the page:

```sh
rsoftmax train texts.csv --text text --labels tags --out model --encoder sentence-transformers/all-MiniLM-L6-v2
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
"""
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


def page(model: LabelModel | None = None, folder: Path | None = None) -> gr.Blocks:
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


def serve(model: LabelModel | None, folder: Path | None, port: int) -> None:
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


def _labels_tab(model: LabelModel | None) -> None:
    """A text or an image on the left, its labels on the right; without a model, how to train one."""
    if model is None:
        gr.Markdown(NO_MODEL)
        return
    texts = model.modality == "text"
    with gr.Row():
        item = gr.Textbox(label="Text", lines=4) if texts else gr.Image(label="Image", type="pil", height=320)
        with gr.Column(scale=2):
            bars = gr.Plot(show_label=False)
            table = gr.Dataframe(headers=["label", "marginal", "predicted", *other_averages(model)], interactive=False)
    gr.Markdown(EXPLANATION)

    def labels(item: Any) -> tuple[Figure | None, list[list[str]]]:
        return show_labels(model, item) if item else (None, [])

    item.change(_shows_errors(labels), item, [bars, table], trigger_mode="always_last", show_progress="hidden")


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
