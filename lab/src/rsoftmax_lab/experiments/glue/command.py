"""``rsoftmax reproduce glue`` and ``rsoftmax reproduce rates``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Sweep

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.glue.grid import Run


@dataclass(frozen=True)
class Options:
    """The model, the data, and the part of the grid to run."""

    model: Annotated[str, typer.Option(help="The encoder: a folder or hub id with safetensors weights.")]
    data: Annotated[str, typer.Option(help="A folder in GLUE's layout, TASK/train.tsv and dev.tsv, or a hub id.")]
    task: Annotated[list[str] | None, typer.Option(help="MRPC, RTE, SST-2, QNLI or QQP; repeatable.")] = None
    mapping: Annotated[list[str] | None, typer.Option(help="One of `rsoftmax list`; repeatable.")] = None
    lr: Annotated[list[float] | None, typer.Option(help="A learning rate; repeatable.")] = None
    r: Annotated[list[float] | None, typer.Option(help="A final rate of r-softmax; repeatable.")] = None
    t: Annotated[float | None, typer.Option(help="The distance t of t_softmax, from the first step on.")] = None
    k: Annotated[float | None, typer.Option(help="The number k of k_softmax, from the first step on.")] = None
    edge: Annotated[
        float | None, typer.Option(help="The edge of mappings that have one. Default: the paper's weights.")
    ] = None
    epochs: Annotated[
        float | None, typer.Option(help="The number of epochs. Default, as in the paper: 5 for MRPC, 3 for the others.")
    ] = None
    schedule: Annotated[str | None, typer.Option(help="How r grows: linear, cosine or constant.")] = None
    max_train_samples: Annotated[
        int | None, typer.Option(min=1, help="The number of training rows, drawn at random.")
    ] = None
    max_eval_samples: Annotated[int | None, typer.Option(min=1, help="The number of dev rows to score.")] = None
    validation_samples: Annotated[
        int | None,
        typer.Option(min=0, help="The number of training rows to hold out for selection, at most a tenth; 0 for none."),
    ] = None
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip malformed lines.")] = False
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Multiply matrices in bfloat16: less precise, faster on supporting hardware.")
    ] = False
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds.")] = 1

    @property
    def given(self) -> dict[str, Any]:
        """The grid settings that were given."""
        settings = {
            "tasks": [one.upper() for one in self.task or []],
            "mappings": self.mapping,
            "learning_rates": self.lr,
            "rates": self.r,
            "t": self.t,
            "k": self.k,
            "edge": self.edge,
            "epochs": self.epochs,
            "schedule": self.schedule,
            "max_train_samples": self.max_train_samples,
            "max_eval_samples": self.max_eval_samples,
            "validation_samples": self.validation_samples,
            "bf16": self.bf16 or None,
        }
        return {name: value for name, value in settings.items() if value is not None and value != []}


def glue(options: Options, sweep: Sweep) -> None:
    """Table 2: an encoder fine-tuned on GLUE with every mapping; the paper's grid, or the requested part of it.

    Under torchrun, all processes train one model at a time:
    torchrun --nproc_per_node 2 -m -- rsoftmax reproduce glue ...
    """
    _do("glue", options, sweep)


def rates(options: Options, sweep: Sweep) -> None:
    """Accuracy and step time at growing rates: RTE and SST-2, the same recipe for every r.

    Each row records the time of a training step relative to torch's attention, measured interleaved.
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
    with usage_errors():
        runs = _prepare(name, options, sweep)
    if torch.accelerator.is_available():
        sweep = replace(sweep, jobs=sweep.jobs or 1)  # several runs would share one device
    model, data = map(_absolute, (options.model, options.data))
    sweep.do(name, runs, partial(run, model, data, options.skip_bad))


def _prepare(name: str, options: Options, sweep: Sweep) -> "list[Run]":
    """Validate everything before the first run."""
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
            typer.echo(f"{task}: {count} malformed lines are skipped")
    return runs


def _absolute(source: str) -> str:
    """A folder as an absolute path, because workers may start elsewhere; a hub id unchanged."""
    return str(Path(source).absolute()) if Path(source).is_dir() else source
