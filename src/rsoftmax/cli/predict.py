"""``rsoftmax predict``."""

import sys
from collections.abc import Iterator
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rsoftmax.cli.label_models import column_for, cut_notice, items_of, load, role, rows_told, separator_of, told

if TYPE_CHECKING:
    from rsoftmax.cli.label_models import AnyModel
    from rsoftmax.data_files import Table


class Asked(NamedTuple):
    """The items that labels are wanted for, what to call each, and the table that they come from, if any."""

    items: list[Any]
    names: list[str]
    table: "Table | None" = None


class Form(NamedTuple):
    """How answers are printed.

    Attributes:
        name: "text", "json" or "csv".
        separator: what stands between the labels of a cell.
        columns: the labels that have a column of probabilities each; None: one column names those that are answered.
    """

    name: str
    separator: str
    columns: list[str] | None


def predict(
    model: Annotated[Path, typer.Argument(help="A folder that `rsoftmax train` or `reproduce voc --save` wrote.")],
    data: Annotated[
        list[str], typer.Argument(help="A table, texts, pictures or a folder of them; - for texts, a line each.")
    ],
    text: Annotated[str | None, typer.Option(help="The column of texts; as in training if not given.")] = None,
    image: Annotated[str | None, typer.Option(help="The column of pictures' paths; likewise.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each item.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print a table with a column of labels.")] = False,
    every_label: Annotated[
        bool, typer.Option("--all", help="Print the probabilities of all labels, answered or not.")
    ] = False,
    show: Annotated[
        Path | None, typer.Option(help="Write the picture with its labels and a bar chart here; a folder for several.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count and leave out pictures that cannot be opened.")
    ] = False,
) -> None:
    """Say which labels texts, pictures or rows have, with their probabilities."""
    if json and csv:
        raise typer.BadParameter("choose one of --json and --csv", param_hint="--json, --csv")
    loaded = load(model)
    asked = _asked(loaded, data, {"text": text, "image": image})
    if role(loaded) == "image" and asked.table is None:
        from rsoftmax.cli.pictures import openable

        asked = asked._replace(**openable(asked.items, skip_bad)._asdict())
    elif show is not None:
        raise typer.BadParameter("only pictures can be shown", param_hint="--show")
    if show is not None:
        from rsoftmax.cli.pictures import targets

        drawings = targets(data, asked.items, show)
    cut_notice(loaded, asked.items)
    found = _found(loaded, asked, every_label)
    form = Form(
        "json" if json else "csv" if csv else "text", separator_of(loaded), loaded.names if every_label else None
    )
    for line in _lines(asked.names, found, form):
        typer.echo(line)
    if show is not None and found:
        from rsoftmax.cli.pictures import draw

        draw(asked.items, found, drawings)
        typer.echo(f"wrote {show}", err=json or csv)


def _asked(model: "AnyModel", data: list[str], columns: dict[str, str | None]) -> Asked:
    """What was given: a table, or the items themselves."""
    from rsoftmax.data_files import READERS, read

    what = role(model)
    if len(data) == 1 and Path(data[0]).suffix.lower() in READERS and not (what == "text" and not _is_path(data[0])):
        with told("DATA"):
            table = read(Path(data[0]))
            items = items_of(table, what, column_for(model, what, columns.get(what)))
        return Asked(items, [str(row) for row in range(1, len(items) + 1)], table)
    if what == "features":
        raise typer.BadParameter(f"rows come from a table: {', '.join(READERS)}", param_hint="DATA")
    if what == "text":
        with told("DATA"):
            texts = _typed() if data == ["-"] else _no_files(data)
        return Asked(texts, texts)
    from rsoftmax.cli.pictures import pictures

    paths = [path for place in data for path in pictures(Path(place))]
    return Asked(paths, [path.name for path in paths])


def _typed() -> list[str]:
    """The lines of the standard input."""
    try:
        return [line.rstrip("\r\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise ValueError(f"the standard input: byte {error.start} is no {error.encoding.upper()}; convert it") from None


def _no_files(texts: list[str]) -> list[str]:
    """The texts, if none of them names a file, a folder or the standard input, whose content would not be read."""
    for text in texts:
        if text == "-":
            raise ValueError("- reads the standard input, and stands alone; leave it out, or the other texts")
        if isdir(text):
            raise ValueError(f"{text} is a folder; this model reads texts: name one table alone, or give the texts")
        if isfile(text):  # unlike Path.is_file, False for a text that is too long for a name
            raise ValueError(f"{text} is a file; name one table alone, or give texts, a line each: - < {text}")
    return texts


def _is_path(word: str) -> bool:
    return Path(word).exists() or " " not in word


def _found(model: "AnyModel", asked: Asked, every_label: bool) -> list[dict[str, float]]:
    if asked.table is not None:
        with rows_told(asked.table, asked.items):
            return model.predict(asked.items, every_label=every_label)
    with told("DATA"):
        return model.predict(asked.items, every_label=every_label)


def _lines(names: list[str], found: list[dict[str, float]], form: Form) -> Iterator[str]:
    """What is printed, item by item."""
    from rsoftmax.printable import printable, readable

    if form.name == "csv":
        yield _csv_line(["item", *(form.columns or ["labels"])])
    for name, row in zip(names, found, strict=True):
        if form.name == "json":
            from json import dumps

            yield dumps({"item": name, "labels": row}, ensure_ascii=False)
        elif form.name == "csv":
            every = [f"{row[label]:.6f}" for label in form.columns or []]
            yield _csv_line([name, *(every or [form.separator.join(row)])])
        else:
            listed = ", ".join(f"{printable(label)} {readable(p)}" for label, p in row.items())
            yield f"{printable(name)}: {listed or 'no label'}"


def _csv_line(cells: list[str]) -> str:
    import csv
    import io

    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)  # characters of the line's end are quoted in cells
    return line.getvalue().removesuffix("\r\n")
