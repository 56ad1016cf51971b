"""``rsoftmax reproduce glue``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Sweep

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.glue.grid import Run

    Grid = Callable[..., list[Run]]


@dataclass(frozen=True)
class Training:
    """The model, the data, and the settings of fine-tuning."""

    model: Annotated[str, typer.Option(help="The encoder: a folder or hub id with safetensors weights.")]
    data: Annotated[str, typer.Option(help="A folder in GLUE's layout, TASK/train.tsv and dev.tsv, or a hub id.")]
    task: Annotated[list[str] | None, typer.Option(help="MRPC, RTE, SST-2, QNLI or QQP; repeatable.")] = None
    lr: Annotated[list[float] | None, typer.Option(help="A learning rate; repeatable.")] = None
    r: Annotated[list[float] | None, typer.Option(help="A final rate of r-softmax; repeatable.")] = None
    t: Annotated[float | None, typer.Option(help="The distance t of t_softmax, from the first step on.")] = None
    k: Annotated[float | None, typer.Option(help="The number k of k_softmax, from the first step on.")] = None
    edge: Annotated[
        float | None,
        typer.Option(help="The edge of mappings that have one. Default: the paper's weights; in rates 1 for t and k."),
    ] = None
    epochs: Annotated[
        float | None, typer.Option(help="The number of epochs. Default, as in the paper: 5 for MRPC, 3 for the others.")
    ] = None
    schedule: Annotated[
        str | None, typer.Option(help="How r grows: linear, cosine or constant; edge: r is constant, the edge grows.")
    ] = None
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
    seeds: Annotated[
        int | None, typer.Option(min=1, help="The number of seeds. Default: 1; 3 for rates, without --quick.")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The grid settings that were given."""
        settings = {
            "tasks": [one.upper() for one in self.task or []],
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
            "seeds": self.seeds,
        }
        return {name: value for name, value in settings.items() if value is not None and value != []}


@dataclass(frozen=True)
class Options(Training):
    """The part of the grid to run."""

    mapping: Annotated[list[str] | None, typer.Option(help="One of `rsoftmax list`; repeatable.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The grid settings that were given."""
        return super().given | ({"mappings": self.mapping} if self.mapping else {})


def glue(options: Options, sweep: Sweep) -> None:
    """Table 2: an encoder fine-tuned on GLUE with every mapping; the paper's grid, or the requested part of it.

    Under torchrun, all processes train one model at a time:
    torchrun --nproc_per_node 2 -m -- rsoftmax reproduce glue ...
    """
    from rsoftmax_lab.experiments.glue import grid

    mappings = options.mapping or grid.COMPARED
    for name, value in (("r", options.r), ("t", options.t), ("k", options.k), ("edge", options.edge)):
        if value not in (None, []) and not any(grid.takes(mapping, name) for mapping in mappings):
            raise typer.BadParameter(f"no mapping takes {name}, got {', '.join(mappings)}", param_hint=f"--{name}")
    finetune((grid.grid, grid.quick_grid), options, sweep)


def finetune(grids: "tuple[Grid, Grid]", options: Training, sweep: Sweep) -> None:
    """Do the runs of a grid, or of its quick version, and write their rows to ``glue.jsonl``."""
    from functools import partial

    from rsoftmax_lab.experiments.names import absolute

    try:
        from rsoftmax_lab.experiments.glue.run import run
    except ImportError as missing:
        hint = f"{missing.name} is missing; run: pip install 'rsoftmax-lab[glue]'"
        raise typer.BadParameter(hint, param_hint="--model") from None
    with usage_errors():
        runs = _prepare(grids[sweep.quick], options)
    function = partial(run, absolute(options.model), absolute(options.data), options.skip_bad)
    sweep.on_device().do("glue", runs, function)


def _prepare(grid: "Grid", options: Training) -> "list[Run]":
    """The runs, with everything validated before the first one."""
    from rsoftmax_lab.experiments.glue.run import check
    from rsoftmax_lab.experiments.names import source_name
    from rsoftmax_lab.running import ranks

    runs = grid(model=source_name(options.model, "*.safetensors", "*.json", "*.txt"), **options.given)
    runs = [replace(run, data=source_name(options.data, f"{run.task}/*.tsv")) for run in runs]
    for task, count in check(options.model, options.data, runs, options.skip_bad).items():
        if count and ranks.first():
            typer.echo(f"{task}: {count} malformed lines are skipped")
    return runs
