"""The tab *Attention*: where a head of a model looks, and where it does not look at all."""

from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from rsoftmax.app.errors import told
from rsoftmax.huggingface.attention_map import attention_map
from rsoftmax.plots import attention_figure

SENTENCE = "The cat that the dog chased ran up a tree."


def looked(model: str, sentence: str, r: float, layer: float, head: float) -> tuple[Figure, str]:
    """The picture of a head's weights under r-softmax, and a sentence about its zeros."""
    if not model or not sentence:
        raise ValueError("name a model, as a folder or a hub id, and type a sentence")
    found = attention_map(model, sentence, int(layer), [int(head)], "r_softmax", {"r": r})
    (number,) = found.weights
    return attention_figure(found), f"Head {number}: {found.zeros(number):.1%} of the weights are exactly zero."


def attention_tab() -> None:
    """What to look at on the left, the picture on the right."""
    with gr.Row():
        with gr.Column(scale=1):
            model = gr.Textbox(label="Model", info="a folder, or a hub id, with a model and its tokenizer")
            sentence = gr.Textbox(SENTENCE, label="Sentence", lines=2)
            r = gr.Slider(0, 1, 0.5, step=0.05, label="r", info="rate of zeros of r-softmax; 0 is softmax")
            with gr.Row():
                layer = gr.Number(-1, precision=0, label="Layer", info="-1 is the last")
                head = gr.Number(0, precision=0, label="Head", info="the first is 0")
            button = gr.Button("Show attention", variant="primary")
        with gr.Column(scale=2):
            picture = gr.Plot(show_label=False)
            zeros = gr.Markdown()
    given = [model, sentence, r, layer, head]
    shown: dict[str, Any] = {"outputs": [picture, zeros], "show_progress_on": picture}
    gr.on([button.click, sentence.submit, model.submit], told(looked), given, **shown)
    r.release(told(looked), given, **shown, trigger_mode="always_last")
