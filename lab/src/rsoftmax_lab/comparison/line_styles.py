"""The line styles of the predictors in all figures."""

from typing import NamedTuple

from rsoftmax_lab.comparison.predictors import LITERAL, OURS, PAPERS, Predictor


class LineStyle(NamedTuple):
    """A line style; related predictors share a colour."""

    color: str
    style: str
    marker: str
    width: float = 1.3


LINE_STYLES = {
    Predictor("r_softmax_expected_f1"): LineStyle("#c1121f", "-", "o", 2.4),
    Predictor("t_softmax_threshold"): LineStyle("#f08a24", "-", "s", 1.8),
    Predictor("r_softmax_rate"): LineStyle("#7b2d8e", "-", "h", 2.0),
    Predictor("r_softmax_count"): LineStyle("#1d4e89", "-", "D", 2.0),
    Predictor("sparsemax_huber"): LineStyle("#6fa8dc", "--", "v"),
    Predictor("sparsemax_hinge"): LineStyle("#6fa8dc", ":", "^"),
    Predictor("sparsehourglass"): LineStyle("#6fa8dc", "-.", "x"),
    Predictor("bce"): LineStyle("#2d8659", "--", "P"),
    Predictor("zlpr"): LineStyle("#2d8659", ":", "*"),
    Predictor("softmax", "tuned"): LineStyle("#555555", "-", ".", 1.6),
    Predictor("softmax", "p0=0.02"): LineStyle("#8a8a8a", "--", "1"),
    Predictor("softmax", "p0=0.05"): LineStyle("#8a8a8a", "-.", "2"),
    Predictor("softmax", "p0=0.1"): LineStyle("#8a8a8a", ":", "3"),
}


def label(one: Predictor) -> str:
    """The name in legends, with its origin."""
    whose = " (ours)" if one in OURS else " (the paper's)" if one in (LITERAL, PAPERS) else ""
    return one.title + whose
