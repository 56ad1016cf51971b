"""``rsoftmax predict``."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from os.path import exists, isdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.cli.models import ADAPT, adapt_to, column_for, item_errors, load, read_items, separator_of

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.explanation import Explanation
    from rsoftmax.labels.models.tables import Table
    from rsoftmax.labels.rules import Output

PREDICTED = ("predicted_labels", "predicted_probabilities")
ASKED = "review"
"""The column of labels that a person decides on."""
TEXTS_AT_ONCE = 1000  # labelled and printed, so that memory does not grow with texts times labels
Predictions = list[dict[str, float]]


class NamedItems(NamedTuple):
    """The items to label, their names in the output, and the table that they come from, if any."""

    items: Sequence[Any]
    names: Sequence[Any]
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
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the passages of a text behind each label, with their weights.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            help="Plot each image or text with its labels and the runners-up: a file for one, a folder for several."
            " With --explain: an .html file with the passages highlighted."
        ),
    ] = None,
    adapt: Annotated[bool, ADAPT] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be opened.")] = False,
) -> None:
    """Predict the labels of texts, images or rows, with their probabilities."""
    if json and csv:
        raise typer.BadParameter("choose one of --json and --csv", param_hint="--json, --csv")
    if explain and csv:
        raise typer.BadParameter("explanations are printed as lines or with --json, not as CSV", param_hint="--explain")
    loaded = load(model)
    columns = {"text": text, "image": image}
    inputs = _inputs(loaded, data, columns)
    if loaded.modality == "image" and inputs.table is None:
        inputs = _openable(list(inputs.items), skip_bad)
    if adapt:
        adapt_to(loaded, inputs.items)
    if explain:
        _explain(loaded, data, inputs, columns, every_label, json, show)
        return
    if show is not None and loaded.modality == "features":
        raise typer.BadParameter("only images and texts can be shown, not rows of features", param_hint="--show")
    figures = [] if show is None else _figure_paths(data, inputs, show)
    for number, part in enumerate(_parts(loaded, inputs, columns, bool(figures))):
        with item_errors(part.table, part.items):
            output = loaded.outputs(part.items)
        predicted = loaded.name_labels(output)
        every = loaded.name_labels(output, every_label=True) if every_label or figures else []
        shown = every if every_label else predicted
        if csv:
            lines = _csv_lines(loaded, part, output, shown, every_label)
        else:
            lines = (_json_lines if json else _text_lines)(part, shown)
        for line in islice(lines, int(csv and number > 0), None):  # one header
            typer.echo(line)
    if figures:
        with usage_errors("--show"):
            _draw(inputs, predicted, every, figures)
        typer.echo(f"wrote {show}", err=json or csv)


def _explain(
    model: "BaseLabelModel",
    data: list[str],
    inputs: NamedItems,
    columns: dict[str, str | None],
    every_label: bool,
    json: bool,
    show: Path | None,
) -> None:
    """Print the passages behind each label, and highlight them in a page of HTML."""
    from rsoftmax.labels.models.explanation import explanations_page
    from rsoftmax.labels.models.folders import replacing

    if model.modality != "text":
        raise typer.BadParameter("only labels of texts can be explained", param_hint="--explain")
    if show is not None:
        _not_an_input(show, data)
        if show.suffix.lower() != ".html" or not show.resolve().parent.is_dir():
            raise typer.BadParameter(f"{show} must be an .html file in an existing folder", param_hint="--show")
    on_page: list[tuple[str, str, dict[str, Explanation]]] = []
    for part in _parts(model, inputs, columns):
        with item_errors(part.table, part.items):
            explained = model.explain(part.items, every_label=every_label)
        for line in (_explained_json if json else _explained_lines)(part, explained):
            typer.echo(line)
        if show is not None:
            numbers = map(str, range(len(on_page) + 1, len(on_page) + len(explained) + 1))
            on_page += zip(numbers, part.items, explained, strict=True)
    if show is not None:
        with usage_errors("--show"), replacing(show) as unfinished:
            unfinished.write_text(explanations_page(on_page), encoding="utf-8")
        typer.echo(f"wrote {show}", err=json)


def _inputs(model: "BaseLabelModel", data: list[str], columns: dict[str, str | None]) -> NamedItems:
    """The items of a table, or those on the command line."""
    from rsoftmax.labels.models.tables import READERS, ending, read

    modality, word = model.modality, data[0]
    is_table = len(data) == 1 and ending(Path(word)) in READERS
    if is_table and not (modality == "text" and " " in word and not exists(word)):
        with usage_errors("DATA"):
            return _of_table(model, read(Path(word)), columns)
    if modality == "features":
        raise typer.BadParameter(f"pass the rows as a table: {', '.join(READERS)}", param_hint="DATA")
    with usage_errors("DATA"):
        if modality == "text":
            texts = _texts(data)
            return NamedItems(texts, texts)
        paths = [image for path in data for image in _images(Path(path))]
    return NamedItems(paths, [path.name for path in paths])


def _of_table(model: "BaseLabelModel", table: "Table", columns: dict[str, str | None]) -> NamedItems:
    """The items of a table, named by the numbers of their rows."""
    column = column_for(model, model.modality, columns.get(model.modality))
    items = read_items(table, model.modality, column, getattr(model.config, "categories", None))
    return NamedItems(items, range(table.start + 1, table.start + len(table) + 1), table)


def _parts(
    model: "BaseLabelModel", inputs: NamedItems, columns: dict[str, str | None], at_once: bool = False
) -> Iterator[NamedItems]:
    """The texts, checked, in parts that are printed one by one; other items all at once.

    The progress bar is for people whose output goes to a file.
    """
    from tqdm.auto import tqdm

    from rsoftmax.labels.models.streams import batches

    with item_errors(inputs.table, inputs.items):
        model.check(inputs.items)
    parts: Iterable[NamedItems]
    if at_once or model.modality != "text" or not len(inputs.items):
        parts = [inputs]
    elif inputs.table is None:
        parts = (NamedItems(texts, texts) for texts in batches(inputs.items, TEXTS_AT_ONCE))
    else:
        parts = (_of_table(model, part, columns) for part in inputs.table.parts(TEXTS_AT_ONCE))
    unit = {"text": "texts", "image": "images", "features": "rows"}[model.modality]
    hidden = sys.stdout.isatty() or None  # None: unless stderr is a terminal
    bar = tqdm(total=len(inputs.items), desc="predicting", unit=unit, disable=hidden)
    with bar, usage_errors("DATA"):
        for part in parts:
            yield part
            bar.update(len(part.items))


def _texts(texts: list[str]) -> list[str]:
    """The texts, or the lines of stdin; an error if a text names a file or folder, whose content would not be read."""
    if texts == ["-"]:
        if sys.stdin is None:
            raise ValueError("stdin is closed; pass the texts, or one per line: - < FILE")
        try:
            return [line.rstrip("\r\n") for line in sys.stdin]
        except UnicodeDecodeError as error:
            encoding = error.encoding.upper()
            raise ValueError(f"stdin: byte {error.start} is not valid {encoding}; convert the input") from None
    for text in texts:
        if text == "-":
            raise ValueError("- reads stdin and cannot be combined with other texts")
        if isdir(text):
            raise ValueError(f"{text} is a folder, but this model reads texts; pass a single table, or the texts")
        if exists(text):  # unlike Path.exists, False for a text that is too long for a file name
            raise ValueError(f"{text} is a file; pass a single table, or texts one per line: - < {text}")
    return texts


def _images(path: Path) -> list[Path]:
    """The image, or the images in a folder."""
    from rsoftmax.labels.models.images import ENDINGS

    if not path.is_dir():
        return [path]
    images = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    if not images:
        raise ValueError(f"{path} contains no images ({', '.join(ENDINGS)})")
    return images


def _openable(paths: list[Path], skip_bad: bool) -> NamedItems:
    """The images that can be opened; without ``skip_bad``, the first one that cannot is an error."""
    from rsoftmax.labels.models.images import BadImageError, open_image

    openable = []
    for path in paths:
        try:
            open_image(path, str(path))
            openable.append(path)
        except BadImageError as error:
            if not skip_bad:
                raise typer.BadParameter(f"{error}; pass --skip-bad to skip it", param_hint="DATA") from None
    if len(openable) < len(paths):
        typer.echo(f"skipped {len(paths) - len(openable)} of {len(paths)} images, which cannot be opened", err=True)
    return NamedItems(openable, [path.name for path in openable])


def _figure_paths(data: list[str], inputs: NamedItems, show: Path) -> list[Path]:
    """The file of each item's figure; in a folder, named after the image if that is unique, otherwise numbered."""
    from rsoftmax.plots import formats

    _not_an_input(show, data)
    if show.suffix.lower() == ".html":
        raise typer.BadParameter(f"pass --explain as well to write {show}", param_hint="--show")
    if len(inputs.items) == 1 and not isdir(data[0]):
        if show.suffix.lower() not in formats():
            raise typer.BadParameter(f"{show} must end in one of {', '.join(formats())}", param_hint="--show")
        return [show]
    names = [item.name if isinstance(item, Path) else "" for item in inputs.items]
    if len(set(names)) < len(names):
        names = [str(number) for number, _ in enumerate(names, 1)]
    return [show / f"{name}.png" for name in names]


