"""The lab's commands of ``rsoftmax``, ``bench``, ``reproduce`` and ``report``."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    from rsoftmax_lab.bench import command
    from rsoftmax_lab.commands import report, reproduce
    from rsoftmax_lab.experiments import EXPERIMENTS

    app.command("bench", help=command.HELP)(command.bench)
    app.add_typer(reproduce.commands(EXPERIMENTS), name="reproduce")
    app.command("report")(report.report)
