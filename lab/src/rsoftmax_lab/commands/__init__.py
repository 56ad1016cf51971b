"""The lab's commands of ``rsoftmax``, one file each: ``bench``, ``reproduce`` and ``report``."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    from rsoftmax_lab.commands import bench, report, reproduce
    from rsoftmax_lab.experiments import EXPERIMENTS

    app.add_typer(bench.app, name="bench")
    app.add_typer(reproduce.commands(EXPERIMENTS), name="reproduce")
    app.command("report")(report.report)
