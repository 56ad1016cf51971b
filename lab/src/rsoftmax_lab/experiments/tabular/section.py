"""The real sets in the report."""

from collections.abc import Callable, Iterable
from pathlib import Path

from rsoftmax_lab.contest import results
from rsoftmax_lab.contest import tables as scores
from rsoftmax_lab.contest.play import AVERAGES
from rsoftmax_lab.contest.results import BEST_OF_OURS, CONTESTANTS, ORACLES, Contestant
from rsoftmax_lab.experiments.tabular.run import Run
from rsoftmax_lab.report.section import Section, Table, render

WORST_FIT = 0.5  # "within half a point of the best"


def section(folder: Path, out: Path, notice: Callable[[str], None]) -> Section | None:
    """Tables of scores, and where ours is the best or close to it."""
    contest = results.read(folder / "tabular.jsonl", Run, notice)
    if contest is None:
        return None

    def table(several: Iterable[Contestant], split: str, average: str = "micro") -> Table:
        return scores.table(contest, several, {name: [name] for name in contest.points()}, split, average)

    ahead = {name: scores.lead(contest, [name]) for name in contest.points()}
    test = table(CONTESTANTS, "test")
    text = render(
        "tabular/section.md.jinja",
        settings=contest.settings,
        seeds=len(contest.seeds),
        near=[name for name, margin in ahead.items() if margin is not None and margin.value >= -WORST_FIT],
        sets=len(ahead),
        test=test,
        validation=table(CONTESTANTS, "validation"),
        averages=[(average, table(CONTESTANTS, "test", average)) for average in AVERAGES[1:]],
        oracles=table(ORACLES, "test"),
        margins=Table(
            ["set", f"{BEST_OF_OURS.title}, ahead of the best other"],
            [[name, scores.signed(margin)] for name, margin in ahead.items()],
        ),
    )
    return Section(text, test.rich("Micro-F1 on test"), [])
