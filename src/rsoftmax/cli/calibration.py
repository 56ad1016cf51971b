"""``rsoftmax plot calibration``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsoftmax.cli.arguments import picture

if TYPE_CHECKING:
    from rsoftmax.multilabel import CalibrationCurve

ARRAYS = ("marginals", "targets")


def calibration(
    predictions: Annotated[
        list[Path], typer.Argument(help="Files of np.savez(FILE, marginals=model.predict_proba(X), targets=y).")
    ],
    bins: Annotated[int, typer.Option(min=1, help="The number of points of a curve, at most.")] = 15,
    out: Annotated[Path, typer.Option(help="Where to write the picture; its ending names the format.")] = Path(
        "calibration.png"
    ),
) -> None:
    """Draw how often labels of each marginal are there, for one file of predictions or several side by side."""
    from rsoftmax.plots import draw_calibration

    path = picture(out)
    curves = {file.stem: _read(file, bins) for file in predictions}
    try:
        draw_calibration(curves, path)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    for name, curve in curves.items():
        typer.echo(f"{name}: calibration error {curve.error:.4f}, Brier score {curve.brier:.4f}")
    typer.echo(f"wrote {out}")


def _read(file: Path, bins: int) -> "CalibrationCurve":
    """The curve of a file; whatever is wrong with it is said by its name."""
    import zipfile

    import numpy as np
    import torch

    from rsoftmax.multilabel import calibration_curve

    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            marginals, targets = (torch.from_numpy(np.asarray(arrays[name], dtype=np.float64)) for name in ARRAYS)
        return calibration_curve(marginals, targets, bins=bins)
    except (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        needed = "np.savez(FILE, marginals=..., targets=...) writes such a file"
        raise typer.BadParameter(f"{file}: {error}; {needed}", param_hint="PREDICTIONS") from None
