"""The commands that the laboratory adds to ``rsoftmax``: ``bench | reproduce | report``, a file for each group."""

import typer

from rsoftmax_lab.commands import bench, glue, images, report, reproduce


def register(app: typer.Typer) -> None:
    """Add them."""
    app.add_typer(bench.app, name="bench")
    for experiment in (glue, images):
        reproduce.app.add_typer(experiment.app)
    app.add_typer(reproduce.app, name="reproduce")
    app.command("report")(report.report)
