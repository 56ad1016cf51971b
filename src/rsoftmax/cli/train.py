"""``rsoftmax train``."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.arguments import parameters, usage_errors
from rsoftmax.cli.models import INPUTS, read_items, row_errors, warn_truncated
from rsoftmax.labels.models.card import count_of, share

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.tables import Table

ENCODERS = {"text": "sentence-transformers/all-MiniLM-L6-v2", "image": "microsoft/resnet-50"}


def train(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(help="A table: .csv, .tsv, .jsonl or .parquet; or a folder with one table.")],
    labels: Annotated[str, typer.Option(help="The label column: cells such as 'a;b', or lists.")],
    out: Annotated[Path, typer.Option(help="The folder to save the model in.")],
    text: Annotated[str | None, typer.Option(help="The text column.")] = None,
    image: Annotated[
        str | None, typer.Option(help="The column of image paths, relative to the table's folder.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="The columns of numbers or categories, comma-separated: a,b,c.")
    ] = None,
    separator: Annotated[str, typer.Option(help="The separator between the labels of a cell.")] = ";",
    encoder: Annotated[
        str | None,
        typer.Option(help="A folder or hub id of a text or image encoder. Default: MiniLM-L6 or ResNet-50."),
    ] = None,
    average: Annotated[str, typer.Option(help="The F1 to optimize: micro, macro or samples.")] = "micro",
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Fine-tune the encoder; rerun the command to resume an interrupted run.")
    ] = False,
    epochs: Annotated[float | None, typer.Option(help="The maximum number of epochs of fine-tuning.")] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="The batch size.")] = None,
    validation: Annotated[
        Path | None, typer.Option(help="A table of held-out rows. Default: cross-validation, or a tenth of the rows.")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="The mapping of the encoder's attention, with its parameter: t_softmax --t 6.")
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(help="Guarantee this recall instead of optimizing F1; holds out a fifth of the rows."),
    ] = None,
    precision: Annotated[
        float | None, typer.Option(help="Guarantee this precision; needs --confidence, holds out a fifth of the rows.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="What is guaranteed: the mean over rows (samples), all entries (micro), or each label.")
    ] = "samples",
    confidence: Annotated[
        float | None, typer.Option(help="The probability that the guarantee holds. Default: in expectation.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=4, help="Truncate texts to this many tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The random seed.")] = 0,
) -> None:
    """Train a multi-label classifier for texts, images or rows of a table, and save it."""
    from rsoftmax.labels.models.folders import LABELS, TABLE, check_writable
    from rsoftmax.labels.models.tables import read

    kind, column = _one_input({"text": text, "image": image, "features": features})
    _check_options(kind, encoder, average, finetune, epochs, max_tokens)
    _check_training(kind, lr, validation, attention)
    parameter = parameters(context)
    if parameter and attention is None:
        raise typer.BadParameter(f"--{min(parameter)} needs --attention", param_hint="--attention")
    guarantee = _guarantee(recall, precision, by, confidence)
    settings: dict[str, Any] = {"lr": lr, "batch_size": batch_size, "epochs": epochs}
    settings = {name: value for name, value in settings.items() if value is not None}
    with usage_errors("--out"):
        check_writable(out, TABLE if kind == "features" else LABELS)
    with usage_errors("DATA"):
        table = read(data)
        items, found = read_items(table, kind, column), table.labels(labels, separator)
        names = _names(table, found, labels, separator)
    columns = {kind: column, "labels": labels, "separator": separator}
    if kind == "features":
        with row_errors(table, items), _stoppable(False):
            settings |= {"random_state": seed, "guarantee": guarantee}
            model = _table_model(items, found, column, names, average, **settings)
        model.columns.update(columns)
        with usage_errors("--out"):
            model.save(out)
    else:
        with usage_errors("--encoder"):
            model = _label_model(encoder or ENCODERS[kind], kind, names, average, max_tokens)
        if attention is not None:
            with usage_errors("--attention"):
                _set_attention(model, attention, parameter)
        if validation is not None:
            with usage_errors("--validation"):
                held_out = read(validation)
                settings["validation"] = read_items(held_out, kind, column), held_out.labels(labels, separator)
        with row_errors(table, items):
            warn_truncated(model, items)
        model.config.columns = columns
        if finetune:
            chosen = (columns, encoder, average, settings, attention, parameter, max_tokens, seed, guarantee)
            settings["checkpoints"] = _checkpoints(out, table.path, *chosen)
        with row_errors(table, items), _stoppable(finetune):
            model.fit(items, found, finetune=finetune, seed=seed, guarantee=guarantee, **settings)
        with usage_errors("--out"):
            model.save_pretrained(out)
        if finetune:
            _remove(settings["checkpoints"])
    _report(model, out, 0 if validation else len(items))


def _one_input(given: dict[str, str | None]) -> tuple[str, str]:
    """The one kind of input that was given, with its column."""
    chosen = [(kind, column) for kind, column in given.items() if column is not None]
    if len(chosen) != 1:
        options = " or ".join(f"--{kind}" for kind in INPUTS)
        raise typer.BadParameter(f"pass exactly one of {options}", param_hint=options)
    return chosen[0]


def _check_options(
    kind: str, encoder: str | None, average: str, finetune: bool, epochs: float | None, max_tokens: int | None
) -> None:
    """Reject options that are invalid, or that would have no effect."""
    from rsoftmax.labels.decoding import AVERAGES

    if average not in AVERAGES:
        raise typer.BadParameter(f"{average!r} is not one of {', '.join(AVERAGES)}", param_hint="--average")
    if (finetune or encoder) and kind == "features":
        raise typer.BadParameter("table rows have no encoder", param_hint="--encoder, --finetune")
    if epochs is not None and not (finetune and 0 < epochs < math.inf):
        raise typer.BadParameter("expected a number above 0, with --finetune only", param_hint="--epochs")
    if max_tokens is not None and kind != "text":
        raise typer.BadParameter("only texts have tokens", param_hint="--max-tokens")


def _check_training(kind: str, lr: float | None, validation: Path | None, attention: str | None) -> None:
    """Reject settings of training that are invalid, or that would have no effect."""
    if lr is not None and not 0 < lr < math.inf:
        raise typer.BadParameter(f"expected a number above 0, got {lr}", param_hint="--lr")
    if kind == "features" and (validation or attention):
        raise typer.BadParameter("only for texts and images", param_hint="--validation, --attention")


def _guarantee(recall: float | None, precision: float | None, by: str, confidence: float | None) -> dict[str, Any]:
    """What is guaranteed, checked; empty if nothing is."""
    from typing import get_args

    from rsoftmax.labels.risk_control import By

    given = {"recall": recall, "precision": precision, "by": by, "confidence": confidence}
    if recall is None and precision is None:
        if (by, confidence) != ("samples", None):
            raise typer.BadParameter("only with --recall or --precision", param_hint="--by, --confidence")
        return {}
    if recall is not None and precision is not None:
        raise typer.BadParameter("pass only one of them", param_hint="--recall, --precision")
    if by not in get_args(By):
        raise typer.BadParameter(f"{by!r} is not one of {', '.join(get_args(By))}", param_hint="--by")
    for name in ("recall", "precision", "confidence"):
        if (value := given[name]) is not None and not 0 < value < 1:  # type: ignore[operator]
            raise typer.BadParameter(f"expected a number between 0 and 1, got {value}", param_hint=f"--{name}")
    if precision is not None and confidence is None:
        raise typer.BadParameter("needs --confidence, such as 0.95", param_hint="--precision")
    return given


def _set_attention(model: Any, mapping: str, parameter: dict[str, Any]) -> None:
    from rsoftmax.attention.transformers import set_attention

    set_attention(model, mapping, **parameter)


def _names(table: "Table", found: list[list[str]], column: str, separator: str) -> list[str]:
    """All labels; an error if there are none, or if the cells look as if they were not split."""
    names = sorted({name for row in found for name in row})
    if not names:
        raise ValueError(f"{table.path}: the column {column!r} contains no labels")
    if len(names) > 20 and len(names) > len(found) / 2:
        raise ValueError(
            f"{table.path}: the column {column!r} contains {len(names)} labels in {len(found)} rows, such as"
            f" {names[0]!r}; is {separator!r} the separator?"
        )
    return names


def _label_model(source: str, kind: str, names: list[str], average: str, max_tokens: int | None) -> Any:
    from rsoftmax.labels.models.encoder_model import LabelModel

    model = LabelModel.from_encoder(source, names, average, max_tokens=max_tokens)  # type: ignore[arg-type]
    if model.reads != kind:
        raise ValueError(f"{source} encodes {model.reads}s; pass their column as --{model.reads}")
    return model


def _table_model(
    items: list[Any], found: list[list[str]], column: str, names: list[str], average: str, **settings: Any
) -> Any:
    from rsoftmax.labels.models.table import TableModel

    features = [name.strip() for name in column.split(",")]
    return TableModel.fit(items, found, features, average, names=names, verbose=1, **settings)  # type: ignore[arg-type]


def _checkpoints(out: Path, data: Path, *settings: Any) -> Path:
    """The folder of the checkpoints: a different one for each combination of data and settings."""
    digest = hashlib.sha256(data.read_bytes() + repr(settings).encode()).hexdigest()[:12]
    return out.resolve().parent / f".{out.resolve().name}.finetuning-{digest}"


@contextmanager
def _stoppable(resumable: bool) -> Iterator[None]:
    """On Ctrl+C, exit with a message instead of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        left = "rerun the command to resume from the last checkpoint" if resumable else "nothing was written"
        typer.echo(f"\nstopped: {left}", err=True)
        raise typer.Exit(130) from None


def _remove(folder: Path) -> None:
    from rsoftmax.labels.models.finetuning import remove_checkpoints

    remove_checkpoints(folder)


def _report(model: "BaseLabelModel", out: Path, rows: int) -> None:
    """Print the scores; if they come from all ``rows`` of training, they are cross-validated."""
    from rsoftmax.labels.decoding import AVERAGES

    scores = model.evaluation
    if "guarantee" in scores:
        lacking = len(scores.get("not_guaranteed", ()))
        exceptions = f", except for {count_of(lacking, 'label')} with too few rows" if lacking else ""
        typer.echo(f"guaranteed: {scores['guarantee']}{exceptions}")
    where = (
        f"cross-validated on {rows} rows"
        if scores["num_samples"] == rows
        else f"on {scores['num_samples']} held-out rows"
    )
    typer.echo(f"wrote {out}: {count_of(len(model.names), 'label')}; {where}:")
    typer.echo(", ".join(f"{name} F1 {share(scores[name])}" for name in AVERAGES))
