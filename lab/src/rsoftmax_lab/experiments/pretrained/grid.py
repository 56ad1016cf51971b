"""The grid of pretrained models."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rsoftmax.registry import MAPPINGS
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun

SETTINGS = (
    "t_softmax t=8 edge=0",
    "t_softmax t=6 edge=0",
    "t_softmax t=5 edge=0",
    "t_softmax t=6 edge=1",
    "t_softmax t=6 edge=inf",
    "r_softmax r=0.5 edge=0",
    "r_softmax r=0.75 edge=0",
    "r_softmax r=0.9 edge=0",
    "r_softmax r=0.5 edge=inf",
    "k_softmax k=64 edge=0",
    "softmax",
)
"""``edge=inf`` is the paper's mapping; softmax is dense attention with this library's kernel."""

CALIBRATED = "calibrated"
MEASURED = schema.fields(
    {"error": schema.number, "zeros": schema.share, "time": schema.positive},
    {"standard_error": schema.maybe(schema.number), "perplexity": schema.maybe(schema.number)},
)


@dataclass(frozen=True)
class Run(BaseRun):
    """One model on texts of one kind and one length.

    Attributes:
        model: the model's name.
        texts: the name of the file of texts.
        length: the number of tokens per text.
        samples: the number of texts.
        settings: the arguments of ``set_attention``, in words.
        calibrated: the names of calibrated folders.
    """

    PLACE = ("model", "texts", "length")
    REQUIRED: ClassVar = {"metric": schema.of_type(str), "texts": schema.number, "settings": schema.each(MEASURED)}

    model: str
    texts: str
    length: int = 1024
    samples: int = 4
    settings: tuple[str, ...] = SETTINGS
    calibrated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for words in self.settings:
            arguments(words)


def arguments(words: str) -> dict[str, Any]:
    """The arguments of ``set_attention``.

    Example:
        >>> arguments("t_softmax t=6 edge=0")
        {'mapping': 't_softmax', 't': 6.0, 'edge': 0.0}
    """
    mapping, *given = words.split()
    if mapping not in MAPPINGS:
        raise ValueError(f"setting: there is no mapping {mapping!r}; use one of {', '.join(MAPPINGS)}")
    try:
        return {"mapping": mapping, **{name: float(value) for name, value in (word.split("=") for word in given)}}
    except ValueError:
        raise ValueError(f"setting: expected words like 't_softmax t=6 edge=0', got {words!r}") from None


def text_name(path: Path) -> str:
    """The name of a file in rows, with a hash of its content."""
    return f"{path.stem}@{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"


def grid(model: str, texts: Sequence[str], lengths: Sequence[int], **rest: Any) -> list[Run]:
    """Every kind of text at every length."""
    return [Run(model, name, length, **rest) for length in lengths for name in texts]


def quick_grid(model: str, texts: Sequence[str], lengths: Sequence[int], **rest: Any) -> list[Run]:
    """A grid with few settings on short texts."""
    small = {"samples": 2, "settings": ("t_softmax t=6 edge=0", "softmax")}
    return grid(model, texts, [min(64, min(lengths))], **{**small, **rest})
