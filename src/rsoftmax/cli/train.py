"""``rsoftmax train``."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rsoftmax.cli.arguments import parameters, usage_errors
from rsoftmax.cli.models import item_errors, read_items, register_sparse_attention
from rsoftmax.cli.predict import ASKED
from rsoftmax.labels.models.card import count_of, share

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel
    from rsoftmax.labels.models.tables import Table

IMAGE_ENCODER = "microsoft/resnet-50"
SEPARATORS = (";", ",", "|", "/", "\t", " ")
FEWEST_JOINED = 3


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
    categorical: Annotated[
        str | None, typer.Option(help="Columns of --features whose numbers are categories, comma-separated.")
    ] = None,
    trees: Annotated[
        bool, typer.Option("--trees", help="For --features: learn by extra trees in place of networks.")
    ] = False,
    separator: Annotated[str, typer.Option(help="The separator between the labels of a cell.")] = ";",
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A folder or hub id of a text or image encoder. Default: words for texts, ResNet-50 for images."
        ),
    ] = None,
    average: Annotated[Literal["micro", "macro", "samples"], typer.Option(help="The F1 to optimize.")] = "micro",
    beta: Annotated[float | None, typer.Option(help="Weight recall this many times as much as precision.")] = None,
    min_labels: Annotated[int | None, typer.Option(help="The minimum number of labels of a row.")] = None,
    max_labels: Annotated[int | None, typer.Option(help="The maximum number of labels of a row.")] = None,
    rules: Annotated[
        Path | None,
        typer.Option(help='JSON: {"implies": {"corn": "grain"}, "exclusive": [["buy", "sell"]]}.'),
    ] = None,
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
    accept: Annotated[
        float | None,
        typer.Option(help="For `rsoftmax review`: the precision of labels accepted without; holds out a fifth."),
    ] = None,
    reject: Annotated[
        float | None, typer.Option(help="For `rsoftmax review`: the recall after review; holds out a fifth.")
    ] = None,
    by: Annotated[
        Literal["samples", "micro", "label"] | None,
        typer.Option(
            help="What is guaranteed: the mean over rows (samples; default), all entries (micro), or each label."
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="The probability that the guarantee holds. Default: in expectation; 0.95 for review."),
    ] = None,
    add: Annotated[
        Path | None,
        typer.Option(help="Rows that are trained on but never held out, such as queue.csv of `rsoftmax review`."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=4, help="Truncate texts to this many tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The random seed.")] = 0,
) -> None:
    """Train a multi-label classifier for texts, images or rows of a table, and save it."""
    from rsoftmax.labels.models.folders import FOREST, LABELS, TABLE, WORDS, check_writable
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
    decoding: dict[str, Any] = {"average": average, "beta": beta, "min_labels": min_labels, "max_labels": max_labels}
    decoding = {name: value for name, value in decoding.items() if value is not None}
    shared = {"by": by, "confidence": confidence}
    guarantee = _level(recall=recall, precision=precision, **shared)
    review = _level(accept=accept, reject=reject, **shared)
    is_table, no_level = modality == "features", not guarantee and not review
    is_words = modality == "text" and encoder is None
    by_network = "--encoder, --image or --features without --trees"
    for name, is_unused, needed in (
        ("--categorical", categorical and not is_table, "--features"),
        ("--trees", trees and not is_table, "--features"),
        ("--encoder", encoder and is_table, "--text or --image"),
        ("--validation", validation and is_table, "--text or --image"),
        ("--finetune", finetune and (is_table or is_words), "--encoder or --image"),
        ("--attention", attention and (is_table or is_words), "--encoder or --image"),
        ("--max-tokens", max_tokens and (modality != "text" or is_words), "--text and --encoder"),
        ("--lr", lr is not None and (is_words or trees), by_network),
        (
            "--batch-size",
            batch_size is not None and (is_words or trees),
            by_network,
        ),
        ("--epochs", epochs is not None and not finetune, "--finetune"),
        *(
            (f"--{name}", value is not None and no_level, "--recall, --precision, --accept or --reject")
            for name, value in shared.items()
        ),
        *((f"--{name}", attention is None, "--attention") for name in parameter),
    ):
        if is_unused:
            raise typer.BadParameter(f"has an effect only with {needed}", param_hint=name)
    if rules is not None:
        decoding |= _rules(rules)
    for name, is_refused, refused_with, reason in (
        *(
            (name, name in decoding, guarantee, "a guaranteed recall or precision decides on the number of labels")
            for name in ("beta", "min_labels", "max_labels")
        ),
        ("rules", decoding.get("exclusive"), guarantee or review, "exclusive labels cannot keep a guarantee"),
    ):
        if is_refused and refused_with:
            raise typer.BadParameter(f"{reason}; leave it out", param_hint=f"--{name.replace('_', '-')}")
    with usage_errors("--out"):
        check_writable(out, FOREST if trees else TABLE if is_table else WORDS if is_words else LABELS)
    with usage_errors("DATA"):
        table = read(data)
        categories = _categories(table, column, categorical) if categorical else None
        items, y = read_items(table, modality, column, categories), table.labels(labels, separator)
        items = items if is_words else list(items)
    added = held_out = None
    tables = [table]
    if add is not None:
        with usage_errors("--add"):
            tables.append(read(add))
            added = _added(tables[-1], modality, column, labels, separator, categories)
    if validation is not None:
        with usage_errors("--validation"):
            tables.append(read(validation))
            held_out = read_items(tables[-1], modality, column), tables[-1].labels(labels, separator)
    with usage_errors("DATA"):
        every = y + (added[1] if added else []) + (held_out[1] if held_out else [])
        names = _names(table, every, labels, separator)
    model = _new_model(modality, column, names, decoding, encoder, max_tokens, trees)
    _report_broken_rules(y, decoding)
    if attention is not None:
        with usage_errors("--attention"):
            from rsoftmax.attention.transformers import set_attention

            set_attention(model, attention, **parameter)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"guarantee": guarantee, "review": review, "added": added, "validation": held_out}
    settings |= {"random_state": seed, "verbose": True}
    columns = {modality: column, "labels": labels, "separator": separator}
    model.columns.update(columns)
    if not is_words and not trees:
        with usage_errors():
            settings |= _training(finetune, options)
    checkpoints = None
    if is_words:  # finished stages name their training
        checkpoints = _hidden(out)
    elif finetune:
        choices = (columns, encoder, decoding, options, attention, parameter, max_tokens, seed, guarantee, review)
        checkpoints = _hidden(out, f"-{_digest(tables, *choices, add, validation)}")
    if checkpoints is not None:
        settings["checkpoints"] = checkpoints
    try:
        with item_errors(table, items):
            try:
                model.fit(items, y, **settings)
            except (TypeError, ValueError):  # of these items and options, which no rerun would change
                _remove(checkpoints, finetune)
                raise
    except KeyboardInterrupt:
        left = "nothing was written" if checkpoints is None else "rerun the command to resume from the last checkpoint"
        typer.echo(f"\nstopped: {left}", err=True)
        raise typer.Exit(130) from None
    with usage_errors("--out"):
        model.save(out)
    _remove(checkpoints, finetune)
    _report(model, out, 0 if validation else len(items) + len(added[0] if added else []))


def _level(**options: Any) -> dict[str, Any]:
    """The options of a guarantee that the user names; none without its level."""
    level = {name: value for name, value in options.items() if value is not None}
    return level if level.keys() - {"by", "confidence"} else {}


def _categories(table: "Table", features: str, categorical: str) -> set[str]:
    """The columns of features that hold categories: those without numbers, and those that the user names."""
    names, named = ([name.strip() for name in columns.split(",")] for columns in (features, categorical))
    if unknown := [name for name in named if name not in names]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of the --features", param_hint="--categorical")
    return table.categories(names).union(named)


def _added(
    table: "Table", modality: str, column: str, labels: str, separator: str, categories: set[str] | None
) -> tuple[Any, list[list[str]]]:
    """The items and labels of a table; rows that wait for a review are left out."""
    from rsoftmax.labels.models.streams import select

    asked = table.column(ASKED) if ASKED in table.names else [None] * len(table)
    done = [row for row, cell in enumerate(asked) if not cell]
    if waiting := len(table) - len(done):
        typer.echo(f"{table.path}: {waiting} of {len(table)} rows wait for a review and are left out", err=True)
    if not done:
        raise ValueError(f"{table.path}: every row waits for a review; empty the cell {ASKED!r} of rows that are done")
    items, y = read_items(table, modality, column, categories), table.labels(labels, separator)
    return select(items, done), select(y, done)


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
    likely = _likely_separator(names, separator)
    if len(names) > 20 and len(names) > len(y) / 2:
        remedy = f"is {separator!r} the separator?" if likely is None else f"pass --separator {likely!r}"
        raise ValueError(
            f"{table.path}: the column {column!r} contains {len(names)} labels in {len(y)} rows, such as"
            f" {names[0]!r}; {remedy}"
        )
    if likely is not None:
        joined = [name for name in names if likely in name]
        typer.echo(
            f"{len(joined)} of {count_of(len(names), 'label')} contain {likely!r}, such as {joined[0]!r}; if these are"
            f" several labels, pass --separator {likely!r}",
            err=True,
        )
    return names


def _likely_separator(names: list[str], separator: str) -> str | None:
    """What seems to separate labels that were not split: the parts of many names are fewer than these names."""
    for candidate in SEPARATORS:
        joined = [name for name in names if candidate in name]
        parts = {part.strip() for name in joined for part in name.split(candidate)}
        if candidate != separator and len(joined) >= FEWEST_JOINED and len(parts) < len(joined):
            return candidate
    return None


def _rules(path: Path) -> dict[str, Any]:
    """The rules about labels in a file."""
    with usage_errors("--rules"):
        try:
            rules = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: invalid JSON: {error}") from None
        if not isinstance(rules, dict) or not rules or rules.keys() - {"implies", "exclusive"}:
            raise ValueError(f'{path}: expected an object with "implies", "exclusive" or both, got {str(rules)[:60]}')
        return rules


def _report_broken_rules(y: list[list[str]], rules: dict[str, Any]) -> None:
    """Say how many rows of training break a rule: its labels may be in the wrong order."""
    pairs = {
        (child, parent)
        for child, parents in dict(rules.get("implies", ())).items()
        for parent in ([parents] if isinstance(parents, str) else parents)
    }
    groups = list(map(set, rules.get("exclusive", ())))
    broken = sum(
        any(child in labels and parent not in labels for child, parent in pairs)
        or any(len(group.intersection(labels)) > 1 for group in groups)
        for labels in y
    )
    if broken:
        typer.echo(f"{broken} of {count_of(len(y), 'row')} break a rule; predictions never do", err=True)


def _new_model(
    modality: str,
    column: str,
    names: list[str],
    decoding: dict[str, Any],
    encoder: str | None,
    max_tokens: int | None,
    trees: bool,
) -> "BaseLabelModel":
    from rsoftmax import labels
    from rsoftmax.labels.constraints import options_by_index
    from rsoftmax.labels.decoding import Decoder

    with usage_errors(
        "--rules" if decoding.keys() & {"implies", "exclusive"} else "--min-labels, --max-labels, --beta"
    ):
        Decoder(len(names), **options_by_index(names, decoding))
    if modality == "features":
        with usage_errors("--features"):
            kind = labels.ForestModel if trees else labels.TableModel
            return kind([name.strip() for name in column.split(",")], names, **decoding)
    if modality == "text" and encoder is None:
        return labels.LabelModel(names, **decoding)
    source = encoder or IMAGE_ENCODER
    with usage_errors("--encoder"):
        register_sparse_attention()
        model = labels.LabelModel.from_encoder(source, names, max_tokens=max_tokens, **decoding)
        if model.modality != modality:
            raise ValueError(f"{source} encodes {model.modality}s; pass their column as --{model.modality}")
        return model


def _training(finetune: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options of training as ``fit`` takes them."""
    if finetune:
        return {"finetune": True, **options}
    from rsoftmax.labels import TrainingOptions

    return {"training": TrainingOptions(**options)}


