"""``rsoftmax review``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.cli.models import column_for, item_errors, load, read_items, separator_of
from rsoftmax.cli.predict import ASKED, csv_lines, label_cells
from rsoftmax.labels.models.card import count_of

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.tables import Table
    from rsoftmax.labels.review import ReviewedItem


def review(
    model: Annotated[Path, typer.Argument(help="A model folder written by `rsoftmax train`.")],
    data: Annotated[Path, typer.Argument(help="A table without labels: .csv, .tsv, .jsonl or .parquet.")],
    out: Annotated[Path, typer.Option(help="The folder to write queue.csv and decided.csv to.")],
    held_out: Annotated[
        Path | None,
        typer.Option(help="A table with labels that the model was not trained on. Default: levels set in training."),
    ] = None,
    accept: Annotated[
        float | None, typer.Option(help="The precision of labels accepted without review. Default: 0.95.")
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(help="The recall after review: the share of true labels not rejected. Default: 0.95."),
    ] = None,
    by: Annotated[
        Literal["samples", "micro", "label"] | None,
        typer.Option(help="What both hold for: the mean over rows (default), all entries, or each label."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="The probability that both guarantees hold. Default: 0.95.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The text column. Default: as in training.")] = None,
    image: Annotated[str | None, typer.Option(help="The column of image paths. Default: as in training.")] = None,
    labels: Annotated[str | None, typer.Option(help="The label column. Default: as in training.")] = None,
) -> None:
    """Decide on the labels that are certain enough, and write the rows that a person should look at, the worst first.

    Correct the column of labels in queue.csv, empty the cell `review` of each finished row, and train again with
    `rsoftmax train ... --add queue.csv`.
    """
    from rsoftmax.labels.models.folders import replacing
    from rsoftmax.labels.models.tables import read

    loaded = load(model)
    columns = {"text": text, "image": image}
    level = {"accept": accept, "reject": reject, "by": by, "confidence": confidence}
    level = {name: value for name, value in level.items() if value is not None}
    label_column = column_for(loaded, "labels", labels)
    paths = [out / "queue.csv", out / "decided.csv"]
    if existing := [path for path in paths if os.path.lexists(path)]:
        raise typer.BadParameter(f"{existing[0]} exists; remove it, or choose another folder", param_hint="--out")
    _set_levels(loaded, held_out, level, columns, label_column)
    with usage_errors("DATA"):
        table = read(data)
        item_column = column_for(loaded, loaded.modality, columns.get(loaded.modality))
        items = _items(loaded, table, columns)
        if label_column in table.names and any(cell not in (None, "", []) for cell in table.column(label_column)):
            raise ValueError(f"{table.path}: the column {label_column!r} has labels already; rename or empty it")
    with item_errors(table, items):
        reviewed = loaded.review(items, verbose=True)
    queue = sorted((row for row, item in enumerate(reviewed) if item.asked), key=lambda r: -reviewed[r].corrections)
    decided = [row for row, item in enumerate(reviewed) if not item.asked]
    with usage_errors("--out"):
        lines = list(csv_lines(*_cells(loaded, table, items, reviewed, label_column, item_column, out)))
        out.mkdir(parents=True, exist_ok=True)
        for path, rows in zip(paths, (queue, decided), strict=True):
            with replacing(path) as unfinished:
                chosen = [lines[0], *(lines[1 + row] for row in rows)]
                unfinished.write_text("".join(f"{line}\r\n" for line in chosen), encoding="utf-8", newline="")
    _report(loaded, reviewed, queue)
    typer.echo(f"wrote {paths[0]}: {count_of(len(queue), 'row')}; {paths[1]}: {count_of(len(decided), 'row')}")


def _set_levels(
    model: "BaseLabelModel", held_out: Path | None, level: dict[str, Any], columns: dict[str, str | None], labels: str
) -> None:
    """Set the thresholds from held-out rows; without any, those of training must have been set for these levels."""
    from rsoftmax.labels.models.tables import read

    if held_out is not None:
        with usage_errors("--held-out"):
            table = read(held_out)
            model.set_review(_items(model, table, columns), table.labels(labels, separator_of(model)), **level)
        return
    saved = model.config.review
    if saved is None or any(saved["levels"].get(name) != value for name, value in level.items()):
        has = "no levels" if saved is None else f"the levels {saved['levels']}"
        raise typer.BadParameter(
            f"the model was trained with {has}; pass rows with labels that it was not trained on, or train it with"
            " --accept and --reject",
            param_hint="--held-out",
        )


def _items(model: "BaseLabelModel", table: "Table", columns: dict[str, str | None]) -> Sequence[Any]:
    column = column_for(model, model.modality, columns.get(model.modality))
    return read_items(table, model.modality, column, getattr(model.config, "categories", None))


def _cells(
    model: "BaseLabelModel",
    table: "Table",
    items: Sequence[Any],
    reviewed: list["ReviewedItem"],
    label_column: str,
    image_column: str,
    out: Path,
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The columns of the table with labels to correct, and the columns about the review."""
    separator = separator_of(model)
    cells = table.as_texts(separator)
    if model.modality == "image":  # paths are relative to the table
        cells[image_column] = [os.path.relpath(path, out) for path in items]
    cells[label_column] = [separator.join(item.labels) for item in reviewed]
    new = label_cells((ASKED, f"{ASKED}_probabilities"), [item.asked for item in reviewed], separator)
    new["expected_f1"] = [f"{item.expected_f1:.4f}" for item in reviewed]
    new["expected_corrections"] = [f"{item.corrections:.3f}" for item in reviewed]
    return cells, new


def _report(model: "BaseLabelModel", reviewed: list["ReviewedItem"], queue: list[int]) -> None:
    """Print the guarantee and the expected workload."""
    from itertools import accumulate

    level, rows = model.config.review["levels"], len(reviewed)
    of = {"samples": "of a row", "micro": "of all entries", "label": "of every label"}[level["by"]]
    typer.echo(
        f"with confidence {level['confidence']:g}, {of}: precision of accepted labels at least {level['accept']:g},"
        f" recall after review at least {level['reject']:g}"
    )
    asked, corrections = sum(len(item.asked) for item in reviewed), [reviewed[row].corrections for row in queue]
    typer.echo(
        f"to review: {count_of(asked, 'label')} in {len(queue)} of {rows} rows ({len(queue) / rows:.1%});"
        f" expected corrections: {sum(corrections):.0f}"
    )
    if queue:
        half = sum(done < sum(corrections) / 2 for done in accumulate(corrections)) + 1
        typer.echo(f"half of the corrections are in the first {count_of(half, 'row')}")
