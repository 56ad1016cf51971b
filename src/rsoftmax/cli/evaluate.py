"""``rsoftmax evaluate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsoftmax.cli.arguments import figure_path, usage_errors
from rsoftmax.cli.models import column_for, item_errors, load, read_items, separator_of, warn_truncated

if TYPE_CHECKING:
    from rsoftmax.labels.evaluation import Evaluation

SHOWN = 10  # unknown labels


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
    json: Annotated[bool, typer.Option("--json", help="Print all scores as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot F1 by label and calibration: .png, .svg or .pdf.")] = None,
) -> None:
    """Evaluate a model on a labelled table: F1 scores, scores by label, calibration."""
    from rsoftmax.labels.models.base import unknown_labels
    from rsoftmax.labels.models.card import count_of, printable
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
        warn_truncated(loaded, items)
        scores = loaded.evaluate(items, y, strict=strict, verbose=not json)
    if unknown := unknown_labels(y, loaded.names):
        listed = ", ".join(map(printable, unknown[:SHOWN])) + (", ..." if len(unknown) > SHOWN else "")
        typer.echo(f"{count_of(len(unknown), 'label')} unknown to the model, counted as missed: {listed}", err=True)
    if json:
        from json import dumps

        typer.echo(dumps(scores.as_dict(), indent=1))
    else:
        _show(scores)
    if path is not None:
        from rsoftmax.plots import draw_evaluation

        draw_evaluation(scores, path)
        typer.echo(f"wrote {path}", err=json)


def _show(scores: "Evaluation") -> None:
    from rich.console import Console
    from rich.table import Table

    from rsoftmax.labels.models.card import printable, share

    overall = Table("score", f"{scores.num_samples} rows")
    for title, value in scores.headline().items():
        overall.add_row(title, share(value))
    by_label = Table("label", "precision", "recall", "F1", "rows")
    for label in scores.labels:
        shares = map(share, (label.precision, label.recall, label.f1))
        by_label.add_row(printable(label.label), *shares, str(label.support))
    console = Console(markup=False)
    console.print(overall)
    console.print(by_label)
