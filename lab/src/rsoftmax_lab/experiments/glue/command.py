"""``rsoftmax reproduce glue`` and ``rsoftmax reproduce rates``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax_lab.running.options import Sweep

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.glue.grid import Run


@dataclass(frozen=True)
class Options:
    """What is fine-tuned, on which data, and which part of the grid."""

    model: Annotated[str, typer.Option(help="The encoder: a folder, or a hub id; weights in safetensors only.")]
    data: Annotated[str, typer.Option(help="A folder in GLUE's layout, TASK/train.tsv and dev.tsv, or a hub id.")]
    task: Annotated[list[str] | None, typer.Option(help="MRPC, RTE, SST-2, QNLI or QQP; may be given again.")] = None
    mapping: Annotated[list[str] | None, typer.Option(help="One of `rsoftmax list`; may be given again.")] = None
    lr: Annotated[list[float] | None, typer.Option(help="A learning rate; may be given again.")] = None
    r: Annotated[list[float] | None, typer.Option(help="A final rate of r-softmax; may be given again.")] = None
    epochs: Annotated[float | None, typer.Option(help="The paper's if not given: 5 for MRPC, 3 for others.")] = None
    schedule: Annotated[str | None, typer.Option(help="How r grows: linear, cosine or constant.")] = None
    max_train_samples: Annotated[int | None, typer.Option(min=1, help="Rows to train on, drawn by the seed.")] = None
    max_eval_samples: Annotated[int | None, typer.Option(min=1, help="Dev rows to score.")] = None
    validation_samples: Annotated[
        int | None, typer.Option(min=0, help="Training rows to select on, at most a tenth of them; 0 for none.")
    ] = None
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out broken lines of the files.")] = False
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Multiply matrices in bfloat16: less exact; faster where the hardware can.")
    ] = False
    seeds: Annotated[int, typer.Option(min=1, help="How often everything is run, each time with another seed.")] = 1

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the grid that were given."""
        settings = {
            "tasks": [one.upper() for one in self.task or []],
            "mappings": self.mapping,
            "learning_rates": self.lr,
            "rates": self.r,
            "epochs": self.epochs,
            "schedule": self.schedule,
            "max_train_samples": self.max_train_samples,
            "max_eval_samples": self.max_eval_samples,
            "validation_samples": self.validation_samples,
            "bf16": self.bf16 or None,
        }
        return {name: value for name, value in settings.items() if value is not None and value != []}


def glue(options: Options, sweep: Sweep) -> None:
    """Table 2: an encoder fine-tuned on GLUE, by every mapping; the paper's grid, or the part that is asked for.

    Under torchrun all processes train one model at a time:
    torchrun --nproc_per_node 2 -m -- rsoftmax reproduce glue ...
    """
    _do("glue", options, sweep)


def rates(options: Options, sweep: Sweep) -> None:
    """What growing rates cost in accuracy and save in time: RTE and SST-2, the same recipe for every r.

    Each row says how long a training step takes beside the same step with torch's own attention, in turns.
    """
    _do("rates", options, sweep)


def _do(name: str, options: Options, sweep: Sweep) -> None:
    from functools import partial

    import torch

    try:
        from rsoftmax_lab.experiments.glue.run import run
    except ImportError as missing:
        hint = f"{missing.name} is missing; run: pip install 'rsoftmax-lab[glue]'"
        raise typer.BadParameter(hint, param_hint=name) from None
    try:
        runs = _prepare(name, options, sweep)
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if torch.accelerator.is_available():
        sweep = replace(sweep, jobs=sweep.jobs or 1)  # several runs would share the one device
    model, data = map(_absolute, (options.model, options.data))
    sweep.do(name, runs, partial(run, model, data, options.skip_bad))


def _prepare(name: str, options: Options, sweep: Sweep) -> "list[Run]":
    """Everything that can be refused, before the first run."""
    from rsoftmax_lab.experiments.glue import grid
    from rsoftmax_lab.experiments.glue.run import check
    from rsoftmax_lab.experiments.names import source_name
    from rsoftmax_lab.running import ranks

    if options.r and options.mapping and not any(map(grid.takes_r, options.mapping)):
        raise typer.BadParameter(f"{', '.join(options.mapping)} takes no r", param_hint="--r")
    grids = {"glue": (grid.grid, grid.quick_grid), "rates": (grid.rates_grid, grid.quick_rates_grid)}
    runs = grids[name][sweep.quick](
        seeds=options.seeds,
        model=source_name(options.model, "*.safetensors", "*.json", "*.txt"),
        **options.given,
    )
    runs = [replace(run, data=source_name(options.data, f"{run.task}/*.tsv")) for run in runs]
    for task, count in check(options.model, options.data, runs, options.skip_bad).items():
        if count and ranks.first():
            typer.echo(f"{task}: {count} bad lines are left out")
    return runs


def _absolute(source: str) -> str:
    """A folder by its whole path, as workers may start elsewhere; a hub id as it is."""
    return str(Path(source).absolute()) if Path(source).is_dir() else source
