"""Saved label models: how the commands load them and read their inputs from files; ``rsoftmax export`` and ``app``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels.models.card import count_of

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.tables import Table


def export(
    model: Annotated[Path, typer.Argument(help="A model folder written by `rsoftmax train`.")],
    onnx: Annotated[Path, typer.Option(help="The file to write, for example model.onnx.")],
) -> None:
    """Export a model to ONNX with the outputs `marginals` and `labels`, and verify it in ONNX Runtime."""
    loaded = load(model)
    with usage_errors("--onnx"):
        from rsoftmax.labels.models import onnx as exporter

        exporter.export(loaded, onnx)
    typer.echo(f"wrote {onnx}: marginals and labels of {count_of(len(loaded.names), 'label')}")


def serve_page(
    model: Annotated[
        Path | None, typer.Option(help="A model folder written by `rsoftmax train`, for texts or images.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of http://127.0.0.1:PORT.")] = 7860,
) -> None:
    """Serve a local page to explore mappings, labels and attention; no data leaves this machine."""
    with usage_errors("app"):
        from rsoftmax.app import serve
        from rsoftmax.labels.models.encoder_model import LabelModel

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


def load(folder: Path) -> "BaseLabelModel":
    """Load the model that was saved in a folder."""
    from rsoftmax.labels.models import folders

    with usage_errors("MODEL"):
        if folders.kind_of(folder) == folders.LABELS:
            register_sparse_attention()
        return folders.load(folder)


def register_sparse_attention() -> None:
    """Let encoders be loaded that were saved with a mapping in place of softmax."""
    from rsoftmax.attention.transformers import register_attention

    register_attention()


def read_items(table: "Table", modality: str, column: str, categories: Any = None) -> list[Any]:
    """The inputs in a column, or in several columns with commas between their names.

    A trained model says which columns of a table hold categories.
    """
    if modality == "features":
        return table.rows([name.strip() for name in column.split(",")], categories)
    return table.texts(column) if modality == "text" else table.files(column)


def column_for(model: "BaseLabelModel", role: str, column: str | None) -> str:
    """A column by its role: the one that the user names, or else the one that the model was trained on."""
    features = ",".join(model.config.features) if role == model.modality == "features" else ""
    column = column or model.columns.get(role) or features
    if not column:
        raise typer.BadParameter(f"the model does not record its column; pass --{role} COLUMN", param_hint=f"--{role}")
    return column


def separator_of(model: "BaseLabelModel") -> str:
    """The separator between the labels of a cell in the training table."""
    return model.columns.get("separator", ";")


@contextmanager
def item_errors(table: "Table | None", items: list[Any]) -> Iterator[None]:
    """Report errors in the items of a table with the file and the row; an image is named by its path."""
    with usage_errors():
        try:
            yield
        except (TypeError, ValueError) as error:
            message = str(error)
            match = re.match(r"(?:item|row) (\d+): (.*)", message, re.DOTALL)
            paths = (row for row, item in enumerate(items, 1) if message.startswith(f"{item}: "))
            row = match[1] if match else next(paths, None)
            if table is None or row is None:
                raise
            raise ValueError(f"{table.path}, row {row}: {match[2] if match else message}") from None


def warn_truncated(model: "BaseLabelModel", items: list[Any]) -> None:
    """Tell the user how many texts are truncated."""
    if long := model.truncated(items):
        most = model.metadata()["max_tokens"]
        typer.echo(
            f"{len(long)} of {len(items)} texts are longer than {most} tokens and are truncated, the first in row"
            f" {long[0] + 1}",
            err=True,
        )
