"""The command line: the library's commands, one file for each group, and the commands of the lab.

Heavy imports wait until a command runs, so ``rsoftmax --help`` loads neither torch nor the lab. The lab registers
its commands through the entry points of the group ``rsoftmax.commands``: functions that take a Typer
application and add commands to it.
"""

from typing import Annotated

import typer

from rsoftmax import __version__
from rsoftmax.cli import attention, evaluate, models, plot, predict, train
from rsoftmax.cli.arguments import TAKES_PARAMETERS

__all__ = ["app"]

LAB = {
    "reproduce": "Reproduce the paper's experiments",
    "report": "Write tables and figures of the results",
    "bench": "Time the library against torch",
}
HELP = "Sparse probability mappings with a controllable fraction of zeros."

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rsoftmax {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def rsoftmax(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options that come before the command."""


def _add_lab_command(name: str, text: str) -> None:
    @app.command(name, help=f"{text} (rsoftmax-lab).", add_help_option=False, context_settings=TAKES_PARAMETERS)
    def run(context: typer.Context) -> None:
        _lab(name)([name, *context.args], prog_name="rsoftmax")


def _lab(name: str) -> typer.Typer:
    """An application with the commands of the installed lab."""
    from importlib.metadata import entry_points

    found = entry_points(group="rsoftmax.commands")
    if not found:
        raise typer.BadParameter(f"`rsoftmax {name}` is part of rsoftmax-lab; run: pip install rsoftmax-lab")
    lab = typer.Typer(rich_markup_mode=None)
    lab.callback()(lambda: None)  # without a callback, Typer drops the name of a single command
    for entry in found:
        entry.load()(lab)
    return lab


app.command("list")(plot.list_mappings)
app.add_typer(plot.app, name="plot")
app.command("attention-map", context_settings=TAKES_PARAMETERS)(attention.attention_map)
app.command("sparsify")(attention.sparsify)
app.command("train", context_settings=TAKES_PARAMETERS)(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("export")(models.export)
app.command("app")(models.serve_page)
for command, text in LAB.items():
    _add_lab_command(command, text)
