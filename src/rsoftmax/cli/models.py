"""Saved label models: ``rsoftmax evaluate``, ``export`` and ``app``; how commands load models and read their inputs."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.arguments import figure_path, usage_errors
from rsoftmax.labels.models.card import count_of

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.tables import Table

SHOWN = 10  # unknown labels
ADAPT = typer.Option(
    "--adapt",
    help="Set the thresholds by the probabilities of these texts; for many, --average macro, and many labels.",
)


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder written by `rsoftmax train`.")],
    data: Annotated[Path, typer.Argument(help="A table with labels: .csv, .tsv, .jsonl or .parquet.")],
    labels: Annotated[str | None, typer.Option(help="The label column. Default: as in training.")] = None,
    text: Annotated[str | None, typer.Option(help="The text column. Default: as in training.")] = None,
    image: Annotated[str | None, typer.Option(help="The column of image paths. Default: as in training.")] = None,
    separator: Annotated[
        str | None, typer.Option(help="The separator between the labels of a cell. Default: as in training.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse labels unknown to the model, instead of counting them as missed.")
    ] = False,
    adapt: Annotated[bool, ADAPT] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all scores as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot F1 by label and calibration: .png, .svg or .pdf.")] = None,
) -> None:
    """Evaluate a model on a labelled table: F1 scores, scores by label, calibration."""
    from rsoftmax.labels.models.base import unknown_labels
    from rsoftmax.labels.models.card import list_names, printable
    from rsoftmax.labels.models.tables import read

    path = None if plot is None else figure_path(plot, "--plot")
    loaded = load(model)
    column = column_for(loaded, loaded.modality, {"text": text, "image": image}.get(loaded.modality))
    with usage_errors("DATA"):
        table = read(data)
        items = read_items(table, loaded.modality, column, getattr(loaded.config, "categories", None))
        separator = separator_of(loaded) if separator is None else separator
        y = table.labels(column_for(loaded, "labels", labels), separator)
    with item_errors(table, items):
        if adapt:
            adapt_to(loaded, items)
        scores = loaded.evaluate(items, y, strict=strict, verbose=not json)
    if unknown := unknown_labels(y, loaded.names):
        listed = list_names(map(printable, unknown), SHOWN)
        typer.echo(f"{count_of(len(unknown), 'label')} unknown to the model, counted as missed: {listed}", err=True)
    if json:
        from json import dumps

        typer.echo(dumps(scores.as_dict(), indent=1))
    else:
        typer.echo(str(scores))
    if path is not None:
        from rsoftmax.plots import draw_evaluation

        draw_evaluation(scores, path)
        typer.echo(f"wrote {path}", err=json)


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

    loaded = None if model is None else load(model)
    if loaded is not None and loaded.modality == "features":
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


def adapt_to(model: "BaseLabelModel", texts: Sequence[str]) -> None:
    """Adapt a model of words to texts."""
    from rsoftmax.labels import LabelModel

    if not isinstance(model, LabelModel):
        raise typer.BadParameter("only a model of words, without an encoder, can be adapted", param_hint="--adapt")
    with usage_errors("--adapt"):
        model.adapt(texts, verbose=True)


def register_sparse_attention() -> None:
    """Let encoders be loaded that were saved with a mapping in place of softmax."""
    from rsoftmax.attention.transformers import register_attention

    register_attention()


def read_items(table: "Table", modality: str, column: str, categories: Any = None) -> Sequence[Any]:
    """The inputs in a column, or in several columns with commas between their names; texts are a stream.

    A trained model says which columns of a table hold categories.
    """
    if modality == "features":
        return table.features([name.strip() for name in column.split(",")], categories)
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
def item_errors(table: "Table | None", items: Sequence[Any]) -> Iterator[None]:
    """Report errors in the items of a table with the file and the row; an image is named by its path."""
    with usage_errors():
        try:
            yield
        except (TypeError, ValueError) as error:
            message = str(error)
            match = re.match(r"(?:item|row) (\d+): (.*)", message, re.DOTALL)
            paths = enumerate(items if isinstance(items, list) else (), 1)
            row = match[1] if match else next((row for row, item in paths if message.startswith(f"{item}: ")), None)
            if table is None or row is None:
                raise
            raise ValueError(f"{table.path}, row {row}: {match[2] if match else message}") from None
