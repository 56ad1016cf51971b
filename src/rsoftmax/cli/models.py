"""Saved label models: how the commands load them and read their inputs from files; ``rsoftmax export`` and ``app``."""

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

INPUTS = ("text", "image", "features")
"""The kinds of input; a model reads one of them."""


def export(
    model: Annotated[Path, typer.Argument(help="A model folder written by `rsoftmax train`.")],
    onnx: Annotated[Path, typer.Option(help="The file to write, for example model.onnx.")],
) -> None:
    """Export a model to ONNX with the outputs `marginals` and `labels`, and verify it in ONNX Runtime."""
    if not onnx.resolve().parent.is_dir() or onnx.is_dir():
        raise typer.BadParameter(f"cannot write {onnx}: name a file in an existing folder", param_hint="--onnx")
    loaded = load(model)
    with usage_errors("--onnx"):
        from rsoftmax.labels.models.onnx import export as write

        write(loaded, onnx)
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
        return folders.load(folder)


def read_items(table: "Table", kind: str, column: str, model: Any = None) -> list[Any]:
    """The inputs in a column, or in several columns with commas between their names.

    A trained model says which columns of a table hold categories.
    """
    if kind == "features":
        return table.rows([name.strip() for name in column.split(",")], None if model is None else model.categories)
    return table.texts(column) if kind == "text" else table.files(column)


def column_for(model: "BaseLabelModel", role: str, given: str | None) -> str:
    """The given column, or else the one that the model was trained on."""
    column = given or model.columns.get(role) or ",".join(getattr(model, role, ()))  # a table's features
    if not column:
        raise typer.BadParameter(f"the model does not record its column; pass --{role} COLUMN", param_hint=f"--{role}")
    return column


def separator_of(model: "BaseLabelModel") -> str:
    """The separator between the labels of a cell in the training table."""
    return model.columns.get("separator", ";")


@contextmanager
def row_errors(table: "Table", items: list[Any]) -> Iterator[None]:
    """Report errors in the items of a table with the file and the row."""
    with usage_errors("DATA"):
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{_place(str(error), table, items)}{error}") from None


def _place(message: str, table: "Table", items: list[Any]) -> str:
    """The file and row that belong in front of a message about an item."""
    if message.startswith("row "):
        return f"{table.path}, "
    paths = (row for row, item in enumerate(items, 1) if isinstance(item, Path) and message.startswith(f"{item}: "))
    row = next(paths, None)
    return "" if row is None else f"{table.path}, row {row}: "


def warn_truncated(model: "BaseLabelModel", items: list[Any]) -> None:
    """Tell the user how many texts are truncated."""
    if model.modality != "text":
        return
    long = model.truncated(items)
    if long:
        most = model.metadata()["max_tokens"]
        typer.echo(
            f"{len(long)} of {len(items)} texts are longer than {most} tokens and are truncated, the first in row"
            f" {long[0] + 1}",
            err=True,
        )
