"""Model cards, and how names and numbers from files are shown to people."""

import hashlib
import re
from typing import Any

__all__ = ["count_of", "is_unedited", "model_card", "printable", "readable", "share"]

MAX_LABELS = 200  # rows in the card's table of labels
TEMPLATE = """---
library_name: {library}
tags:
- multi-label-classification
- rsoftmax
---

# {title}

{description}

## Usage

```python
{usage}
```

## Evaluation

{evaluation}
"""
MARK = re.compile(r"\n<!-- rsoftmax ([0-9a-f]{64}): saving again replaces this card unless it was edited -->\n\Z")


def model_card(library: str, title: str, description: str, usage: str, evaluation: dict[str, Any] | None) -> str:
    """Write a model card in Markdown, with the metadata that the Hugging Face Hub reads.

    Args:
        library: the library that loads the folder.
        title: its headline.
        description: a sentence about the model.
        usage: lines of Python.
        evaluation: :meth:`rsoftmax.labels.Evaluation.as_dict`; None: not evaluated.
    """
    found = _evaluation(evaluation) if evaluation else "Not evaluated: the model was not trained by `fit`."
    text = TEMPLATE.format(library=library, title=title, description=description, usage=usage, evaluation=found)
    return f"{text}\n<!-- rsoftmax {_digest(text)}: saving again replaces this card unless it was edited -->\n"


def is_unedited(card: str) -> bool:
    """Whether a text is a model card as :func:`model_card` wrote it.

    Example:
        >>> card = model_card("rsoftmax", "Labels", "A model.", "pass", None)
        >>> is_unedited(card), is_unedited(card.replace("A model", "My model")), is_unedited("# My model")
        (True, False, False)
    """
    mark = MARK.search(card)
    return mark is not None and _digest(card[: mark.start()]) == mark[1]


def printable(text: str) -> str:
    r"""Escape non-printable characters.

    These are line breaks, tabs, terminal escape sequences, bidirectional controls, invisible spaces, and bytes of a
    file name that are not valid UTF-8.

    Example:
        >>> print(printable("naïve\n\x1b[31mred \u202egnp.exe"))
        naïve\n\x1b[31mred \u202egnp.exe
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def count_of(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1.

    Example:
        >>> count_of(1, "label"), count_of(2, "label")
        ('1 label', '2 labels')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def share(value: float | None) -> str:
    """A fraction with three decimals; a dash if it is undefined: NaN, or None in a JSON file.

    Example:
        >>> share(0.5), share(float("nan"))
        ('0.500', '-')
    """
    return "-" if value is None or value != value else f"{value:.3f}"


def readable(p: float) -> str:
    """A probability in a few digits; only an exact zero is printed as zero.

    Example:
        >>> readable(0.25), readable(2e-5), readable(0.0)
        ('0.250', '2e-05', '0.000')
    """
    return f"{p:.3f}" if p >= 0.001 or p == 0 else f"{p:.0e}"


def _evaluation(found: dict[str, Any]) -> str:
    whole = [(f"{name} F1", found[name]) for name in ("micro", "macro", "samples")]
    whole += [(f"precision at {k}", value) for k, value in found["precision_at"].items()]
    whole += [("Brier score", found["brier"]), ("calibration error", found["calibration_error"])]
    lines = ["| metric | value |", "| --- | --- |", *(f"| {title} | {share(value)} |" for title, value in whole)]
    labels = ["| label | precision | recall | F1 | support |", "| --- | --- | --- | --- | --- |"]
    for one in found["labels"][:MAX_LABELS]:
        shares = " | ".join(share(one[name]) for name in ("precision", "recall", "f1"))
        labels.append(f"| {_cell(one['label'])} | {shares} | {one['support']} |")
    rows = f"{found['num_samples']} rows"
    note = f"Held-out predictions for {rows}, on which calibration and thresholds were fitted as well."
    if "guarantee" in found:
        note = f"Guaranteed: {found['guarantee']}, by a threshold that was set on {found['num_samples']} held-out rows."
        if lacking := found.get("not_guaranteed"):
            note += f" Too few rows for a guarantee: {', '.join(map(printable, lacking))}."
    return "\n\n".join([note, "\n".join(lines), "\n".join(labels)])


def _cell(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("|", "\\|")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
