"""The report's section on classifiers with default settings."""

from pathlib import Path

from rsoftmax.labels import AVERAGES
from rsoftmax.labels.models.card import count_of
from rsoftmax_lab.comparison import Comparison
from rsoftmax_lab.experiments.users import figure
from rsoftmax_lab.experiments.users.grid import Run
from rsoftmax_lab.experiments.users.methods import EXPECTED_F1, TUNED, TUNED_CV
from rsoftmax_lab.experiments.users.results import PREDICTORS, goals, ranks, title
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.mean_ranks import Ranks
from rsoftmax_lab.report.table import Table, best_in_bold, weighed
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trials

CALIBRATION = {"brier": "Brier score", "ece": "expected calibration error"}


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """Tables, goals, and mean ranks with their figure."""
    comparison = Comparison.of(found["users"].alike(notice))
    ranked: dict[str, Ranks] = {
        average: known for average in AVERAGES if (known := ranks(comparison, average)) is not None
    }
    images = [out / "users-ranks.png"] if ranked else []
    for image in images:
        figure.draw(ranked, {title(one) for one in PREDICTORS if one.rule == EXPECTED_F1}, image)
    f1 = {average: _table(comparison, average) for average in AVERAGES}
    text = render(
        __package__,
        made=comparison.describe(),
        seeds=[f"{point}: {count_of(len(comparison.records[point]), 'seed')}" for point in comparison.points()],
        goals=weighed(goals(comparison), comparison.points()),
        ranks=_ranks(ranked) if ranked else None,
        p_values=[(average, f"{known.p_value:.1g}") for average, known in ranked.items()],
        f1=list(f1.items()),
        calibration=[(name, _table(comparison, measure)) for measure, name in CALIBRATION.items()],
    )
    return Section(text, f1["micro"].rich("Micro-F1 on test, default settings"), images)


def _table(comparison: Comparison, measure: str) -> Table:
    """A table with predictors as rows and datasets as columns; rules with the same marginals share a row."""
    named = {title(one): one for one in PREDICTORS if measure in AVERAGES or one.rule not in (TUNED, TUNED_CV)}
    means = {
        name: [comparison.mean(one, [point], "test", measure) for point in comparison.points()]
        for name, one in named.items()
    }
    heading = f"{measure}-F1" if measure in AVERAGES else f"{CALIBRATION[measure]}, per cent"
    return Table([heading, *comparison.points()], best_in_bold(means, lowest=measure not in AVERAGES))


def _ranks(ranked: dict[str, Ranks]) -> Table:
    """Mean ranks, sorted by micro-F1."""
    names = next(iter(ranked.values())).means
    return Table(
        ["mean rank", *(f"{average}-F1" for average in ranked)],
        [[name, *(f"{known.means[name]:.1f}" for known in ranked.values())] for name in names],
    )
