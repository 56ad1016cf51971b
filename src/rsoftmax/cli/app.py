"""``rsoftmax app``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.label_models import load, told


def open_app(
    model: Annotated[
        Path | None, typer.Option(help="A folder that `rsoftmax train` wrote, of texts or pictures.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the page is: http://127.0.0.1:PORT")] = 7860,
) -> None:
    """Open a local page with mappings, labels and attention to play with; nothing leaves this machine."""
    with told("app"):
        from rsoftmax.app import serve
        from rsoftmax.huggingface import LabelModel

    loaded = None if model is None else load(model)
    if loaded is not None and not isinstance(loaded, LabelModel):
        raise typer.BadParameter(
            f"{model} labels rows of a table; the page takes a model of texts or pictures", param_hint="--model"
        )
    typer.echo(f"the page: http://127.0.0.1:{port}    (Ctrl+C ends it)")
    try:
        serve(loaded, port)
    except OSError:
        raise typer.BadParameter(f"{port} is not free; choose another port", param_hint="--port") from None
