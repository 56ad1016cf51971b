"""``rsoftmax app``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.cli.models import load


def serve_page(
    model: Annotated[
        Path | None, typer.Option(help="A model folder written by `rsoftmax train`, for texts or images.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of http://127.0.0.1:PORT.")] = 7860,
) -> None:
    """Serve a local page to explore mappings, labels and attention; no data leaves this machine."""
    with usage_errors("app"):
        from rsoftmax.app import serve
        from rsoftmax.huggingface import LabelModel

    loaded = None if model is None else load(model)
    if loaded is not None and not isinstance(loaded, LabelModel):
        raise typer.BadParameter(
            f"{model} reads tables; the page needs a model for texts or images", param_hint="--model"
        )
    typer.echo(f"serving http://127.0.0.1:{port} (press Ctrl+C to stop)")
    try:
        serve(loaded, model, port)
    except OSError:
        raise typer.BadParameter(f"port {port} is in use; choose another one", param_hint="--port") from None
