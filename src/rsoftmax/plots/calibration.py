"""The picture of calibration curves: what happened against what was said, and how many entries that rests on."""

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rsoftmax.multilabel import CalibrationCurve
from rsoftmax.printable import printable

COLOURS = ("#2f6690", "#c44536", "#2d8659", "#f08a24", "#6a4c93", "#555555")


def draw_calibration(curves: Mapping[str, CalibrationCurve], path: Path) -> None:
    """Draw curves by their names, and save them in the format that the path's ending names."""
    figure = Figure(figsize=(5.2, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    above.plot([0, 1], [0, 1], color="#aaaaaa", linewidth=1)
    for place, (name, curve) in enumerate(curves.items()):
        _draw(above, below, curve, printable(name).replace("$", r"\$"), COLOURS[place % len(COLOURS)])
    above.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="how often the label was there")
    figure.legend(fontsize=9, frameon=False, loc="outside upper left")
    below.set(yscale="log", ylim=_decades(curves), xlabel="marginal", ylabel="entries")
    below.minorticks_off()
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _decades(curves: Mapping[str, CalibrationCurve]) -> tuple[float, float]:
    """From a power of ten below all counts to one above them."""
    counts = [count for curve in curves.values() for count in curve.entries.tolist()]
    return 10 ** math.floor(math.log10(min(counts))), 10 ** (math.floor(math.log10(max(counts))) + 1)


def _draw(above: Axes, below: Axes, curve: CalibrationCurve, name: str, colour: str) -> None:
    """One curve; bars are two standard errors of a share that rests on so many entries."""
    said, happened, entries = (values.double().numpy() for values in curve[:3])
    spread = 2 * (happened * (1 - happened) / entries) ** 0.5
    title = f"{name}: calibration error {100 * curve.error:.1f} %, Brier score {100 * curve.brier:.1f} %"
    above.errorbar(said, happened, spread, color=colour, marker="o", markersize=4, linewidth=1.4, label=title)
    below.plot(said, entries, color=colour, marker="o", markersize=3, linewidth=1)
