"""How good a model's labels are, as a picture: each label's F1, and how far marginals can be trusted."""

from pathlib import Path

import matplotlib.pyplot as plt

from rsoftmax.multilabel import Evaluation
from rsoftmax.printable import printable

MOST = 40  # labels that can be read


def draw_evaluation(scores: Evaluation, path: Path) -> None:
    """Bars of F1, the best first, beside marginals against the share of them that is right."""
    labels = sorted(scores.labels, key=lambda one: -one.f1)[:MOST]
    with plt.rc_context({"text.parse_math": False}):  # names may hold dollar signs
        size = (10, max(4, 0.22 * len(labels) + 1))
        figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained")
        left.barh([printable(one.label) for one in labels], [one.f1 for one in labels], color="#c1121f", height=0.7)
        left.set_xlim(0, 1)
        left.invert_yaxis()
        left.set_xlabel("F1")
        left.set_title(f"micro {scores.micro:.3f}, macro {scores.macro:.3f}, samples {scores.samples:.3f}", fontsize=10)
        right.plot([0, 1], [0, 1], color="#999999", linewidth=1)
        right.plot(scores.curve.said, scores.curve.happened, "o-", color="#c1121f")
        right.set_xlabel("marginal")
        right.set_ylabel("share that is right")
        right.set_title(f"calibration error {scores.calibration_error:.3f}", fontsize=10)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=110)
    plt.close(figure)
