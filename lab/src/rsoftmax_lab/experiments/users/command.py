"""``rsoftmax reproduce users``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Seeds, Sweep


def users(
    data: Annotated[Path, typer.Option(help="A folder with one folder per dataset, in Mulan's ARFF format.")],
    only: Annotated[list[str] | None, typer.Option(help="A dataset to run; repeatable. Default: all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="A method; repeatable. Default: all.")] = None,
    seeds: Seeds = 3,
    *,
    sweep: Sweep,
) -> None:
    """Classifiers with default settings on real datasets."""
    from functools import partial

    from rsoftmax_lab.experiments import mulan
    from rsoftmax_lab.experiments.users import grid
    from rsoftmax_lab.experiments.users.run import run

    with usage_errors("--data"):
        names = mulan.names(data, only)
    with usage_errors("--method"):
        runs = grid.quick_grid(names, method) if sweep.quick else grid.grid(names, seeds, method)
    sweep.do("users", runs, partial(run, data.resolve()))
