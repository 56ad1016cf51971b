"""The grid of the text experiment."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rsoftmax.labels import AVERAGES
from rsoftmax_lab.experiments.text.rules import RULES
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun

WAYS = ("tfidf", "frozen", "finetuned")
SCORES = schema.fields(dict.fromkeys(AVERAGES, schema.number))


@dataclass(frozen=True)
class Run(BaseRun):
    """One training.

    Attributes:
        way: "tfidf": logistic regression on uni- and bigrams; "frozen": a head on the frozen encoder; "finetuned":
            encoder and head.
        epochs, lr, batch_size: the settings of fine-tuning.
        max_tokens: texts are truncated to this many tokens.
        rows: the number of rows of each split; None for all.
        model: the encoder's name.
        data: the name of the dataset's folder.
    """

    PLACE = ("data",)
    VARIED = ("way", "seed", "model")
    REQUIRED: ClassVar = {
        "seconds": schema.number,
        "rules": schema.fields({rule: schema.fields({"dev": SCORES, "test": SCORES}) for rule in RULES}),
    }

    way: str
    seed: int = 0
    epochs: int = 3
    lr: float = 1e-4
    batch_size: int = 32
    max_tokens: int = 64
    rows: int | None = None
    model: str = ""
    data: str = "goemotions"

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {self.way!r}")


def grid(model: str, ways: tuple[str, ...] = WAYS, seeds: int = 1, **rest: Any) -> list[Run]:
    """Every way with every seed; TF-IDF is deterministic and run once."""
    return [
        Run(way, seed, model="" if way == "tfidf" else model, **rest)
        for seed in range(seeds)
        for way in ways
        if way != "tfidf" or seed == 0
    ]


def quick_grid(model: str, ways: tuple[str, ...] = WAYS, seeds: int = 1, **rest: Any) -> list[Run]:
    """A grid with few rows and one epoch."""
    return grid(model, ways, seeds, **{"epochs": 1, **rest, "rows": 200})
