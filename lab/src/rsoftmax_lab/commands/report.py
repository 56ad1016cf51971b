"""``rsoftmax report``."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[Path, typer.Option(help="The folder that `rsoftmax reproduce` wrote.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="Where to write; RESULTS/report if not given.")] = None,
) -> None:
    """Write tables and figures of the results, the paper's claims beside ours, as Markdown and HTML."""
    from rich.console import Console

    from rsoftmax_lab.report import write

    try:
        written = write(results, out or results / "report", Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--results or --out") from None
    for path in written.files:
        typer.echo(f"wrote {path}")
