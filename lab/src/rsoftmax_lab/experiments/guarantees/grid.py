"""The grid: one run per dataset, and what is guaranteed in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from rsoftmax.labels.risk_control import By
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun
from rsoftmax_lab.running.schema import Schema

TEXTS = "goemotions"
OURS, MAPIE, HOEFFDING = "rsoftmax", "MAPIE", "MAPIE, Hoeffding"
METHODS = (OURS, MAPIE, HOEFFDING)


class Guarantee(NamedTuple):
    """What is guaranteed: recall or precision, its level, for what, and with which confidence."""

    what: Literal["recall", "precision"]
    level: float
    by: By
    confidence: float | None

    @property
    def title(self) -> str:
        """The guarantee in words."""
        of = {"samples": "of a row", "micro": "of all entries", "label": "of every label"}[self.by]
        sure = "in expectation" if self.confidence is None else f"with confidence {self.confidence:g}"
        return f"{self.what} {of} {self.level:g}, {sure}"

    @property
    def peers(self) -> tuple[str, ...]:
        """The methods of MAPIE that can express it: means over rows only."""
        if self.by != "samples":
            return ()
        return (MAPIE, HOEFFDING) if self.what == "recall" and self.confidence is not None else (MAPIE,)


GUARANTEES: dict[str, Guarantee] = {
    "recall": Guarantee("recall", 0.9, "samples", None),
    "recall_micro": Guarantee("recall", 0.9, "micro", None),
    "recall_label": Guarantee("recall", 0.9, "label", None),
    "recall_sure": Guarantee("recall", 0.9, "samples", 0.9),
    "precision": Guarantee("precision", 0.6, "samples", 0.9),
    "precision_micro": Guarantee("precision", 0.6, "micro", 0.9),
}
NUMBERS = schema.each(schema.maybe(schema.number))
SPLITS = schema.fields({"level": NUMBERS, "size": NUMBERS, "controlled": NUMBERS})


@dataclass(frozen=True)
class Run(BaseRun):
    """All guarantees on one dataset."""

    PLACE: ClassVar[tuple[str, ...]] = ("dataset",)
    REQUIRED: ClassVar[Mapping[str, Schema]] = {
        "rows": schema.number,
        "labels": schema.number,
        "guarantees": schema.each(schema.each(SPLITS)),
    }

    dataset: str
    resplits: int = 100


def grid(datasets: Sequence[str], resplits: int = 100) -> list[Run]:
    """A run for each dataset."""
    return [Run(dataset, resplits) for dataset in datasets]


def quick_grid(datasets: Sequence[str], resplits: int = 5) -> list[Run]:
    """A few resplits."""
    return grid(datasets, resplits)
