"""``rsoftmax evaluate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsoftmax.cli.arguments import picture as checked_picture
from rsoftmax.cli.label_models import column_for, cut_notice, items_of, load, role, rows_told, separator_of, told

if TYPE_CHECKING:
    from rsoftmax.multilabel import Evaluation


def evaluate(
    model: Annotated[Path, typer.Argument(help="A folder that `rsoftmax train` wrote.")],
    data: Annotated[Path, typer.Argument(help="A table with labels: .csv, .tsv, .jsonl or .parquet.")],
    labels: Annotated[str | None, typer.Option(help="The column of labels; as in training if not given.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of texts; likewise.")] = None,
    image: Annotated[str | None, typer.Option(help="The column of pictures' paths; likewise.")] = None,
    separator: Annotated[str | None, typer.Option(help="What stands between the labels of a cell; likewise.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all scores as JSON.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw labels and calibration here: .png, .svg or .pdf.")] = None,
) -> None:
    """Compare a model's labels with those of a table: every F1, each label, calibration."""
    from rsoftmax.data_files import read

    path = None if picture is None else checked_picture(picture, "--picture")
    with told("MODEL"):
        loaded = load(model)
    what = role(loaded)
    column = column_for(loaded, what, {"text": text, "image": image}.get(what))
    with told("DATA"):
        table = read(data)
        items = items_of(table, what, column)
        separator = separator_of(loaded) if separator is None else separator
        truth = table.labels(column_for(loaded, "labels", labels), separator)
    cut_notice(loaded, items)
    with rows_told(table, items):
        scores = loaded.evaluate(items, truth, progress=not json)
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

    from rsoftmax.printable import printable, share

    whole = Table("score", f"of {scores.rows} rows")
    for title, value in scores.headline().items():
        whole.add_row(title, f"{value:.3f}")
    each = Table("label", "precision", "recall", "F1", "rows")
    for one in scores.labels:
        each.add_row(printable(one.label), share(one.precision), share(one.recall), share(one.f1), str(one.rows))
    console = Console(markup=False)
    console.print(whole)
    console.print(each)
