"""Table 1 and Figure 3 in the report."""

from collections.abc import Callable, Iterable
from pathlib import Path

from rsoftmax_lab.contest import tables as scores
from rsoftmax_lab.contest.play import AVERAGES
from rsoftmax_lab.contest.results import (
    BEST_OF_OURS,
    CONTESTANTS,
    ORACLES,
    OURS,
    PAPERS,
    SPARSE,
    Contest,
    Contestant,
    Mean,
)
from rsoftmax_lab.experiments.images import figure3, table1
from rsoftmax_lab.report.section import Claim, Section, Table, render, weighed

TITLES = {"voc": "VOC", "coco": "COCO"}
SOFTMAX = tuple(Contestant("softmax", f"p0={p0}") for p0 in (0.05, 0.1, 0.15, 0.2, 0.3))
PUBLISHED = dict(
    zip(
        (*SOFTMAX, *SPARSE, PAPERS),
        [(75.05, 71.38), (78.87, 72.29), (79.43, 69.22), (79.07, 64.88), (75.88, 54.76), (66.84, 52.30), (71.91, 65.67),
         (71.35, 64.85), (77.90, 72.56)],
        strict=True,
    )
)  # fmt: skip


def section(folder: Path, out: Path, notice: Callable[[str], None]) -> Section | None:
    """Table 1 beside the paper's numbers, what was claimed, the learning curves, and what was fine-tuned."""
    found, tuned = (table1.read(folder, notice, finetune=finetune) for finetune in (False, True))
    shown = found or tuned
    if shown is None:
        return None
    table = _table1(shown)
    pictures = []
    curves = {point: TITLES[point] for point in TITLES if point in shown.paper.rows}
    if curves:
        pictures.append(out / "figure3.png")
        figure3.draw(shown.paper, curves, pictures[0])
    text = render(
        "images/section.md.jinja",
        way="whole network trained" if found is None else "frozen features",
        sets=_sets(shown),
        curves=bool(curves),
        claims=weighed(claims(shown), [TITLES[point] for point in _points(shown)]),
        table=table,
        test_last=_scores(shown.held_out, CONTESTANTS, "test_last"),
        averages=[(average, _scores(shown.held_out, CONTESTANTS, "test", average)) for average in AVERAGES[1:]],
        oracles=_scores(shown.held_out, ORACLES, "test"),
        rates=_rates(shown.held_out),
        tuned=_sets(tuned) if found and tuned else None,
        tuned_table=_scores(tuned.held_out, CONTESTANTS, "test") if found and tuned else None,
    )
    return Section(text, table.rich("Table 1: micro-F1"), pictures)


def _sets(found: table1.Table1) -> list[str]:
    """How the runs of each set were made."""
    lines = []
    for point, settings in found.settings.items():
        made = [f"{name} = {value}" for name, value in settings.items()]
        seeds = len({seed for way in (found.paper, found.held_out) for seed in way.rows.get(point, {})})
        share = f"{100 * found.shares[point]:g} % held out" if found.shares[point] else "nothing held out"
        lines.append(", ".join([f"{TITLES[point]}: {seeds} seed{'s' if seeds != 1 else ''}", share, *made]))
    return lines


def claims(found: table1.Table1) -> list[Claim]:
    """The paper's words on Table 1 and our goals, a number for each set."""

    def claim(text: str, contest: Contest, one: Contestant, others: Iterable[Contestant], split: str,
              least: dict[str, float]) -> Claim:  # fmt: skip
        margins = {point: ahead(contest, one, list(others), point, split) for point in _points(found)}
        holds = [margin.value >= least[point] for point, margin in margins.items() if margin is not None]
        numbers = [scores.signed(margin) for margin in margins.values()]
        return Claim(text, numbers, all(holds) if holds and len(holds) == len(margins) else None)

    both, near = dict.fromkeys(TITLES, 0.0), {"voc": -1.5, "coco": 0.0}
    return [
        claim("Paper: r-softmax is above the other sparse mappings. Here, the paper's way: its lead over the best",
              found.paper, PAPERS, SPARSE, "validation", both),
        claim("The same, chosen on held-out training pictures", found.held_out, PAPERS, SPARSE, "test", both),
        claim("Paper: it is within 1.5 of the best softmax threshold on VOC, and above it on COCO. Here, the paper's"
              " way: its lead over the best", found.paper, PAPERS, SOFTMAX, "validation", near),
        claim("The same, chosen on held-out training pictures", found.held_out, PAPERS, SOFTMAX, "test", near),
        *(claim(f"Ours: {one.title} is at or above the best softmax threshold. Here, held out: its lead",
                found.held_out, one, SOFTMAX, "test", both) for one in OURS),
        claim(f"Ours: {BEST_OF_OURS.title} is at or above everybody else, tuned thresholds included. Here, held out:"
              " its lead", found.held_out, BEST_OF_OURS, [one for one in CONTESTANTS if one not in OURS], "test", both),
    ]  # fmt: skip


def ahead(contest: Contest, one: Contestant, others: list[Contestant], point: str, split: str) -> Mean | None:
    """The lead over whichever other has the best mean: one threshold for all seeds."""
    if point not in contest.rows:
        return None
    means = {other: contest.mean(other, [point], split) for other in others}
    known = {other: mean.value for other, mean in means.items() if mean is not None}
    return contest.margin(one, [max(known, key=lambda other: known[other])], [point], split) if known else None


def _points(found: table1.Table1) -> list[str]:
    return [point for point in TITLES if point in found.paper.rows or point in found.held_out.rows]


def _table1(found: table1.Table1) -> Table:
    """The paper's rows first, then the others; the paper's number, ours in its way, and ours held out."""
    several = (*PUBLISHED, *(one for one in CONTESTANTS if one not in PUBLISHED))
    columns, rows = ["micro-F1"], {one: [scores.name(one)] for one in several}
    for point in _points(found):
        columns += [f"{TITLES[point]}: paper", "here, its way", "here, held out"]
        for one, cells in rows.items():
            published = PUBLISHED.get(one)
            cells.append(f"{published[list(TITLES).index(point)]:.2f}" if published else "")
            for contest, split in ((found.paper, "validation"), (found.held_out, "test")):
                mean = contest.mean(one, [point], split) if point in contest.rows else None
                cells.append(str(mean or ""))
    return Table(columns, [cells for cells in rows.values() if any(cells[2:])])


def _scores(contest: Contest, several: Iterable[Contestant], split: str, average: str = "micro") -> Table:
    groups = {TITLES[point]: [point] for point in TITLES if point in contest.rows}
    return scores.table(contest, several, groups, split, average)


def _rates(contest: Contest) -> Table:
    """Which learning rate and epoch were chosen, seed by seed."""
    points = [point for point in TITLES if point in contest.rows]

    def cell(point: str, one: Contestant) -> str:
        rows = [methods[one.method] for methods in contest.rows[point].values() if one.method in methods]
        rules = [row["rules"][one.rule] for row in rows if one.rule in row["rules"]]
        return ", ".join(f"{rule['lr']:g} ({rule['epoch']})" for rule in rules)

    several = [*SOFTMAX[1:2], *SPARSE, PAPERS, *OURS, Contestant("bce"), Contestant("zlpr")]
    return Table(
        ["learning rate (epoch)", *(TITLES[point] for point in points)],
        [[scores.name(one), *(cell(point, one) for point in points)] for one in several],
    )
