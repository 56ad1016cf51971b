"""A picture beside its labels: what ``rsoftmax predict --show`` writes."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from PIL import Image

from rsoftmax.printable import printable, readable

MOST = 15  # bars that can be read


def draw_labels(picture: Image.Image, found: dict[str, float], name: str, path: Path) -> None:
    """The picture under its labels, and a bar for each of the first of them."""
    with plt.rc_context({"text.parse_math": False}):  # names may hold dollar signs
        figure = _figure(picture, found, name)
        figure.savefig(path, dpi=110)
    plt.close(figure)


def endings() -> list[str]:
    """The kinds of files that can be written."""
    return sorted(f".{ending}" for ending in FigureCanvasBase.get_supported_filetypes())


def _figure(picture: Image.Image, found: dict[str, float], name: str) -> Figure:
    shown = list(found.items())[:MOST]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    left.imshow(picture)
    left.set_axis_off()
    left.set_title(", ".join(printable(label) for label, _ in shown[:6]) or "no label", fontsize=12, wrap=True)
    left.text(0.5, -0.02, printable(name), transform=left.transAxes, ha="center", va="top", fontsize=8, color="#777777")
    right.barh([printable(label) for label, _ in shown], [p for _, p in shown], color="#c1121f", height=0.6)
    for place, (_, p) in enumerate(shown):
        right.text(p + 0.01, place, readable(p), va="center", fontsize=9)
    right.set_xlim(0, 1.12)
    right.set_ylim(max(len(shown), 4) - 0.4, -0.6)  # the first on top
    right.set_xlabel("probability")
    if len(found) > MOST:
        right.set_title(f"the first {MOST} of {len(found)}", fontsize=9)
    right.spines[["top", "right"]].set_visible(False)
    return figure
