"""``rsoftmax reproduce lengths``."""

from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Seeds, Sweep


def lengths(
    task: Annotated[list[str] | None, typer.Option(help="max, recall or mean; repeatable.")] = None,
    seeds: Seeds = 5,
    *,
    sweep: Sweep,
) -> None:
    """Attention trained on short contexts and tested on contexts up to 256 times as long."""
    from rsoftmax_lab.experiments.lengths import grid
    from rsoftmax_lab.experiments.lengths.data import TASKS
    from rsoftmax_lab.experiments.lengths.run import run

    tasks = tuple(task or TASKS)
    with usage_errors("--task"):
        runs = grid.quick_grid(tasks) if sweep.quick else grid.grid(tasks, seeds)
    sweep.do("lengths", runs, run)
