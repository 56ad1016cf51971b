"""Table 1 next to the paper's numbers: scores, and leads of one method over others."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rsoftmax_lab.comparison import BEST_OF_OURS, PAPERS, PREDICTORS, SPARSE, Comparison, Predictor
from rsoftmax_lab.report.mean import Mean
from rsoftmax_lab.report.table import Table

TITLES = {"voc": "VOC", "coco": "COCO"}
SOFTMAX = tuple(Predictor("softmax", f"p0={p0}") for p0 in (0.05, 0.1, 0.15, 0.2, 0.3))
PUBLISHED = dict(
    zip(
        (*SOFTMAX, *SPARSE, PAPERS),
        [(75.05, 71.38), (78.87, 72.29), (79.43, 69.22), (79.07, 64.88), (75.88, 54.76), (66.84, 52.30), (71.91, 65.67),
         (71.35, 64.85), (77.90, 72.56)],
        strict=True,
    )
)  # fmt: skip


class Column(NamedTuple):
    """A column of our numbers: the runs, and the split that they are scored on."""

    title: str
    comparison: Comparison
    split: str


def scores(columns: Sequence[Column]) -> Table:
    """Micro-F1 scores, starting with the paper's methods."""
    several = (*PUBLISHED, *(one for one in PREDICTORS if one not in PUBLISHED))
    return _table("micro-F1", columns, [_Line(one.name, PUBLISHED.get(one), partial(_score, one)) for one in several])


def leads(columns: Sequence[Column]) -> Table:
    """The leads of the paper's method over its rivals, and of our best method over softmax."""
    lines = [
        _Line(f"{one.name}, lead over {what}", _published_lead(one, rivals), partial(_lead, one, rivals))
        for one, rivals, what in (
            (PAPERS, SPARSE, "the best other sparse mapping"),
            (PAPERS, SOFTMAX, "the best softmax threshold"),
            (BEST_OF_OURS, SOFTMAX, "the best softmax threshold"),
        )
    ]
    return _table("lead in micro-F1", columns, lines)


class _Line(NamedTuple):
    """A row of a table: the paper's number for each dataset, if any, and a function for ours."""

    name: str
    published: Sequence[float] | None
    found: Callable[[Comparison, str, str], Mean | None]

    def cells(self, place: int, point: str, columns: Sequence[Column]) -> list[str]:
        """The paper's number and ours on one dataset."""
        means = [self.found(column.comparison, point, column.split) for column in columns]
        return [f"{self.published[place]:.2f}" if self.published else "", *(str(mean or "") for mean in means)]


def _table(head: str, columns: Sequence[Column], lines: Sequence[_Line]) -> Table:
    """The columns that have runs, and the rows that have numbers."""
    heads, rows, known = [head], [[line.name] for line in lines], [False] * len(lines)
    for place, (point, title) in enumerate(TITLES.items()):
        ours = [column for column in columns if point in column.comparison.records]
        heads += [f"{title}: paper", *(column.title for column in ours)] if ours else []
        for number, line in enumerate(lines if ours else ()):
            paper, *others = line.cells(place, point, ours)
            rows[number] += [paper, *others]
            known[number] |= any(others)
    return Table(heads, [row for row, is_known in zip(rows, known, strict=True) if is_known])


def _score(one: Predictor, comparison: Comparison, point: str, split: str) -> Mean | None:
    return comparison.mean(one, [point], split)


def _lead(one: Predictor, rivals: Sequence[Predictor], comparison: Comparison, point: str, split: str) -> Mean | None:
    return comparison.lead(one, rivals, [point], split)


def _published_lead(one: Predictor, rivals: Sequence[Predictor]) -> list[float] | None:
    if one not in PUBLISHED:
        return None
    return [mine - max(theirs) for mine, *theirs in zip(*(PUBLISHED[each] for each in (one, *rivals)), strict=True)]
