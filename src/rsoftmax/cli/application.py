"""All commands together: those of the library, one file each, and those of the laboratory.

Nothing heavy is imported before a command runs: ``rsoftmax --help`` waits neither for torch nor for the laboratory,
whose commands come from the entry points of the group ``rsoftmax.commands``: functions that add to an application.
"""

from typing import Annotated

import typer

from rsoftmax import __version__
from rsoftmax.cli import app as local_page
from rsoftmax.cli import attention_map, evaluate, export, mappings, plot, predict, train
from rsoftmax.cli.parameters import TAKES_PARAMETERS

LAB = {
    "reproduce": "Run the paper's experiments again",
    "report": "Write tables and figures of the results",
    "bench": "Time the library beside torch",
}
HELP = "Sparse probability mappings with a controllable rate of zeros."
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}  # every word after the command's name

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rsoftmax {__version__}")
        raise typer.Exit


@app.callback()
def rsoftmax(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sparse probability mappings with a controllable rate of zeros."""


def _add_lab_command(name: str, text: str) -> None:
    @app.command(name, help=f"{text} (rsoftmax-lab).", add_help_option=False, context_settings=PASS_ON)
    def run(context: typer.Context) -> None:
        _laboratory(name)([name, *context.args], prog_name="rsoftmax")


def _laboratory(name: str) -> typer.Typer:
    """An application of the commands that are installed beside the library."""
    from importlib.metadata import entry_points

    found = entry_points(group="rsoftmax.commands")
    if not found:
        raise typer.BadParameter(f"`rsoftmax {name}` comes with the laboratory; run: pip install rsoftmax-lab")
    lab = typer.Typer(rich_markup_mode=None)
    lab.callback()(lambda: None)  # so that a single command keeps its name
    for entry in found:
        entry.load()(lab)
    return lab


app.command("list")(mappings.list_mappings)
app.add_typer(plot.app, name="plot")
app.command("attention-map", context_settings=TAKES_PARAMETERS)(attention_map.attention_map)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("export")(export.export)
app.command("app")(local_page.open_app)
for command, text in LAB.items():
    _add_lab_command(command, text)
