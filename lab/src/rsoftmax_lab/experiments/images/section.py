"""The report's section on Table 1 and Figure 3."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rsoftmax.labels import AVERAGES
from rsoftmax.labels.models.card import count_of
from rsoftmax_lab.comparison import BEST_OF_OURS, ORACLES, OURS, PAPERS, PREDICTORS, SPARSE, Comparison, Predictor
from rsoftmax_lab.experiments.images import figure, published
from rsoftmax_lab.experiments.images.grid import WAYS, Run
from rsoftmax_lab.experiments.images.published import SOFTMAX, TITLES, Column
from rsoftmax_lab.experiments.images.results import Table1, table1
from rsoftmax_lab.report.markdown import listed, render
from rsoftmax_lab.report.mean import signed
from rsoftmax_lab.report.table import Claim, Table, weighed
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trials

TRAINED = {"frozen": "Frozen features", "last": "Trained last stages", "whole": "Fully trained network"}


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """Table 1 next to the paper's numbers, claims, learning curves, and the other ways of training."""
    ways = {way: one for way in WAYS if (one := table1(found, notice, way)).settings}
    way, shown = next(iter(ways.items()))
    others = [_other(ways[other], other, out) for other in ways if other != way]
    table = published.scores(_chosen(shown))
    curves = _curves(shown, out / "figure3.png")
    text = render(
        __package__,
        way=TRAINED[way],
        sets=_sets(shown),
        curves=[path.name for path in curves],
        claims=weighed(claims(shown), [TITLES[point] for point in _points(shown)]),
        table=table,
        test_last=_scores(shown.held_out, PREDICTORS, "test_last"),
        averages=[(average, _scores(shown.held_out, PREDICTORS, "test", average)) for average in AVERAGES[1:]],
        oracles=_scores(shown.held_out, ORACLES, "test"),
        learning_rates=_learning_rates(shown.held_out),
        others=others,
    )
    figures = [*curves, *(path for other in others for path in other.curves)]
    return Section(text, table.rich("Table 1: micro-F1"), figures)


class Other(NamedTuple):
    """The subsection on another way of training."""

    way: str
    title: str
    sets: list[str]
    table: Table
    leads: Table
    learning_rates: Table
    curves: list[Path]


def _other(found: Table1, way: str, out: Path) -> Other:
    columns = [*_chosen(found), Column("after the last epoch", found.paper, "test_last")]
    learning_rates = _learning_rates(found.paper if found.paper.records else found.held_out)
    curves = _curves(found, out / f"figure3-{way}.png")
    table, leads = published.scores(columns), published.leads(columns)
    return Other(way, TRAINED[way], _sets(found), table, leads, learning_rates, curves)


def _curves(found: Table1, path: Path) -> list[Path]:
    """Draw the learning curves on val; empty if all runs select on held-out images."""
    titles = {point: title for point, title in TITLES.items() if point in found.paper.records}
    if titles:
        figure.draw(found.paper, titles, path)
    return [path] if titles else []


def _sets(table: Table1) -> list[str]:
    """The settings of the runs on each dataset."""
    lines = []
    for point, settings in table.settings.items():
        seeds = {seed for way in (table.paper, table.held_out) for seed in way.records.get(point, {})}
        share = f"{100 * table.shares[point]:g} % held out" if table.shares[point] else "nothing held out"
        made = [f"{TITLES[point]}: {count_of(len(seeds), 'seed')}", share, listed(settings)]
        lines.append(", ".join(part for part in made if part))
    return lines


def claims(found: Table1) -> list[Claim]:
    """The paper's claims about Table 1 and our goals, with a number for each dataset."""

    def claim(text: str, comparison: Comparison, one: Predictor, others: Sequence[Predictor], split: str,
              least: dict[str, float]) -> Claim:  # fmt: skip
        margins = {point: comparison.lead(one, others, [point], split) for point in _points(found)}
        holds = [margin.value >= least[point] for point, margin in margins.items() if margin is not None]
        numbers = [signed(margin) for margin in margins.values()]
        return Claim(text, numbers, all(holds) if holds and len(holds) == len(margins) else None)

    both, near = dict.fromkeys(TITLES, 0.0), {"voc": -1.5, "coco": 0.0}
    return [
        claim("Paper: r-softmax is above the other sparse mappings. Here, the paper's protocol: its lead over the best",
              found.paper, PAPERS, SPARSE, "validation", both),
        claim("The same, selected on held-out training images", found.held_out, PAPERS, SPARSE, "test", both),
        claim("Paper: it is within 1.5 of the best softmax threshold on VOC, and above it on COCO. Here, the paper's"
              " protocol: its lead over the best", found.paper, PAPERS, SOFTMAX, "validation", near),
        claim("The same, selected on held-out training images", found.held_out, PAPERS, SOFTMAX, "test", near),
        *(claim(f"Ours: {one.title} is at or above the best softmax threshold. Here, held out: its lead",
                found.held_out, one, SOFTMAX, "test", both) for one in OURS),
        claim(f"Ours: {BEST_OF_OURS.title} is at or above all others, including tuned thresholds. Here, held out:"
              " its lead", found.held_out, BEST_OF_OURS, [one for one in PREDICTORS if one not in OURS], "test", both),
    ]  # fmt: skip


def _points(found: Table1) -> list[str]:
    return [point for point in TITLES if point in found.paper.records or point in found.held_out.records]


def _chosen(found: Table1) -> list[Column]:
    return [Column("here, its protocol", found.paper, "validation"), Column("here, held out", found.held_out, "test")]


def _scores(comparison: Comparison, several: Iterable[Predictor], split: str, average: str = "micro") -> Table:
    groups = {TITLES[point]: [point] for point in TITLES if point in comparison.records}
    return comparison.table(several, groups, split, average)


def _learning_rates(comparison: Comparison) -> Table:
    """The selected learning rate and epoch of each seed."""
    points = [point for point in TITLES if point in comparison.records]

    def cell(point: str, one: Predictor) -> str:
        rows = [methods[one.method] for methods in comparison.records[point].values() if one.method in methods]
        rules = [row["rules"][one.rule] for row in rows if one.rule in row["rules"]]
        return ", ".join(f"{rule['lr']:g} ({rule['epoch']})" for rule in rules)

    several = [*SOFTMAX[1:2], *SPARSE, PAPERS, *OURS, Predictor("bce"), Predictor("zlpr")]
    return Table(
        ["learning rate (epoch)", *(TITLES[point] for point in points)],
        [cells for one in several if any((cells := [one.name, *(cell(point, one) for point in points)])[1:])],
    )
