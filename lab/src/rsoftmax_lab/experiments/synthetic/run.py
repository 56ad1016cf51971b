"""One run of Figure 2."""

from rsoftmax_lab.comparison import USERS, fit_and_score, train_and_score
from rsoftmax_lab.experiments.synthetic.data import draw
from rsoftmax_lab.experiments.synthetic.grid import Run
from rsoftmax_lab.running.runs import Row


def run(run: Run) -> Row:
    """Train and score; returns the row of a run."""
    score = fit_and_score if run.method in USERS else train_and_score
    return score(run, draw(run))
