"""The mappings' ratios to torch.softmax on normal logits: a table for docs/performance.md, and a figure."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rsoftmax_lab.bench.mappings import KINDS, OTHERS, SHAPES
from rsoftmax_lab.bench.rows import Row
from rsoftmax_lab.bench.tables import markdown
from rsoftmax_lab.bench.timing import MODES

COLOURS = {
    "softmax": "#5fa8d3",
    "t_softmax t=2": "#2f6690",
    "r_softmax r=0.1": "#e9a03b",
    "r_softmax r=0.5": "#d1603d",
    "r_softmax r=0.9": "#8f2d56",
    "sparsemax": "#3a7d44",
    "entmax15": "#7a6c5d",
    "quantile formula r=0.5": "#999999",
    "entmax.sparsemax": "#bbbbbb",
    "entmax.entmax15": "#d9c9b0",
}
"""The rows shown, by method and parameter, in this order."""


def headline(rows: Sequence[Row]) -> str:
    """A Markdown table of forward / forward+backward ratios, one thread."""
    shown = {(_name(row), row["rows"], row["n"], row["mode"]): row for row in _shown(rows) if row["threads"] == 1}
    shapes = [shape for shape in SHAPES if shape in {(row["rows"], row["n"]) for row in rows}]
    lines = []
    for name in COLOURS:
        pairs = [[shown.get((name, *shape, mode)) for mode in MODES] for shape in shapes]
        if any(forward for forward, _ in pairs):
            lines.append([f"`{name}`", *(" / ".join(map(_ratio, pair)) for pair in pairs)])
    return markdown(["one thread", *(f"{rows} x {n}" for rows, n in shapes)], lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot ratios by shape, forward and forward+backward, for each thread count."""
    threads = sorted({row["threads"] for row in rows})
    shapes = sorted({(row["n"], row["rows"]) for row in rows})
    figure = Figure(figsize=(12, 3.6 * len(threads)), layout="constrained")
    axes = figure.subplots(len(threads), len(MODES), sharex=True, sharey=True, squeeze=False)
    for (count, mode), axis in zip(product(threads, MODES), axes.flat, strict=True):
        _draw_mode(axis, [row for row in _shown(rows) if (row["threads"], row["mode"]) == (count, mode)], shapes)
        axis.set_title(f"{mode}, {count} thread{'s' * (count > 1)}", fontsize=10)
    axes[0, 0].legend(fontsize=7, ncols=2)
    figure.supylabel("time / time of torch.softmax", fontsize=9)
    figure.supxlabel(f"rows x row length. {rows[0].machine}, torch {rows[0].torch}", fontsize=8)
    figure.savefig(path, dpi=120)


def _draw_mode(axis: Axes, rows: Sequence[Row], shapes: list[tuple[int, int]]) -> None:
    axis.axhline(1, color="black", linewidth=0.8)
    for name, colour in COLOURS.items():
        mine = sorted((row for row in rows if _name(row) == name), key=lambda row: (row["n"], row["rows"]))
        places = [shapes.index((row["n"], row["rows"])) for row in mine]
        spreads = [row.spread for row in mine]
        bars = [[s.ratio - s.ratio_low for s in spreads], [s.ratio_high - s.ratio for s in spreads]]
        middle = [s.ratio for s in spreads]
        axis.errorbar(places, middle, yerr=bars, color=colour, marker="o", markersize=3, label=name)
    axis.set_yscale("log")
    axis.set_xticks(range(len(shapes)), [f"{rows}\nx {n}" for n, rows in shapes], fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def _shown(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == KINDS[0] and row["kernels"] not in OTHERS]


def _name(row: Row) -> str:
    return f"{row['method']} {row['parameter']}".strip()


def _ratio(row: Row | None) -> str:
    return f"{row.spread.ratio:.2f}" if row else "-"
