"""``rsoftmax train``."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.label_models import INPUTS, cut_notice, items_of, rows_told, told
from rsoftmax.printable import counted

if TYPE_CHECKING:
    from rsoftmax.cli.label_models import AnyModel
    from rsoftmax.data_files import Table

ENCODERS = {"text": "sentence-transformers/all-MiniLM-L6-v2", "image": "microsoft/resnet-50"}
AVERAGES = ("micro", "macro", "samples")


def train(
    data: Annotated[Path, typer.Argument(help="A table: .csv, .tsv, .jsonl or .parquet; or a folder that holds one.")],
    labels: Annotated[str, typer.Option(help="The column of labels: 'a;b' in a cell, or lists.")],
    out: Annotated[Path, typer.Option(help="The folder to save the model in.")],
    text: Annotated[str | None, typer.Option(help="The column of texts.")] = None,
    image: Annotated[str | None, typer.Option(help="The column of pictures' paths, from the table's folder.")] = None,
    features: Annotated[str | None, typer.Option(help="Columns of numbers: a,b,c.")] = None,
    separator: Annotated[str, typer.Option(help="What stands between the labels of a cell.")] = ";",
    encoder: Annotated[
        str | None, typer.Option(help="A folder, or a hub id, for texts or pictures; if not given: MiniLM, ResNet-50.")
    ] = None,
    average: Annotated[str, typer.Option(help="The F1 that counts: micro, macro or samples.")] = "micro",
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Train the encoder too; the same command goes on after a stop.")
    ] = False,
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows in fine-tuning, at most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=4, help="Tokens that are read of a text.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of everything that is drawn.")] = 0,
) -> None:
    """Learn the labels of texts, pictures or rows from a table, and save a model that predicts them."""
    from rsoftmax.data_files import read
    from rsoftmax.folders import check_place

    what, column = _one_of({"text": text, "image": image, "features": features})
    _check_options(what, encoder, average, finetune, epochs, max_tokens)
    with told("--out"):
        check_place(out)
    with told("DATA"):
        table = read(data)
        items, found = items_of(table, what, column), table.labels(labels, separator)
        names = _names(table, found, labels, separator)
    columns = {what: column, "labels": labels, "separator": separator}
    if what == "features":
        with rows_told(table, items), _stoppable(False):
            model = _table_model(items, found, column, names, average, seed)
        model.columns.update(columns)
        with told("--out"):
            model.save(out)
    else:
        with told("--encoder"):
            model = _label_model(encoder or ENCODERS[what], what, names, average, max_tokens)
        cut_notice(model, items)
        model.config.columns = columns
        settings: dict[str, Any] = {}
        if finetune:
            settings["checkpoints"] = _checkpoints(out, table.path, columns, encoder, average, epochs, max_tokens, seed)
            settings |= {} if epochs is None else {"epochs": epochs}
        with rows_told(table, items), _stoppable(finetune):
            model.fit(items, found, finetune=finetune, seed=seed, **settings)
        with told("--out"):
            model.save_pretrained(out)
        if finetune:
            _remove(settings["checkpoints"])
    _report(model, out)


def _one_of(given: dict[str, str | None]) -> tuple[str, str]:
    """The one role that was given, with its column."""
    chosen = [(what, column) for what, column in given.items() if column is not None]
    if len(chosen) != 1:
        wanted = " or ".join(f"--{what}" for what in INPUTS)
        raise typer.BadParameter(f"say what the labels are of: one of {wanted}", param_hint=wanted)
    return chosen[0]


def _check_options(
    what: str, encoder: str | None, average: str, finetune: bool, epochs: float | None, max_tokens: int | None
) -> None:
    """Refuse options that are wrong, or that would have no effect."""
    if average not in AVERAGES:
        raise typer.BadParameter(f"{average!r} is none of {', '.join(AVERAGES)}", param_hint="--average")
    if (finetune or encoder) and what == "features":
        raise typer.BadParameter("a table of numbers has no encoder", param_hint="--encoder, --finetune")
    if epochs is not None and not (finetune and 0 < epochs < math.inf):
        raise typer.BadParameter("a number above 0, with --finetune only", param_hint="--epochs")
    if max_tokens is not None and what != "text":
        raise typer.BadParameter("only texts have tokens", param_hint="--max-tokens")


def _names(table: "Table", found: list[list[str]], column: str, separator: str) -> list[str]:
    """All labels; an error if there are none, or if they look like labels that were not split."""
    names = sorted({name for row in found for name in row})
    if not names:
        raise ValueError(f"{table.path}: the column {column!r} holds no label")
    if len(names) > 20 and len(names) > len(found) / 2:
        raise ValueError(
            f"{table.path}: the column {column!r} holds {len(names)} labels in {len(found)} rows, such as"
            f" {names[0]!r}; is {separator!r} the separator?"
        )
    return names


def _label_model(source: str, what: str, names: list[str], average: str, max_tokens: int | None) -> Any:
    from rsoftmax.cli.label_models import role
    from rsoftmax.huggingface import LabelModel

    model = LabelModel.from_encoder(source, names, average, max_tokens=max_tokens)  # type: ignore[arg-type]
    if role(model) != what:
        raise ValueError(f"{source} is an encoder of {role(model)}s; --{role(model)} names their column")
    return model


def _table_model(
    items: list[Any], found: list[list[str]], column: str, names: list[str], average: str, seed: int
) -> Any:
    from rsoftmax.sklearn import TableModel

    features = [name.strip() for name in column.split(",")]
    return TableModel.fit(items, found, features, average, names=names, progress=True, random_state=seed)  # type: ignore[arg-type]


def _checkpoints(out: Path, data: Path, *settings: Any) -> Path:
    """Where fine-tuning keeps its checkpoints: a place of its own for each data and settings."""
    digest = hashlib.sha256(data.read_bytes() + repr(settings).encode()).hexdigest()[:12]
    return out.resolve().parent / f".{out.resolve().name}.finetuning-{digest}"


@contextmanager
def _stoppable(resumable: bool) -> Iterator[None]:
    """Ctrl-C ends the command with a word on what is left."""
    try:
        yield
    except KeyboardInterrupt:
        left = "the same command goes on from the last checkpoint" if resumable else "nothing was written"
        typer.echo(f"\nstopped: {left}", err=True)
        raise typer.Exit(130) from None


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _report(model: "AnyModel", out: Path) -> None:
    scores = model.scores
    typer.echo(f"wrote {out}: {counted(len(model.names), 'label')}; on {scores['rows']} rows that were not trained on:")
    typer.echo(", ".join(f"{name} F1 {scores[name]:.3f}" for name in AVERAGES))