def _not_an_input(show: Path, data: list[str]) -> None:
    if any(exists(path) and show.resolve() == Path(path).resolve() for path in data):
        raise typer.BadParameter(f"{show} is an input; choose another path", param_hint="--show")


def _draw(inputs: NamedItems, predicted: Predictions, every: Predictions, figures: list[Path]) -> None:
    """Plot each item with its predicted labels, and with the others as runners-up."""
    from rsoftmax.labels.models.images import open_image
    from rsoftmax.plots import draw_labels

    for item, name, labels, marginals, figure in zip(*inputs[:2], predicted, every, figures, strict=True):
        figure.parent.mkdir(parents=True, exist_ok=True)
        shown = item if isinstance(item, str) else open_image(item, str(item))
        draw_labels(shown, marginals, labels, figure, str(name))


def _text_lines(inputs: NamedItems, predictions: Predictions) -> Iterator[str]:
    from rsoftmax.labels.models.card import printable, readable

    for name, labels in zip(inputs.names, predictions, strict=True):
        listed = ", ".join(f"{printable(label)} {readable(p)}" for label, p in labels.items())
        yield f"{printable(str(name))}: {listed or 'no label'}"


def _json_lines(inputs: NamedItems, predictions: Predictions) -> Iterator[str]:
    from json import dumps

    for name, labels in zip(inputs.names, predictions, strict=True):
        yield dumps({"item": str(name), "labels": labels}, ensure_ascii=False)


