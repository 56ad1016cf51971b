"""One run of Figure 2."""

from rsoftmax_lab.contest.training import train_and_score
from rsoftmax_lab.experiments.synthetic.data import draw
from rsoftmax_lab.experiments.synthetic.grid import Run
from rsoftmax_lab.running.runs import Row


def run(run: Run) -> Row:
    """Train and score: the row of a run."""
    return train_and_score(run, draw(run))
