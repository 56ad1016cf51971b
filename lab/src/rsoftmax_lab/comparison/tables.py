"""Parts that the sections of all comparisons share: the table of scores, and the settings of the runs."""

from collections.abc import Iterable, Mapping, Sequence

from rsoftmax.labels.models.card import count_of
from rsoftmax_lab.comparison.predictors import Predictor
from rsoftmax_lab.comparison.results import Comparison
from rsoftmax_lab.comparison.training import Point
from rsoftmax_lab.report.markdown import Markdown, listed, markdown
from rsoftmax_lab.report.table import Table, best_in_bold


def table(
    comparison: Comparison,
    several: Iterable[Predictor],
    groups: Mapping[str, Sequence[Point]],
    split: str,
    average: str = "micro",
) -> Table:
    """A table with predictors as rows and groups of points as columns; the best of each column in bold."""
    means = {one.name: [comparison.mean(one, points, split, average) for points in groups.values()] for one in several}
    return Table([f"{average}-F1", *groups], best_in_bold(means))


def made(comparison: Comparison) -> Markdown:
    """The number of seeds, and the differences from the full experiment."""
    seeds = f"{count_of(len(comparison.seeds), 'seed')}."
    part = f" **Not the full experiment**: {markdown(listed(comparison.settings))}." if comparison.settings else ""
    return Markdown(seeds + part)