def _hidden(out: Path, suffix: str = "") -> Path:
    """The hidden folder beside the model for what an interrupted training needs to resume."""
    out = out.resolve()
    return out.parent / f".{out.name}.training{suffix}"


def _digest(tables: list["Table"], *choices: Any) -> str:
    """What identifies a training: the contents of its files, and its options."""
    from rsoftmax import __version__

    digest = hashlib.sha256(repr((__version__, choices)).encode())
    for table in tables:
        with table.path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _remove(checkpoints: Path | None, finetune: bool) -> None:
    """Delete the checkpoints of a training that is over."""
    if checkpoints is None:
        return
    if finetune:
        from rsoftmax.labels.models.finetuning import remove_checkpoints as remove
    else:
        from rsoftmax.labels.models.stages import remove_stages as remove
    remove(checkpoints)


def _report(model: "BaseLabelModel", out: Path, rows: int) -> None:
    """Print the scores; if they come from all ``rows`` but those that set the review, they are cross-validated."""
    from rsoftmax.labels.decoding import AVERAGES

    scores = model.evaluation
    if "guarantee" in scores:
        uncontrolled = len(scores.get("not_guaranteed", ()))
        exceptions = f", except for {count_of(uncontrolled, 'label')} with too few rows" if uncontrolled else ""
        typer.echo(f"guaranteed: {scores['guarantee']}{exceptions}")
    if model.review_thresholds is not None:
        typer.echo(f"rsoftmax review {out} TABLE --out FOLDER writes the rows that a person should look at")
    scored, apart = scores["num_samples"], (model.config.review or {"num_samples": 0})["num_samples"]
    is_crossed = "guarantee" not in scores and scored == rows - apart
    where = f"cross-validated on {scored} rows" if is_crossed else f"on {scored} held-out rows"
    typer.echo(f"wrote {out}: {count_of(len(model.names), 'label')}; {where}:")
    typer.echo(", ".join(f"{name} F1 {share(scores[name])}" for name in AVERAGES))
