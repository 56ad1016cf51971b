"""Model cards, and how names and numbers from files are shown to people."""

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["aligned", "count_of", "describe_evaluation", "list_names", "model_card", "printable", "readable", "share"]

MAX_LABELS = 200  # lines in the card's table of labels
TEMPLATE = """---
library_name: {library}
tags:
- multi-label-classification
- rsoftmax
---

# Multi-label classifier for {items}

{description}

## Usage

```python
from rsoftmax.labels import {model}

model = {model}.load("path/to/this/folder")
model.predict([{example}])
```

## Evaluation

{evaluation}
"""


def model_card(settings: dict[str, Any]) -> str:
    """The model card that belongs to the settings of a saved model, in Markdown with the metadata that the hub reads.

    Args:
        settings: those in config.json.
    """
    scores = settings.get("evaluation")
    evaluation = describe_evaluation(scores) if scores else "Not evaluated: the model was not trained by `fit`."
    kinds = {"rsoftmax-table": _about_table, "rsoftmax-forest": _about_table, "rsoftmax-words": _about_words}
    about = kinds.get(settings["model_type"], _about_encoder)
    return TEMPLATE.format(**about(settings), evaluation=evaluation)


def _about_table(settings: dict[str, Any]) -> dict[str, str]:
    features, categories = settings["features"], settings.get("categories") or {}
    cells = (repr(categories[name][0]) if name in categories else "0.0" for name in features)
    counts = f"{count_of(len(settings['labels']), 'label')} from {count_of(len(features), 'feature')}"
    return {
        "library": "rsoftmax",
        "model": "ForestModel" if settings["model_type"] == "rsoftmax-forest" else "TableModel",
        "items": "tabular rows",
        "description": f"A multi-label classifier for tabular rows: {counts} ({', '.join(map(printable, features))}).",
        "example": f"[{', '.join(cells)}]",
    }


def _about_words(settings: dict[str, Any]) -> dict[str, str]:
    labels = count_of(len(settings["labels"]), "label")
    return {
        "library": "rsoftmax",
        "model": "LabelModel",
        "items": "texts",
        "description": f"A multi-label classifier for texts: TF-IDF of words and linear classifiers for {labels}.",
        "example": '"a text"',
    }


def _about_encoder(settings: dict[str, Any]) -> dict[str, str]:
    item = "text" if settings.get("max_tokens") or settings.get("windows") else "image"
    labels = count_of(len(settings.get("id2label") or (0, 1)), "label")  # transformers leaves out LABEL_0 and LABEL_1
    encoder = settings["encoder"]["model_type"]
    what = f"a {encoder} encoder with an rsoftmax head for {labels}"
    return {
        "library": "transformers",
        "model": "EncoderModel",
        "items": f"{item}s",
        "description": f"A multi-label classifier for {item}s: {what}.",
        "example": '"image.jpg"' if item == "image" else '"a text"',
    }


def printable(text: str) -> str:
    r"""Escape non-printable characters.

    These are line breaks, tabs, terminal escape sequences, bidirectional controls, invisible spaces, and bytes of a
    file name that are not valid UTF-8.

    Example:
        >>> print(printable("naïve\n\x1b[31mred \u202egnp.exe"))
        naïve\n\x1b[31mred \u202egnp.exe
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def count_of(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1.

    Example:
        >>> count_of(1, "label"), count_of(2, "label")
        ('1 label', '2 labels')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def list_names(names: Iterable[str], most: int = 5) -> str:
    """The first of some names, for a message."""
    names = list(names)
    return ", ".join([*names[:most], "..."] if len(names) > most else names)


def share(value: float | None) -> str:
    """A fraction with three decimals; a dash if it is undefined: NaN, or None in a JSON file.

    Example:
        >>> share(0.5), share(float("nan"))
        ('0.500', '-')
    """
    return "-" if value is None or value != value else f"{value:.3f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first column to the left, the others to the right.

    Example:
        >>> print(aligned([["label", "F1"], ["joy", "0.500"]]))
        label     F1
        joy    0.500
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join([f"{row[0]:{widths[0]}}", *cells[1:]]) for row, cells in zip(rows, lines, strict=True))


def readable(p: float) -> str:
    """A probability in a few digits; only an exact zero is printed as zero.

    Example:
        >>> readable(0.25), readable(2e-5), readable(0.0)
        ('0.250', '2e-05', '0.000')
    """
    return f"{p:.3f}" if p >= 0.001 or p == 0 else f"{p:.0e}"


def describe_evaluation(scores: dict[str, Any]) -> str:
    """An evaluation as tables in Markdown."""
    from rsoftmax.labels.evaluation import headline  # needs torch, which takes a second to import

    overall = [f"| {title} | {share(value)} |" for title, value in headline(scores, {}).items()]
    labels = ["| label | precision | recall | F1 | support |", "| --- | --- | --- | --- | --- |"]
    for label in scores["labels"][:MAX_LABELS]:
        name = printable(label["label"]).replace("\\", "\\\\").replace("|", "\\|")
        shares = " | ".join(share(label[score]) for score in ("precision", "recall", "f1"))
        labels.append(f"| {name} | {shares} | {label['support']} |")
    rows = count_of(scores["num_samples"], "row")
    note = f"Held-out predictions for {rows}, on which calibration and thresholds were fitted as well."
    if "guarantee" in scores:
        note = f"Guaranteed: {scores['guarantee']}, by a threshold that was set on {rows} held out from training."
        if uncontrolled := scores.get("not_guaranteed"):
            note += f" Too few rows for a guarantee: {', '.join(map(printable, uncontrolled))}."
    return "\n\n".join([note, "\n".join(["| metric | value |", "| --- | --- |", *overall]), "\n".join(labels)])
