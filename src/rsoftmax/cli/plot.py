"""``rsoftmax list`` and ``rsoftmax plot``: the mappings as a table, and plots of mappings and calibration curves."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from rsoftmax.cli.arguments import TAKES_PARAMETERS, figure_path, numbers, parameters, usage_errors

if TYPE_CHECKING:
    from rsoftmax.labels.evaluation import CalibrationCurve

COLUMNS = ("mapping", "p", "parameter", "sparsity set by", "source")
MOST_LOGITS = 40
DEFAULT = "mappings"
ARRAYS = ("marginals", "targets")


class _WithDefault(TyperGroup):
    """Makes ``rsoftmax plot --logits 2,1`` mean ``rsoftmax plot mappings --logits 2,1``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Insert the default command unless the first word names one."""
        named = bool(args) and args[0] in (*self.commands, "--help")
        return super().parse_args(ctx, args if named else [DEFAULT, *args])


app = typer.Typer(cls=_WithDefault, help="Plot the mappings (the default) or calibration curves.")


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


def _rows() -> list[list[str]]:
    from rsoftmax.mappings import MAPPINGS

    return [
        [
            name,
            mapping.formula,
            ", ".join(f"{p.name} {p.domain.text}" for p in (mapping.parameter, *mapping.options) if p),
            mapping.zeros,
            mapping.source,
        ]
        for name, mapping in MAPPINGS.items()
    ]


@app.command(DEFAULT, context_settings=TAKES_PARAMETERS)
def mappings(
    context: typer.Context,
    logits: Annotated[str, typer.Option(metavar="NUMBERS", help="One row of logits, comma-separated.")] = "2,1.5,.3,-1",
    out: Annotated[Path, typer.Option(help="The figure: .png, .svg or .pdf.")] = Path("mappings.png"),
) -> None:
    """Plot one row of logits through every mapping, and print the probabilities.

    Set a mapping's parameter by the letter that `rsoftmax list` shows: --r 0.5 --k 2 --edge 0.
    """
    from rich.console import Console
    from rich.table import Table

    from rsoftmax.plots import compare_mappings, draw_mappings

    row = _logits(logits)
    with usage_errors():
        probabilities = compare_mappings(row, parameters(context))
        draw_mappings(probabilities, row, figure_path(out))
    table = Table("mapping", *(f"{logit:g}" for logit in row), "zeros")
    for title, p in probabilities.items():
        table.add_row(title, *(f"{value:.4f}" if value else "0" for value in p.tolist()), str(int((p == 0).sum())))
    Console().print(table)
    typer.echo(f"wrote {out}")


def _logits(words: str) -> list[float]:
    row = numbers(words)
    if not row or not all(map(math.isfinite, row)):
        raise typer.BadParameter(
            f"{words!r} is not a list of finite numbers; write --logits 2,1.5,.3,-1", param_hint="--logits"
        )
    if len(row) > MOST_LOGITS:
        raise typer.BadParameter(f"a figure has room for {MOST_LOGITS} logits, got {len(row)}", param_hint="--logits")
    return row


@app.command("calibration")
def calibration(
    predictions: Annotated[
        list[Path], typer.Argument(help="Files written by np.savez(FILE, marginals=model.predict_proba(X), targets=y).")
    ],
    bins: Annotated[int, typer.Option(min=1, help="The maximum number of points of a curve.")] = 15,
    out: Annotated[Path, typer.Option(help="The figure: .png, .svg or .pdf.")] = Path("calibration.png"),
) -> None:
    """Plot predicted against observed label frequencies, one curve for each file of predictions."""
    from rsoftmax.plots import draw_calibration

    path = figure_path(out)
    distinct = len({file.stem for file in predictions}) == len(predictions)
    curves = {file.stem if distinct else str(file): _read_curve(file, bins) for file in predictions}
    with usage_errors("--out"):
        draw_calibration(curves, path)
    for name, curve in curves.items():
        typer.echo(f"{name}: calibration error {curve.error:.4f}, Brier score {curve.brier:.4f}")
    typer.echo(f"wrote {out}")


def _read_curve(file: Path, bins: int) -> "CalibrationCurve":
    """The curve of a file of predictions; errors name the file."""
    import zipfile

    import numpy as np
    import torch

    from rsoftmax.labels.evaluation import calibration_curve

    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            marginals, targets = (torch.from_numpy(np.asarray(arrays[name], dtype=np.float64)) for name in ARRAYS)
        return calibration_curve(marginals, targets, bins=bins)
    except (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        needed = "write the file with np.savez(FILE, marginals=..., targets=...)"
        raise typer.BadParameter(f"{file}: {error}; {needed}", param_hint="PREDICTIONS") from None
