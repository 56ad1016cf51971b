"""What the commands that run experiments share: options, the sweep, and how they end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Quick = Annotated[bool, typer.Option("--quick", help="The same code on a small grid: minutes, not hours.")]
Seeds = Annotated[
    int, typer.Option(min=1, help="How often everything is run, each time with another seed; once with --quick.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The folder of results; what is there already is not run again. [default: results, or results/quick]"
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; one for each core if not given.")]
Engine = Annotated[str, typer.Option(help="Where: local (processes here), ray or dask (a cluster).")]
Address = Annotated[str | None, typer.Option(help="The cluster's address; without it, one is started here.")]


def results_folder(quick: bool) -> Path:
    """Where results go if nobody says."""
    return Path("results/quick" if quick else "results")


def do_runs(
    runs: Sequence[Any],
    function: Callable[[Any], dict[str, Any]],
    path: Path,
    jobs: int | None,
    engine: str,
    address: str | None,
) -> None:
    """Do the runs, and leave the program if it cannot be done or not all succeed."""
    from rsoftmax_lab.running.sweep import sweep

    try:
        rows = sweep(runs, function, path, engine=engine, address=address, jobs=jobs)
    except (ModuleNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--engine") from None
    except OSError as error:  # a place that cannot be written, a full disk
        raise typer.BadParameter(str(error), param_hint="--out") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if len(rows) < len(runs):
        raise typer.Exit(1)


def show_report(out: Path, experiment: str) -> None:
    """End with a table and a picture."""
    from rich.console import Console

    from rsoftmax_lab import report

    console = Console()
    try:
        written = report.write(out, out / "report", Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    console.print(written.sections[experiment].summary)
    for path in written.files:
        typer.echo(f"wrote {path}")
