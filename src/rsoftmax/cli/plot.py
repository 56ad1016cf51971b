"""``rsoftmax plot``: of mappings, if nothing else is named."""

import typer
from typer.core import TyperGroup

from rsoftmax.cli import calibration, mappings
from rsoftmax.cli.parameters import TAKES_PARAMETERS

DEFAULT = "mappings"


class _WithDefault(TyperGroup):
    """``rsoftmax plot --logits 2 1`` is ``rsoftmax plot mappings --logits 2 1``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put the name of the command before the words if none of its own comes first."""
        named = bool(args) and args[0] in (*self.commands, "--help")
        return super().parse_args(ctx, args if named else [DEFAULT, *args])


app = typer.Typer(cls=_WithDefault, help="Draw mappings (if nothing else is named) or calibration curves.")
app.command(DEFAULT, cls=mappings.PlotCommand, context_settings=TAKES_PARAMETERS)(mappings.plot)
app.command("calibration")(calibration.calibration)
