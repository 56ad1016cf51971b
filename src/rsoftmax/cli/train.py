"""``rsoftmax train``."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rsoftmax.cli.arguments import parameters, usage_errors
from rsoftmax.cli.models import item_errors, read_items, register_sparse_attention, warn_truncated
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
    average: Annotated[Literal["micro", "macro", "samples"], typer.Option(help="The F1 to optimize.")] = "micro",
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
        Literal["samples", "micro", "label"],
        typer.Option(help="What is guaranteed: the mean over rows (samples), all entries (micro), or each label."),
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

    modality, column = _one_input({"text": text, "image": image, "features": features})
    if labels in map(str.strip, column.split(",") if modality == "features" else [column]):
        raise typer.BadParameter(
            f"{labels!r} is the column of labels, which a model cannot learn from; leave it out",
            param_hint=f"--{modality}",
        )
    parameter = parameters(context)
    options: dict[str, Any] = {"lr": lr, "batch_size": batch_size, "epochs": epochs}
    options = {name: value for name, value in options.items() if value is not None}
    level: dict[str, Any] = {"recall": recall, "precision": precision, "confidence": confidence}
    level = {name: value for name, value in level.items() if value is not None}
    is_table, no_level = modality == "features", recall is None and precision is None
    encoder_options = {"encoder": encoder, "finetune": finetune, "validation": validation, "attention": attention}
    for name, is_unused, needed in (
        *((f"--{name}", value and is_table, "--text or --image") for name, value in encoder_options.items()),
        ("--max-tokens", max_tokens and modality != "text", "--text"),
        ("--epochs", epochs is not None and not finetune, "--finetune"),
        ("--by", by != "samples" and no_level, "--recall or --precision"),
        ("--confidence", confidence is not None and no_level, "--recall or --precision"),
        *((f"--{name}", attention is None, "--attention") for name in parameter),
    ):
        if is_unused:
            raise typer.BadParameter(f"has an effect only with {needed}", param_hint=name)
    with usage_errors("--out"):
        check_writable(out, TABLE if is_table else LABELS)
    with usage_errors("DATA"):
        table = read(data)
        items, y = read_items(table, modality, column), table.labels(labels, separator)
        names = _names(table, y, labels, separator)
    model = _new_model(modality, column, names, average, encoder, max_tokens)
    if attention is not None:
        with usage_errors("--attention"):
            from rsoftmax.attention.transformers import set_attention

            set_attention(model, attention, **parameter)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"random_state": seed, "verbose": True, "guarantee": level and {**level, "by": by}}
    if validation is not None:
        with usage_errors("--validation"):
            held_out = read(validation)
            settings["validation"] = read_items(held_out, modality, column), held_out.labels(labels, separator)
    columns = {modality: column, "labels": labels, "separator": separator}
    model.columns.update(columns)
    if finetune:
        choices = (columns, encoder, average, options, validation, attention, parameter, max_tokens, seed, level, by)
        digest = hashlib.sha256(table.path.read_bytes() + repr(choices).encode()).hexdigest()[:12]
        options["checkpoints"] = out.resolve().parent / f".{out.resolve().name}.finetuning-{digest}"
    try:
        with item_errors(table, items):
            warn_truncated(model, items)
            model.fit(items, y, **settings, **_training(finetune, options))
    except KeyboardInterrupt:
        left = "rerun the command to resume from the last checkpoint" if finetune else "nothing was written"
        typer.echo(f"\nstopped: {left}", err=True)
        raise typer.Exit(130) from None
    with usage_errors("--out"):
        model.save(out)
    if finetune:
        from rsoftmax.labels.models.finetuning import remove_checkpoints

        remove_checkpoints(options["checkpoints"])
    _report(model, out, 0 if validation else len(items))


def _one_input(columns: dict[str, str | None]) -> tuple[str, str]:
    """The one modality whose column the user names, with this column."""
    chosen = [(modality, column) for modality, column in columns.items() if column is not None]
    if len(chosen) != 1:
        options = " or ".join(f"--{modality}" for modality in columns)
        raise typer.BadParameter(f"pass exactly one of {options}", param_hint=options)
    return chosen[0]


def _names(table: "Table", y: list[list[str]], column: str, separator: str) -> list[str]:
    """All labels; an error if there are none, or if the cells look as if they were not split."""
    names = sorted({name for labels in y for name in labels})
    if not names:
        raise ValueError(f"{table.path}: the column {column!r} contains no labels")
    if len(names) > 20 and len(names) > len(y) / 2:
        raise ValueError(
            f"{table.path}: the column {column!r} contains {len(names)} labels in {len(y)} rows, such as"
            f" {names[0]!r}; is {separator!r} the separator?"
        )
    return names


def _new_model(
    modality: str, column: str, names: list[str], average: Any, encoder: str | None, max_tokens: int | None
) -> "BaseLabelModel":
    from rsoftmax import labels

    if modality == "features":
        with usage_errors("--features"):
            return labels.TableModel([name.strip() for name in column.split(",")], names, average)
    source = encoder or ENCODERS[modality]
    with usage_errors("--encoder"):
        register_sparse_attention()
        model = labels.LabelModel.from_encoder(source, names, average, max_tokens=max_tokens)
        if model.modality != modality:
            raise ValueError(f"{source} encodes {model.modality}s; pass their column as --{model.modality}")
        return model


def _training(finetune: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options of training as ``fit`` takes them."""
    if finetune:
        return {"finetune": True, **options}
    from rsoftmax.labels import TrainingOptions

    return {"training": TrainingOptions(**options)}


def _report(model: "BaseLabelModel", out: Path, rows: int) -> None:
    """Print the scores; if they come from all ``rows`` of training, they are cross-validated."""
    from rsoftmax.labels.decoding import AVERAGES

    scores = model.evaluation
    if "guarantee" in scores:
        uncontrolled = len(scores.get("not_guaranteed", ()))
        exceptions = f", except for {count_of(uncontrolled, 'label')} with too few rows" if uncontrolled else ""
        typer.echo(f"guaranteed: {scores['guarantee']}{exceptions}")
    where = (
        f"cross-validated on {rows} rows"
        if scores["num_samples"] == rows
        else f"on {scores['num_samples']} held-out rows"
    )
    typer.echo(f"wrote {out}: {count_of(len(model.names), 'label')}; {where}:")
    typer.echo(", ".join(f"{name} F1 {share(scores[name])}" for name in AVERAGES))
