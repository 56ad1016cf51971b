"""``rsoftmax export``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.label_models import load, told
from rsoftmax.printable import counted


def export(
    model: Annotated[Path, typer.Argument(help="A folder that `rsoftmax train` wrote.")],
    onnx: Annotated[Path, typer.Option(help="The file to write, say model.onnx.")],
) -> None:
    """Write a model as an ONNX file with the outputs `marginals` and `labels`, and check it in ONNX Runtime."""
    if not onnx.resolve().parent.is_dir() or onnx.is_dir():
        raise typer.BadParameter(
            f"{onnx} cannot be written: name a file in a folder that is there", param_hint="--onnx"
        )
    loaded = load(model)
    with told("--onnx"):
        from rsoftmax.onnx_files import export as write

        write(loaded, onnx)
    typer.echo(f"wrote {onnx}: marginals and labels of {counted(len(loaded.names), 'label')}")
