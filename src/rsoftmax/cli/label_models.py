"""What the commands for labels share: models of every kind, their items from files, and the errors of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rsoftmax.data_files import Table
    from rsoftmax.huggingface import LabelModel
    from rsoftmax.sklearn import TableModel

    AnyModel = LabelModel | TableModel

INPUTS = ("text", "image", "features")
"""The roles of columns that a model reads; a model has one of them."""


def load(folder: Path) -> "AnyModel":
    """The model that was saved in a folder."""
    from rsoftmax.folders import settings_of

    with told("MODEL"):
        if settings_of(folder)["model_type"] == "rsoftmax-table":
            from rsoftmax.sklearn import TableModel

            return TableModel.load(folder)
        from rsoftmax.huggingface import LabelModel

        model: LabelModel = LabelModel.from_pretrained(folder)
        return model


def role(model: "AnyModel") -> str:
    """What the model reads: "text", "image" or "features"."""
    if "features" in model.about():
        return "features"
    return "text" if "max_tokens" in model.about() else "image"


def items_of(table: "Table", what: str, column: str) -> list[Any]:
    """The items in a column, or in several with a comma between their names."""
    if what == "features":
        return table.numbers([name.strip() for name in column.split(",")])
    return table.texts(column) if what == "text" else table.files(column)


def column_for(model: "AnyModel", what: str, given: str | None) -> str:
    """The column that was given, or that the model was trained on."""
    column = given or model.columns.get(what)
    if column is None:
        raise typer.BadParameter(
            f"the model does not say which column to read; name it: --{what} COLUMN", param_hint=f"--{what}"
        )
    return column


def separator_of(model: "AnyModel") -> str:
    """What stood between the labels of a cell in training."""
    return model.columns.get("separator", ";")


@contextmanager
def told(hint: str) -> Iterator[None]:
    """Show an error of the library as that of an argument, in place of a traceback."""
    try:
        yield
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


@contextmanager
def rows_told(table: "Table", items: list[Any]) -> Iterator[None]:
    """The same for items of a table: the error names the file and the row."""
    with told("DATA"):
        try:
            yield
        except ValueError as error:
            text = str(error)
            broken = (
                row for row, item in enumerate(items, 1) if isinstance(item, Path) and text.startswith(f"{item}: ")
            )
            row = next(broken, None)
            where = (
                f"{table.path}, " if text.startswith("row ") else "" if row is None else f"{table.path}, row {row}: "
            )
            raise ValueError(f"{where}{text}") from None


def cut_notice(model: "AnyModel", items: list[Any]) -> None:
    """Say which texts are longer than the model reads."""
    if role(model) != "text":
        return
    long, most = model.cut(items), model.about()["max_tokens"]
    if long:
        typer.echo(
            f"{len(long)} of {len(items)} texts are longer than {most} tokens, the first in row {long[0] + 1}:"
            " what comes after these is not read",
            err=True,
        )
