"""The commands that the laboratory adds to ``rsoftmax``: ``bench | reproduce | report``, a file for each."""

import typer


def register(app: typer.Typer) -> None:
    """Add them."""
    from rsoftmax_lab.commands import bench, report, reproduce
    from rsoftmax_lab.experiments import EXPERIMENTS

    app.add_typer(bench.app, name="bench")
    app.add_typer(reproduce.commands(EXPERIMENTS), name="reproduce")
    app.command("report")(report.report)
