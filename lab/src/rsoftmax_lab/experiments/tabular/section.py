"""The report's section on the real datasets."""

from collections.abc import Iterable
from pathlib import Path

from rsoftmax.labels import AVERAGES
from rsoftmax_lab.comparison import BEST_OF_OURS, ORACLES, OTHERS, PREDICTORS, Comparison, Predictor
from rsoftmax_lab.experiments.tabular.grid import Run
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.mean import signed
from rsoftmax_lab.report.table import Table
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trials

NEAR = 0.5  # points of F1 below the best


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """Tables of scores, and the datasets where ours is the best or close to it."""
    comparison = Comparison.of(found["tabular"].alike(notice))

    def table(several: Iterable[Predictor], split: str, average: str = "micro") -> Table:
        return comparison.table(several, {name: [name] for name in comparison.points()}, split, average)

    leads = {name: comparison.lead(BEST_OF_OURS, OTHERS, [name], "test") for name in comparison.points()}
    test = table(PREDICTORS, "test")
    text = render(
        __package__,
        made=comparison.describe(),
        near=[name for name, lead in leads.items() if lead is not None and lead.value >= -NEAR],
        sets=len(leads),
        test=test,
        validation=table(PREDICTORS, "validation"),
        averages=[(average, table(PREDICTORS, "test", average)) for average in AVERAGES[1:]],
        oracles=table(ORACLES, "test"),
        margins=Table(
            ["set", f"{BEST_OF_OURS.title}, lead over the best other"],
            [[name, signed(lead)] for name, lead in leads.items()],
        ),
    )
    return Section(text, test.rich("Micro-F1 on test"), [])
