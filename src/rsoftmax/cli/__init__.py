"""The command line: the library's commands, one file for each group, and the commands of the lab.

Heavy imports wait until a command runs, so ``rsoftmax --help`` loads neither torch nor the lab. The lab registers
its commands through the entry points of the group ``rsoftmax.commands``: functions that take a Typer
application and add commands to it.
"""

from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rsoftmax import __version__
from rsoftmax.cli import attention, models, plot, predict, review, split, train
from rsoftmax.cli.arguments import TAKES_PARAMETERS

__all__ = ["app"]

LAB = {
    "demo": "Show what the library does, in a minute",
    "reproduce": "Reproduce the paper's experiments",
    "report": "Write tables and figures of the results",
    "bench": "Time the library against torch",
}
HELP = "Sparse probability mappings with a controllable fraction of zeros."


class _WithLab(TyperGroup):
    """Loads the lab when one of its commands is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take the command from the installed lab if it is one of its own."""
        name, *rest = args
        if name not in LAB:
            return super().resolve_command(ctx, args)
        registered = metadata.entry_points(group="rsoftmax.commands")
        if not registered:
            raise typer.BadParameter(f"`rsoftmax {name}` is part of rsoftmax-lab; run: pip install rsoftmax-lab")
        lab = typer.Typer(rich_markup_mode=None)
        lab.callback()(lambda: None)  # without a callback, Typer drops the name of a single command
        for entry in registered:
            entry.load()(lab)
        return name, typer.main.get_group(lab).commands[name], rest


app = typer.Typer(cls=_WithLab, help=HELP, no_args_is_help=True, rich_markup_mode=None)


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"rsoftmax {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def rsoftmax(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options that come before the command."""


app.command("list")(plot.list_mappings)
app.command("plot", context_settings=TAKES_PARAMETERS)(plot.plot)
app.command("attention-map", context_settings=TAKES_PARAMETERS)(attention.attention_map)
app.command("sparsify")(attention.sparsify)
app.command("split")(split.split)
app.command("train", context_settings=TAKES_PARAMETERS)(train.train)
app.command("evaluate")(models.evaluate)
app.command("predict")(predict.predict)
app.command("review")(review.review)
app.command("export")(models.export)
app.command("app")(models.serve_page)
for name, text in LAB.items():
    app.command(name, help=f"{text} (rsoftmax-lab).")(lambda: None)  # listed here, and loaded from the lab
