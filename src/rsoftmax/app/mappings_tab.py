"""The tab *Mappings*: a row of scores through every mapping, zeros marked."""

import gradio as gr
from matplotlib.figure import Figure
from torch import Tensor

from rsoftmax.app.errors import told
from rsoftmax.plots import compare_mappings, mapping_gradients, mappings_figure
from rsoftmax.printable import readable

SCORES = (2.0, 1.5, 0.3, -0.5, -1.0)
GRADIENT = "derivative of the highest score's p"
WIDE = "wide-picture"
STYLE = f"""
.{WIDE} {{ overflow-x: auto !important }}
.{WIDE} img {{ min-width: 45rem }}
.{WIDE} div {{ align-items: safe center !important }}
"""
"""On a narrow screen the panels keep a size at which they can be read, and are scrolled sideways, from the first on."""


def compared(*values: float) -> tuple[Figure, list[list[str]]]:
    """The picture and the table of probabilities.

    Args:
        values: the scores, then temperature, r, t and alpha, in the order of the sliders.
    """
    scores, divided, parameters = _parted(values)
    rows = compare_mappings(divided, parameters)
    return mappings_figure(rows, scores), [_line(title, p) for title, p in rows.items()]


def gradients(wanted: bool, *values: float) -> Figure | None:
    """The picture of the gradients in the divided scores, if it is wanted; values as in :func:`compared`."""
    scores, divided, parameters = _parted(values)
    return mappings_figure(mapping_gradients(divided, parameters), scores, GRADIENT) if wanted else None


def mappings_tab() -> None:
    """Sliders on top; below them the pictures and the table."""
    with gr.Row():
        sliders = [gr.Slider(-4, 4, score, step=0.1, label=f"score {i}") for i, score in enumerate(SCORES, 1)]
    with gr.Row():
        sliders += [
            gr.Slider(0.1, 5, 1, step=0.1, label="temperature", info="divides the scores"),
            gr.Slider(0, 1, 0.4, step=0.05, label="r", info="r_softmax: rate of zeros"),
            gr.Slider(0.1, 8, 2, step=0.1, label="t", info="t_softmax: width kept"),
            gr.Slider(1, 4, 1.25, step=0.05, label="alpha", info="entmax: larger is sparser"),
        ]
    gr.Markdown("Each mapping of these scores. A red dot is an exact zero.")
    bars = gr.Plot(show_label=False, elem_classes=WIDE)
    wanted = gr.Checkbox(label="Show gradients: how the probability of the highest score changes with each score")
    slopes = gr.Plot(show_label=False, visible=False, elem_classes=WIDE)
    table = gr.Dataframe(
        headers=["mapping", *(f"p {i}" for i in range(1, len(SCORES) + 1)), "zeros"], interactive=False
    )
    quiet = {"trigger_mode": "always_last", "show_progress": "hidden"}
    # without named events: when the page is opened, and when an input changes
    gr.on(None, told(compared), sliders, [bars, table], **quiet)
    gr.on(None, told(_shown), [wanted, *sliders], slopes, **quiet)


def _shown(wanted: bool, *values: float) -> gr.Plot:
    return gr.Plot(gradients(wanted, *values), visible=wanted)


def _parted(values: tuple[float, ...]) -> tuple[list[float], list[float], dict[str, float]]:
    """Scores, scores divided by the temperature, and parameters by letter."""
    scores, (temperature, r, t, alpha) = list(values[:-4]), values[-4:]
    return scores, [score / temperature for score in scores], {"r": r, "t": t, "alpha": alpha}


def _line(title: str, p: Tensor) -> list[str]:
    return [title, *("0" if share == 0 else readable(share) for share in p.tolist()), str(int((p == 0).sum()))]
