"""The command line: ``rsoftmax list | plot | attention-map | predict``, and the commands of other packages.

A package adds commands by an entry point of the group ``rsoftmax.commands``: a function that takes the application.
Nothing heavy is imported before a command runs, so ``rsoftmax --help`` does not wait for torch.
"""

from importlib.metadata import entry_points
from typing import Annotated

import typer

from rsoftmax import __version__
from rsoftmax.cli import attention_map, mappings, predict

INSTALL = "pip install rsoftmax-lab"
LAB = {
    "bench": "Time the mappings beside torch.softmax.",
    "report": "Write tables and figures of the results.",
    "reproduce": "Run the paper's experiments again.",
}

app = typer.Typer(help="Sparse probability mappings with a controllable rate of zeros.", no_args_is_help=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rsoftmax {__version__}")
        raise typer.Exit


@app.callback()
def rsoftmax(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Sparse probability mappings with a controllable rate of zeros."""


def _say_what_to_install(name: str, text: str) -> None:
    """Add a command of the laboratory that tells how to get it."""

    @app.command(name, help=f"{text} Needs: {INSTALL}", context_settings={"ignore_unknown_options": True})
    def absent(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        raise typer.BadParameter(f"`rsoftmax {name}` comes with the laboratory; run: {INSTALL}")


for module in (mappings, attention_map, predict):
    app.add_typer(module.app)
for entry in entry_points(group="rsoftmax.commands"):
    entry.load()(app)
known = {one.name for one in app.registered_commands} | {one.name for one in app.registered_groups}
for name, text in LAB.items():
    if name not in known:
        _say_what_to_install(name, text)
