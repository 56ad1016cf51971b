"""``rsoftmax report``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rsoftmax_lab.experiments import EXPERIMENTS
from rsoftmax_lab.experiments.experiment import Experiment


def report(
    results: Annotated[Path, typer.Option(help="The folder that `rsoftmax reproduce` wrote.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="Where to write; RESULTS/report if not given.")] = None,
) -> None:
    """Write tables and figures of the results, the paper's claims beside ours, as Markdown and HTML."""
    write_report(EXPERIMENTS, results, out or results / "report", hint="--results or --out")


def write_report(
    experiments: Mapping[str, Experiment], results: Path, out: Path, *, hint: str, summary: str | None = None
) -> None:
    """Write the report and say so.

    Args:
        experiments: what it is about.
        results: the folder of results.
        out: the report's folder.
        hint: which option to look at if it cannot be written.
        summary: the experiment whose table is shown.
    """
    from rich.console import Console

    from rsoftmax_lab.report.write import write

    try:
        written = write(experiments, results, out, Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
    if summary is not None:
        Console().print(written.sections[summary].summary)
    for path in written.files:
        typer.echo(f"wrote {path}")
