"""``rsoftmax reproduce synthetic`` and ``rsoftmax reproduce tabular``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)

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


@app.command()
def synthetic(
    quick: Quick = False,
    seeds: Seeds = 3,
    out: Out = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Figure 2: synthetic documents, the number of labels and the length varied."""
    from rsoftmax.experiments import synthetic as experiment

    out = out or _folder(quick)
    runs = experiment.quick_grid() if quick else experiment.grid(seeds)
    _sweep(runs, experiment.run, out / "synthetic.jsonl", jobs, engine, address)
    _show(out, "synthetic")


@app.command()
def tabular(
    data: Annotated[Path, typer.Option(help="A folder with a folder for each set, in Mulan's ARFF format.")],
    only: Annotated[list[str] | None, typer.Option(help="A set to run; may be given again. All if not given.")] = None,
    quick: Quick = False,
    seeds: Seeds = 3,
    out: Out = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """The same contest on real sets."""
    from functools import partial

    from rsoftmax.experiments import mulan
    from rsoftmax.experiments import tabular as experiment

    out = out or _folder(quick)
    try:
        names = mulan.names(data, only)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None
    runs = experiment.quick_grid(names) if quick else experiment.grid(names, seeds)
    _sweep(runs, partial(experiment.run, data.resolve()), out / "tabular.jsonl", jobs, engine, address)
    _show(out, "tabular")


def _folder(quick: bool) -> Path:
    return Path("results/quick" if quick else "results")


def _sweep(
    runs: Sequence[Any],
    function: Callable[[Any], dict[str, Any]],
    path: Path,
    jobs: int | None,
    engine: str,
    address: str | None,
) -> None:
    from rsoftmax.experiments.sweep import sweep

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


def _show(out: Path, experiment: str) -> None:
    """End with a table and a picture."""
    from rsoftmax.experiments import report

    console = Console()
    try:
        written = report.write(out, out / "report", Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    console.print(written.sections[experiment].summary)
    for path in written.files:
        typer.echo(f"wrote {path}")
