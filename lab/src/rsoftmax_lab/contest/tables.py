"""Tables of a contest's scores."""

from collections.abc import Iterable

from rsoftmax_lab.contest.play import METHODS, Point
from rsoftmax_lab.contest.results import BEST_OF_OURS, OTHERS, Contest, Contestant, Mean
from rsoftmax_lab.report.section import Table


def lead(contest: Contest, points: list[Point]) -> Mean | None:
    """How far our best is ahead on test of whoever has the best mean there.

    Not of the best at each point: that one would be put together by looking at test.
    """
    means = {one: contest.mean(one, points, "test") for one in OTHERS}
    known = {one: mean.value for one, mean in means.items() if mean is not None}
    return contest.margin(BEST_OF_OURS, [max(known, key=lambda one: known[one])], points, "test") if known else None


def table(
    contest: Contest, several: Iterable[Contestant], groups: dict[str, list[Point]], split: str, average: str = "micro"
) -> Table:
    """Contestants down, groups of points across; the best of each column, and what equals it as shown, in bold."""
    means = {one: [contest.mean(one, points, split, average) for points in groups.values()] for one in several}
    best = [max((m.value for m in column if m), default=0.0) for column in zip(*means.values(), strict=True)]

    def cell(mean: Mean | None, top: float) -> str:
        if mean is None:
            return ""
        return f"**{mean}**" if f"{mean.value:.2f}" == f"{top:.2f}" else str(mean)

    rows = [
        [name(one), *(cell(mean, top) for mean, top in zip(line, best, strict=True))]
        for one, line in means.items()
        if any(line)
    ]
    return Table([f"{average}-F1", *groups], rows)


def signed(mean: Mean | None) -> str:
    """A difference."""
    return "" if mean is None else f"{'+' if mean.value >= 0 else ''}{mean}"


def name(one: Contestant) -> str:
    """Its title, and whose it is."""
    return f"{one.title} (ours)" if METHODS[one.method].ours and one.rule != "tuned" else one.title
