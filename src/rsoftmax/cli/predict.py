"""``rsoftmax predict``."""

import sys
from collections.abc import Collection, Iterator
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.cli.models import column_for, load, read_items, row_errors, separator_of, warn_truncated

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.tables import Table

PREDICTED = ("predicted_labels", "predicted_probabilities")
"""The columns that are added to a table."""


class Inputs(NamedTuple):
    """The items to label, their names in the output, and the table that holds them, if any."""

    items: list[Any]
    names: list[str]
    table: "Table | None" = None


def predict(
    model: Annotated[
        Path, typer.Argument(help="A model folder written by `rsoftmax train` or `rsoftmax reproduce voc --save`.")
    ],
    data: Annotated[
        list[str],
        typer.Argument(help="A table, texts, images or a folder of images; - reads texts from stdin, one per line."),
    ],
    text: Annotated[str | None, typer.Option(help="The text column. Default: as in training.")] = None,
    image: Annotated[str | None, typer.Option(help="The column of image paths. Default: as in training.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per item.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: the columns of the table, labels, probabilities.")
    ] = False,
    every_label: Annotated[
        bool, typer.Option("--all", help="Print the probabilities of all labels, predicted or not.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            help="Plot each image or text with its labels and the runners-up: a file for one, a folder for several."
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be opened.")] = False,
) -> None:
    """Predict the labels of texts, images or rows, with their probabilities."""
    if json and csv:
        raise typer.BadParameter("choose one of --json and --csv", param_hint="--json, --csv")
    loaded = load(model)
    inputs = _inputs(loaded, data, {"text": text, "image": image})
    if loaded.modality == "image" and inputs.table is None:
        inputs = _openable(inputs.items, skip_bad)
    if show is not None and loaded.modality == "features":
        raise typer.BadParameter("only images and texts can be shown, not rows of features", param_hint="--show")
    figures = [] if show is None else _figure_paths(data, inputs, show)
    found = _predictions(loaded, inputs, every_label)
    if csv:
        lines = _csv_lines(inputs, found, separator_of(loaded), loaded.names if every_label else None)
    else:
        lines = (_json_lines if json else _text_lines)(inputs, found)
    for line in lines:
        typer.echo(line)
    if figures:
        with usage_errors("--show"):
            _draw(inputs, found, loaded.predict(inputs.items, every_label=True), figures)
        typer.echo(f"wrote {show}", err=json or csv)


def _inputs(model: "BaseLabelModel", data: list[str], columns: dict[str, str | None]) -> Inputs:
    """The items of a table, or the items given on the command line."""
    from rsoftmax.labels.models.tables import READERS, read

    kind = model.modality
    if len(data) == 1 and Path(data[0]).suffix.lower() in READERS and not (kind == "text" and not _is_path(data[0])):
        with usage_errors("DATA"):
            table = read(Path(data[0]))
            items = read_items(table, kind, column_for(model, kind, columns.get(kind)), model)
        return Inputs(items, [str(row) for row in range(1, len(items) + 1)], table)
    if kind == "features":
        raise typer.BadParameter(f"pass the rows as a table: {', '.join(READERS)}", param_hint="DATA")
    if kind == "text":
        with usage_errors("DATA"):
            texts = _stdin_lines() if data == ["-"] else _no_files(data)
        return Inputs(texts, texts)
    paths = [path for place in data for path in _images(Path(place))]
    return Inputs(paths, [path.name for path in paths])


def _stdin_lines() -> list[str]:
    try:
        return [line.rstrip("\r\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"stdin: byte {error.start} is not valid {error.encoding.upper()}; convert the input"
        ) from None


def _no_files(texts: list[str]) -> list[str]:
    """The texts; an error if one names a file, a folder or stdin, whose content would not be read."""
    for text in texts:
        if text == "-":
            raise ValueError("- reads stdin and cannot be combined with other texts")
        if isdir(text):
            raise ValueError(f"{text} is a folder, but this model reads texts; pass a single table, or the texts")
        if isfile(text):  # unlike Path.is_file, False for a text that is too long for a file name
            raise ValueError(f"{text} is a file; pass a single table, or texts one per line: - < {text}")
    return texts


def _is_path(word: str) -> bool:
    return exists(word) or " " not in word


def _images(place: Path) -> list[Path]:
    """The image, or the images in a folder."""
    from rsoftmax.labels.models.images import ENDINGS

    if not place.is_dir():
        return [place]
    paths = sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS)
    if not paths:
        raise typer.BadParameter(f"{place} contains no images ({', '.join(ENDINGS)})", param_hint="DATA")
    return paths


def _openable(paths: list[Path], skip_bad: bool) -> Inputs:
    """The images that can be opened; without ``skip_bad``, the first one that cannot is an error."""
    from rsoftmax.labels.models.images import BadImageError, open_image

    kept = []
    for path in paths:
        try:
            open_image(path, str(path))
            kept.append(path)
        except BadImageError as error:
            if not skip_bad:
                raise typer.BadParameter(f"{error}; pass --skip-bad to skip it", param_hint="DATA") from None
    if len(kept) < len(paths):
        typer.echo(f"skipped {len(paths) - len(kept)} of {len(paths)} images, which cannot be opened", err=True)
    return Inputs(kept, [path.name for path in kept])


def _figure_paths(given: list[str], inputs: Inputs, show: Path) -> list[Path]:
    """The file of each item's figure; in a folder, named after the image if that is unique, otherwise numbered."""
    from rsoftmax.plots import formats

    if any(exists(place) and show.resolve() == Path(place).resolve() for place in given):
        raise typer.BadParameter(f"{show} is an input; choose another path", param_hint="--show")
    if len(inputs.items) == 1 and not isdir(given[0]):
        if show.suffix.lower() not in formats():
            raise typer.BadParameter(f"{show} must end in one of {', '.join(formats())}", param_hint="--show")
        return [show]
    names = [item.name if isinstance(item, Path) else "" for item in inputs.items]
    if len(set(names)) < len(names):
        names = [str(number) for number, _ in enumerate(names, 1)]
    return [show / f"{name}.png" for name in names]


def _draw(inputs: Inputs, found: list[dict[str, float]], every: list[dict[str, float]], figures: list[Path]) -> None:
    """Plot each item with its predicted labels, and with the others as runners-up."""
    from rsoftmax.labels.models.images import open_image
    from rsoftmax.plots import draw_labels

    for item, name, labels, all_labels, figure in zip(inputs.items, inputs.names, found, every, figures, strict=True):
        runners_up = {label: p for label, p in all_labels.items() if label not in labels}
        figure.parent.mkdir(parents=True, exist_ok=True)
        shown = item if isinstance(item, str) else open_image(item, str(item))
        draw_labels(shown, labels, figure, name, runners_up)


def _predictions(model: "BaseLabelModel", inputs: Inputs, every_label: bool) -> list[dict[str, float]]:
    errors = usage_errors("DATA") if inputs.table is None else row_errors(inputs.table, inputs.items)
    with errors:
        warn_truncated(model, inputs.items)
        return model.predict(inputs.items, every_label=every_label)


def _text_lines(inputs: Inputs, found: list[dict[str, float]]) -> Iterator[str]:
    from rsoftmax.labels.models.card import printable, readable

    for name, row in zip(inputs.names, found, strict=True):
        listed = ", ".join(f"{printable(label)} {readable(p)}" for label, p in row.items())
        yield f"{printable(name)}: {listed or 'no label'}"


def _json_lines(inputs: Inputs, found: list[dict[str, float]]) -> Iterator[str]:
    from json import dumps

    for name, row in zip(inputs.names, found, strict=True):
        yield dumps({"item": name, "labels": row}, ensure_ascii=False)


def _csv_lines(inputs: Inputs, found: list[dict[str, float]], separator: str, names: list[str] | None) -> Iterator[str]:
    """The columns of the table, or the items, and the predicted labels, or the probabilities of ``names``."""
    from rsoftmax.labels.models.tables import csv_line

    columns = {"item": inputs.names} if inputs.table is None else inputs.table.as_texts(separator)
    added = PREDICTED if names is None else names
    yield csv_line([*columns, *(_unused(name, columns) for name in added)])
    for cells, row in zip(zip(*columns.values(), strict=True), found, strict=True):
        p = [f"{row[name]:.6f}" for name in (row if names is None else names)]
        yield csv_line([*cells, *(p if names else (separator.join(row), separator.join(p)))])


def _unused(name: str, columns: Collection[str]) -> str:
    """The name of a new column, different from those of the table."""
    return _unused(f"{name}_", columns) if name in columns else name
