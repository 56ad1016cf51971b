"""Parts that the sections of all comparisons share: the table of scores, and the settings of the runs."""

from collections.abc import Iterable, Mapping, Sequence

from rsoftmax.files.card import count_of
from rsoftmax_lab.contest.contestants import Contestant
from rsoftmax_lab.contest.results import Contest
from rsoftmax_lab.contest.training import Point
from rsoftmax_lab.report.markdown import Markdown, listed, markdown
from rsoftmax_lab.report.table import Table, best_in_bold


def table(
    contest: Contest,
    several: Iterable[Contestant],
    groups: Mapping[str, Sequence[Point]],
    split: str,
    average: str = "micro",
) -> Table:
    """A table with contestants as rows and groups of points as columns; the best of each column in bold."""
    means = {one.name: [contest.mean(one, points, split, average) for points in groups.values()] for one in several}
    return Table([f"{average}-F1", *groups], best_in_bold(means))


def made(contest: Contest) -> Markdown:
    """The number of seeds, and the differences from the full experiment."""
    seeds = f"{count_of(len(contest.seeds), 'seed')}."
    part = f" **Not the full experiment**: {markdown(listed(contest.settings))}." if contest.settings else ""
    return Markdown(seeds + part)
