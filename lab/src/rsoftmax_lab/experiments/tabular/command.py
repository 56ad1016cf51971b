"""``rsoftmax reproduce tabular``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax_lab.running.options import Seeds, Sweep

CONTESTS = ("paper", "users")


def tabular(
    data: Annotated[Path, typer.Option(help="A folder with a folder for each set, in Mulan's ARFF format.")],
    only: Annotated[list[str] | None, typer.Option(help="A set to run; may be given again. All if not given.")] = None,
    contest: Annotated[
        list[str],
        typer.Option(help="paper: its methods, one plain network each; users: every method as a user would call it."),
    ] = list(CONTESTS),  # noqa: B006
    method: Annotated[list[str] | None, typer.Option(help="Of the users' contest; may be given again.")] = None,
    seeds: Seeds = 3,
    *,
    sweep: Sweep,
) -> None:
    """The same contest on real sets, and one with every method as a user would call it."""
    from functools import partial

    from rsoftmax_lab.experiments.tabular import grid, mulan
    from rsoftmax_lab.experiments.tabular.run import run
    from rsoftmax_lab.experiments.tabular.users import grid as users_grid
    from rsoftmax_lab.experiments.tabular.users.run import run as users_run

    try:
        names = mulan.names(data, only)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None
    if not set(contest) <= set(CONTESTS):
        raise typer.BadParameter(f"{', '.join(contest)}: there are {', '.join(CONTESTS)}", param_hint="--contest")
    folder = data.resolve()
    if "paper" in contest:
        runs = grid.quick_grid(names) if sweep.quick else grid.grid(names, seeds)
        sweep.do("tabular", runs, partial(run, folder))
    if "users" in contest:
        try:
            wanted = users_grid.quick_grid(names) if sweep.quick else users_grid.grid(names, seeds, method)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--method") from None
        sweep.do("users", wanted, partial(users_run, folder))
