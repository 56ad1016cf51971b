"""``rsoftmax reproduce pretrained``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Sweep


def pretrained(
    model: Annotated[str, typer.Option(help="A language model or an encoder: a folder or hub id.")],
    texts: Annotated[
        list[Path], typer.Option(help="A UTF-8 file of texts of one kind; repeatable.", exists=True, dir_okay=False)
    ],
    calibrated: Annotated[
        list[Path] | None,
        typer.Option(help="A folder that `rsoftmax calibrate` wrote for this model; repeatable.", exists=True),
    ] = None,
    length: Annotated[list[int] | None, typer.Option(min=2, help="Tokens per text; repeatable. Default: 1024.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="The number of texts. Default: 4, 2 with --quick.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(help="As in 't_softmax t=6 edge=0'; repeatable. Default: eleven, two with --quick."),
    ] = None,
    *,
    sweep: Sweep,
) -> None:
    """Pretrained models without training: error, zeros and time for distances, rates, counts and edges."""
    from functools import partial

    with usage_errors():
        from rsoftmax_lab.experiments.names import absolute, source_name
        from rsoftmax_lab.experiments.pretrained import grid
        from rsoftmax_lab.experiments.pretrained.data import thresholds
        from rsoftmax_lab.experiments.pretrained.run import run

        files = {grid.text_name(path): path.resolve() for path in texts}
        found = {
            f"{grid.CALIBRATED}, {source_name(str(path), '*.safetensors', '*.json')}": thresholds(path.resolve())
            for path in calibrated or []
        }
        given = {"samples": samples, "settings": tuple(setting or ())}
        runs = (grid.quick_grid if sweep.quick else grid.grid)(
            source_name(model, "*.safetensors", "*.json", "*.txt"),
            list(files),
            length or [1024],
            calibrated=tuple(found),
            **{name: value for name, value in given.items() if value},
        )
    sweep.on_device().do("pretrained", runs, partial(run, absolute(model), files, found))
