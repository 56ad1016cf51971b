"""``rsoftmax reproduce NAME``, for each registered experiment."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import typer

from rsoftmax_lab.commands.option_groups import flattened
from rsoftmax_lab.commands.report import write_report
from rsoftmax_lab.experiments.experiment import Experiment
from rsoftmax_lab.running import ranks
from rsoftmax_lab.running.options import Sweep


def commands(experiments: Mapping[str, Experiment]) -> typer.Typer:
    """The commands of the experiments; each does its runs, then prints a table and writes the report."""
    app = typer.Typer(help="Reproduce the paper's experiments.", no_args_is_help=True)
    for name, experiment in experiments.items():
        for command in experiment.commands:
            app.command(command)(flattened(_with_report(experiment.command(command), experiments, name)))
    return app


def _with_report(
    function: Callable[..., None], experiments: Mapping[str, Experiment], name: str
) -> Callable[..., None]:
    @wraps(function)
    def command(sweep: Sweep, **options: Any) -> None:
        function(sweep=sweep, **options)
        if ranks.first():
            write_report(experiments, sweep.folder, sweep.folder / "report", summary=name, hint="--out")

    return command
