"""``rsoftmax reproduce guarantees``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Sweep


def guarantees(
    data: Annotated[Path, typer.Option(help="A folder with one folder per dataset, in Mulan's ARFF format.")],
    texts: Annotated[Path | None, typer.Option(help="The folder of GoEmotions, as another dataset.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A dataset of --data; repeatable. Default: all.")] = None,
    resplits: Annotated[
        int | None, typer.Option(min=1, help="The number of random resplits. Default: 100, 5 with --quick.")
    ] = None,
    *,
    sweep: Sweep,
) -> None:
    """Label sets with a guaranteed recall or precision, over random resplits, next to MAPIE's."""
    from functools import partial

    from rsoftmax_lab.experiments import mulan
    from rsoftmax_lab.experiments.guarantees.grid import TEXTS, grid, quick_grid
    from rsoftmax_lab.experiments.guarantees.run import run

    with usage_errors("--data"):
        names = [*mulan.names(data, only), *([TEXTS] if texts is not None else [])]
    given = {} if resplits is None else {"resplits": resplits}
    runs = (quick_grid if sweep.quick else grid)(names, **given)
    sweep.do("guarantees", runs, partial(run, data.resolve(), None if texts is None else texts.resolve()))
