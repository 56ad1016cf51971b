"""``rsoftmax reproduce rates``."""

from rsoftmax_lab.experiments.glue.command import Training, finetune
from rsoftmax_lab.running.options import Sweep


def rates(options: Training, sweep: Sweep) -> None:
    """Accuracy against the time of a training step: r-softmax at growing rates, t- and k-softmax with an edge.

    The runs are a part of Table 2's; their rows are written to glue.jsonl, and finished ones are not repeated. The
    figure shows them beside the rows of `rsoftmax reproduce pretrained`.
    """
    from rsoftmax_lab.experiments.rates import grid

    finetune((grid.grid, grid.quick_grid), options, sweep)