def _explained_lines(inputs: NamedItems, explained: "list[dict[str, Explanation]]") -> Iterator[str]:
    """The labels of each item, and below each label the passages that count most."""
    from rsoftmax.labels.models.card import printable, readable
    from rsoftmax.labels.models.explanation import explanation_lines

    for line, text, labels in zip(_text_lines(inputs, _marginals(explained)), inputs.items, explained, strict=True):
        yield line
        for label, explanation in labels.items():
            yield f"  {printable(label)} {readable(explanation.marginal)}"
            yield from (f"    {line}" for line in explanation_lines(text, explanation))


def _explained_json(inputs: NamedItems, explained: "list[dict[str, Explanation]]") -> Iterator[str]:
    from json import dumps

    for name, labels, by_label in zip(inputs.names, _marginals(explained), explained, strict=True):
        listed = {label: explanation.as_dict() for label, explanation in by_label.items()}
        yield dumps({"item": str(name), "labels": labels, "explanations": listed}, ensure_ascii=False)


def _marginals(explained: "list[dict[str, Explanation]]") -> Predictions:
    return [{label: explanation.marginal for label, explanation in labels.items()} for labels in explained]


def _csv_lines(
    model: "BaseLabelModel", inputs: NamedItems, output: "Output", shown: Predictions, every_label: bool
) -> Iterator[str]:
    """The columns of the table, or the items, with the predicted labels, or the probabilities of all."""
    separator = separator_of(model)
    cells = {"item": list(map(str, inputs.names))} if inputs.table is None else inputs.table.as_texts(separator)
    if every_label:
        new = {name: [f"{labels[name]:.6f}" for labels in shown] for name in model.names}
    else:
        new = label_cells(PREDICTED, shown, separator)
    new[unused("expected_f1", new)] = [f"{f1:.4f}" for f1 in model.expected_f1(output).tolist()]
    if model.review_thresholds is not None:
        new[unused(ASKED, new)] = [separator.join(item.asked) for item in model.review_outputs(output)]
    return csv_lines(cells, new)


def label_cells(columns: tuple[str, str], labels: Predictions, separator: str) -> dict[str, list[str]]:
    """Labels and their probabilities as two columns."""
    p = (separator.join(f"{p:.6f}" for p in item.values()) for item in labels)
    return dict(zip(columns, ([separator.join(item) for item in labels], list(p)), strict=True))


def csv_lines(cells: dict[str, list[str]], new: dict[str, list[str]]) -> Iterator[str]:
    """CSV: columns of a table and new ones, whose names differ from these."""
    from rsoftmax.labels.models.tables import csv_line

    yield csv_line([*cells, *(unused(name, cells) for name in new)])
    for row in zip(*cells.values(), *new.values(), strict=True):
        yield csv_line(row)


def unused(name: str, columns: Collection[str]) -> str:
    """The name of a new column, different from others."""
    return unused(f"{name}_", columns) if name in columns else name
