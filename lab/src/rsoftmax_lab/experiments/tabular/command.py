"""``rsoftmax reproduce tabular``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Seeds, Sweep


def tabular(
    data: Annotated[Path, typer.Option(help="A folder with one folder per dataset, in Mulan's ARFF format.")],
    only: Annotated[list[str] | None, typer.Option(help="A dataset to run; repeatable. Default: all.")] = None,
    seeds: Seeds = 3,
    *,
    sweep: Sweep,
) -> None:
    """The comparison of Figure 2 on real datasets."""
    from functools import partial

    from rsoftmax_lab.experiments import mulan
    from rsoftmax_lab.experiments.tabular import grid
    from rsoftmax_lab.experiments.tabular.run import run

    with usage_errors("--data"):
        names = mulan.names(data, only)
    runs = grid.quick_grid(names) if sweep.quick else grid.grid(names, seeds)
    sweep.do("tabular", runs, partial(run, data.resolve()))
