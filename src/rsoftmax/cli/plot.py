"""``rsoftmax list`` and ``rsoftmax plot``: the mappings as a table and as a figure."""

import math
from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import figure_path, numbers, parameters, usage_errors

COLUMNS = ("mapping", "p", "sum", "parameter", "sparsity set by", "source")
MOST_LOGITS = 40


def list_mappings(markdown: Annotated[bool, typer.Option(help="Print a Markdown table.")] = False) -> None:
    """List the mappings."""
    from rsoftmax.mappings import MAPPINGS

    lines = [
        [
            name,
            spec.formula,
            "1" if spec.sums_to_one else "not 1",
            ", ".join(f"{p.name} {p.domain.text}" for p in (spec.parameter, *spec.options) if p),
            spec.zeros,
            spec.source,
        ]
        for name, spec in MAPPINGS.items()
    ]
    if markdown:
        head = [COLUMNS, ["---"] * len(COLUMNS)]
        cells = [*head, *([f"`{name}`", f"`{formula}`", *rest] for name, formula, *rest in lines)]
        typer.echo("\n".join(f"| {' | '.join(line)} |" for line in cells))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    table = Table(*(Column(title, no_wrap=title == "mapping") for title in COLUMNS))
    for line in lines:
        table.add_row(*map(escape, line))
    Console().print(table)


def plot(
    context: typer.Context,
    logits: Annotated[str, typer.Option(metavar="NUMBERS", help="The logits, comma-separated.")] = "2,1.5,.3,-1",
    out: Annotated[Path, typer.Option(help="The figure: .png, .svg or .pdf.")] = Path("mappings.png"),
) -> None:
    """Plot logits through every mapping, and print the probabilities.

    Set a mapping's parameter by the name that `rsoftmax list` shows: --r 0.5 --k 2 --edge 0.
    """
    from rich.console import Console
    from rich.table import Table

    from rsoftmax.plots import compare_mappings, draw_mappings

    x = numbers(logits)
    if not x or not all(map(math.isfinite, x)):
        raise typer.BadParameter(
            f"{logits!r} is not a list of finite numbers; write --logits 2,1.5,.3,-1", param_hint="--logits"
        )
    if len(x) > MOST_LOGITS:
        raise typer.BadParameter(f"a figure has room for {MOST_LOGITS} logits, got {len(x)}", param_hint="--logits")
    with usage_errors():
        probabilities = compare_mappings(x, parameters(context))
        draw_mappings(probabilities, x, figure_path(out))
    table = Table("mapping", *(f"{logit:g}" for logit in x), "zeros")
    for title, p in probabilities.items():
        table.add_row(title, *(f"{value:.4f}" if value else "0" for value in p.tolist()), str(int((p == 0).sum())))
    Console().print(table)
    typer.echo(f"wrote {out}")
