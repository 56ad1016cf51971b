"""``rsoftmax reproduce synthetic`` and ``rsoftmax reproduce tabular``; glue, voc and coco have files of their own."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax_lab.commands.sweeps import Address, Engine, Jobs, Out, Quick, Seeds, do_runs, results_folder, show_report

app = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)


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
    from rsoftmax_lab.experiments.synthetic import run as experiment

    out = out or results_folder(quick)
    runs = experiment.quick_grid() if quick else experiment.grid(seeds)
    do_runs(runs, experiment.run, out / "synthetic.jsonl", jobs, engine, address)
    show_report(out, "synthetic")


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

    from rsoftmax_lab.experiments.tabular import mulan
    from rsoftmax_lab.experiments.tabular import run as experiment

    out = out or results_folder(quick)
    try:
        names = mulan.names(data, only)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None
    runs = experiment.quick_grid(names) if quick else experiment.grid(names, seeds)
    do_runs(runs, partial(experiment.run, data.resolve()), out / "tabular.jsonl", jobs, engine, address)
    show_report(out, "tabular")
