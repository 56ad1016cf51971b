"""``rsoftmax report``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rsoftmax_lab.experiments import EXPERIMENTS
from rsoftmax_lab.experiments.experiment import Experiment


def report(
    results: Annotated[Path, typer.Option(help="The results folder of `rsoftmax reproduce`.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="The folder to write to. Default: RESULTS/report.")] = None,
) -> None:
    """Write tables and figures of the results next to the paper's numbers, as Markdown and HTML."""
    write_report(EXPERIMENTS, results, out or results / "report", hint="--results or --out")


def write_report(
    experiments: Mapping[str, Experiment], results: Path, out: Path, *, hint: str, summary: str | None = None
) -> None:
    """Write the report, and print its summary and the files.

    Args:
        experiments: the experiments to report.
        results: the folder of results.
        out: the report's folder.
        hint: the option to blame if it cannot be written.
        summary: the experiment whose table is printed.
    """
    from rich.console import Console

    from rsoftmax_lab.report.write import write

    try:
        written = write(experiments, results, out, Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
    if summary in written.sections:
        Console().print(written.sections[summary].summary)
    for path in written.files:
        typer.echo(f"wrote {path}")
