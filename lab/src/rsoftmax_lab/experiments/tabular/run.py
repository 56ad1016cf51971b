"""One run on a real dataset."""

from pathlib import Path

from rsoftmax_lab.comparison import train_and_score
from rsoftmax_lab.experiments.tabular.data import load
from rsoftmax_lab.experiments.tabular.grid import Run
from rsoftmax_lab.running.runs import Row


def run(folder: Path, run: Run) -> Row:
    """Train and score; returns the row of a run on a dataset of the folder."""
    return train_and_score(run, load(folder, run.dataset, run.validation_share, run.seed))
