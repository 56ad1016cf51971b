"""The page: its three tabs, its look, and the server on this machine."""

import gradio as gr

from rsoftmax.app.attention_tab import attention_tab
from rsoftmax.app.labels_tab import labels_tab
from rsoftmax.app.mappings_tab import STYLE, mappings_tab
from rsoftmax.huggingface import LabelModel

THEME = gr.themes.Base(
    primary_hue="blue",
    text_size="md",
    font=("system-ui", "sans-serif"),  # of the system: nothing to fetch
    font_mono=("ui-monospace", "monospace"),
)


def page(model: LabelModel | None = None) -> gr.Blocks:
    """The page with its tabs.

    Args:
        model: what the tab of labels asks; None: the tab says how to make one.
    """
    blocks = gr.Blocks(title="rsoftmax", analytics_enabled=False)
    with blocks:
        gr.Markdown("# rsoftmax\nSparse probability mappings with a controllable rate of zeros.")
        with gr.Tab("Mappings"):
            mappings_tab()
        with gr.Tab("Labels"):
            labels_tab(model)
        with gr.Tab("Attention"):
            attention_tab()
    return blocks


def serve(model: LabelModel | None, port: int) -> None:
    """Show the page on this machine, and on no other, until the process is stopped."""
    page(model).launch(
        server_name="127.0.0.1",
        server_port=port,
        share=False,
        quiet=True,
        ssr_mode=False,
        footer_links=[],
        theme=THEME,
        css=STYLE,
    )
