"""The model card of a saved model: what it is, how it is used, how good it is."""

from typing import Any

from rsoftmax.printable import printable, share

__all__ = ["model_card"]

MOST = 200  # labels that are listed one by one
HEAD = """---
library_name: {library}
tags:
- multi-label
- rsoftmax
---

# Labels for {items}

{what}

## Use

```python
{use}
```

## Scores
"""


def model_card(library: str, items: str, what: str, use: str, scores: dict[str, Any] | None) -> str:
    """Markdown, with the settings that the hub reads on top.

    Args:
        library: the library whose format the folder has.
        items: what gets labels.
        what: a sentence about the model.
        use: lines of Python.
        scores: :class:`rsoftmax.multilabel.Evaluation` as a dictionary; None: not measured.
    """
    head = HEAD.format(library=library, items=items, what=what, use=use)
    return f"{head}\n{_scores(scores) if scores else 'Not measured: the model was not trained by `fit`.'}\n"


def _scores(found: dict[str, Any]) -> str:
    whole = [(f"{name} F1", found[name]) for name in ("micro", "macro", "samples")]
    whole += [(f"precision at {k}", value) for k, value in found["precision_at"].items()]
    whole += [("Brier score", found["brier"]), ("calibration error", found["calibration_error"])]
    lines = ["| score | |", "| --- | --- |", *(f"| {title} | {value:.3f} |" for title, value in whole)]
    labels = ["| label | precision | recall | F1 | rows |", "| --- | --- | --- | --- | --- |"]
    for one in found["labels"][:MOST]:
        shares = " | ".join(share(one[name]) for name in ("precision", "recall", "f1"))
        labels.append(f"| {_cell(one['label'])} | {shares} | {one['rows']} |")
    of = f"Of {found['rows']} rows that were not trained on; calibration and cuts were learned from them."
    return "\n\n".join([of, "\n".join(lines), "\n".join(labels)])


def _cell(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("|", "\\|")
