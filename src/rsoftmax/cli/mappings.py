"""``rsoftmax list`` and ``rsoftmax plot``."""

import math
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from rsoftmax.cli.arguments import numbers, picture
from rsoftmax.cli.parameters import given

MOST_LOGITS = 40
COLUMNS = ("mapping", "p", "parameter", "who decides the zeros", "source")


def list_mappings(markdown: Annotated[bool, typer.Option(help="Print a Markdown table.")] = False) -> None:
    """List the mappings."""
    if markdown:
        lines = [COLUMNS, ["---"] * len(COLUMNS), *([f"`{name}`", f"`{p}`", *rest] for name, p, *rest in _rows())]
        typer.echo("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    table = Table(*(Column(title, no_wrap=title == "mapping") for title in COLUMNS))
    for row in _rows():
        table.add_row(*map(escape, row))
    Console().print(table)


class PlotCommand(TyperCommand):
    """Lets ``--logits 2 1.5 .3 -1`` be written as people write it: the option takes all numbers that follow it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Join the numbers after ``--logits`` to one word, before the options are told apart."""
        joined: list[str] = []
        for word in args:
            if joined and joined[-1].startswith("--logits") and numbers(word):
                joined[-1] += ("," if "=" in joined[-1] else "=") + word
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


def plot(
    context: typer.Context,
    logits: Annotated[list[str], typer.Option(metavar="NUMBERS", help="The scores of one row.")] = ["2,1.5,.3,-1"],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Where to write the picture; its ending names the format.")] = Path(
        "mappings.png"
    ),
) -> None:
    """Draw all mappings of one row of scores side by side, and print their probabilities.

    A parameter comes under its letter, as `rsoftmax list` shows it: --r 0.5 --t 2.
    """
    from rich.console import Console
    from rich.table import Table

    from rsoftmax.plots import compare_mappings, draw_mappings

    scores = numbers(" ".join(logits))
    if not scores or not all(map(math.isfinite, scores)):
        shown = " ".join(logits)
        raise typer.BadParameter(
            f"{shown!r} is not a list of numbers; write --logits 2 1.5 .3 -1", param_hint="--logits"
        )
    if len(scores) > MOST_LOGITS:
        raise typer.BadParameter(
            f"a picture has room for {MOST_LOGITS} scores, got {len(scores)}", param_hint="--logits"
        )
    try:
        rows = compare_mappings(scores, given(context))
        draw_mappings(rows, scores, picture(out))
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    table = Table("mapping", *(f"{score:g}" for score in scores), "zeros")
    for title, p in rows.items():
        table.add_row(title, *(f"{share:.4f}" if share else "0" for share in p.tolist()), str(int((p == 0).sum())))
    Console().print(table)
    typer.echo(f"wrote {out}")


def _rows() -> list[list[str]]:
    from rsoftmax.mappings import MAPPINGS

    return [
        [
            name,
            mapping.formula,
            f"{mapping.parameter.name} {mapping.parameter.domain.text}" if mapping.parameter else "",
            mapping.zeros,
            mapping.source,
        ]
        for name, mapping in MAPPINGS.items()
    ]
