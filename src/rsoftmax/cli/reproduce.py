"""``rsoftmax reproduce synthetic``, ``tabular`` and ``glue``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)

Quick = Annotated[bool, typer.Option("--quick", help="The same code on a small grid: minutes, not hours.")]
Seeds = Annotated[
    int, typer.Option(min=1, help="How often everything is run, each time with another seed; once with --quick.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The folder of results; what is there already is not run again. [default: results, or results/quick]"
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; one for each core if not given.")]
Engine = Annotated[str, typer.Option(help="Where: local (processes here), ray or dask (a cluster).")]
Address = Annotated[str | None, typer.Option(help="The cluster's address; without it, one is started here.")]


@app.command()
def synthetic(
    quick: Quick = False,
    seeds: Seeds = 3,
    out: Out = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Figure 2: synthetic documents, the number of labels and the length varied."""
    from rsoftmax.experiments import synthetic as experiment

    out = out or _folder(quick)
    runs = experiment.quick_grid() if quick else experiment.grid(seeds)
    _sweep(runs, experiment.run, out / "synthetic.jsonl", jobs, engine, address)
    _show(out, "synthetic")


@app.command()
def tabular(
    data: Annotated[Path, typer.Option(help="A folder with a folder for each set, in Mulan's ARFF format.")],
    only: Annotated[list[str] | None, typer.Option(help="A set to run; may be given again. All if not given.")] = None,
    quick: Quick = False,
    seeds: Seeds = 3,
    out: Out = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """The same contest on real sets."""
    from functools import partial

    from rsoftmax.experiments import mulan
    from rsoftmax.experiments import tabular as experiment

    out = out or _folder(quick)
    try:
        names = mulan.names(data, only)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None
    runs = experiment.quick_grid(names) if quick else experiment.grid(names, seeds)
    _sweep(runs, partial(experiment.run, data.resolve()), out / "tabular.jsonl", jobs, engine, address)
    _show(out, "tabular")


@app.command()
def glue(
    model: Annotated[str, typer.Option(help="The encoder: a folder, or a hub id; weights in safetensors only.")],
    data: Annotated[str, typer.Option(help="A folder in GLUE's layout, TASK/train.tsv and dev.tsv, or a hub id.")],
    task: Annotated[list[str] | None, typer.Option(help="MRPC, RTE, SST-2, QNLI or QQP; may be given again.")] = None,
    mapping: Annotated[list[str] | None, typer.Option(help="One of `rsoftmax list`; may be given again.")] = None,
    lr: Annotated[list[float] | None, typer.Option(help="A learning rate; may be given again.")] = None,
    r: Annotated[list[float] | None, typer.Option(help="A final rate of r-softmax; may be given again.")] = None,
    epochs: Annotated[float | None, typer.Option(help="The paper's if not given: 5 for MRPC, 3 for others.")] = None,
    schedule: Annotated[str | None, typer.Option(help="How r grows: linear, cosine or constant.")] = None,
    max_train_samples: Annotated[int | None, typer.Option(min=1, help="Rows to train on, drawn by the seed.")] = None,
    max_eval_samples: Annotated[int | None, typer.Option(min=1, help="Dev rows to score.")] = None,
    validation_samples: Annotated[
        int | None, typer.Option(min=0, help="Training rows to select on, at most a tenth of them; 0 for none.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out broken lines of the files.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Multiply matrices in bfloat16: faster, less exact.")] = False,
    quick: Quick = False,
    seeds: Annotated[int, typer.Option(min=1, help="How often everything is run, each time with another seed.")] = 1,
    out: Out = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Table 2: an encoder fine-tuned on GLUE, by every mapping; the paper's grid, or the part that is asked for.

    Under torchrun all processes train one model at a time:
    torchrun --nproc_per_node 2 -m -- rsoftmax reproduce glue ...
    """
    from functools import partial

    import torch

    from rsoftmax.experiments import glue as experiment
    from rsoftmax.experiments import ranks

    try:
        from rsoftmax.experiments import finetune
    except ImportError as missing:
        raise typer.BadParameter(
            f"{missing.name} is missing; run: pip install 'rsoftmax[hf]'", param_hint="glue"
        ) from None

    out = out or _folder(quick)
    given: dict[str, Any] = {
        "tasks": task or None,
        "mappings": mapping or None,
        "lrs": lr or None,
        "rates": r or None,
        "epochs": epochs,
        "schedule": schedule,
        "max_train_samples": max_train_samples,
        "max_eval_samples": max_eval_samples,
        "validation_samples": validation_samples,
        "bf16": bf16 or None,
    }
    try:
        runs = (experiment.quick_grid if quick else experiment.grid)(
            seeds=seeds,
            model=experiment.name(model),
            data=experiment.name(data),
            **{name: value for name, value in given.items() if value is not None},
        )
        skipped = finetune.check(model, data, runs, skip_bad)
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    for name, count in skipped.items():
        if count and ranks.first():
            typer.echo(f"{name}: {count} bad lines are left out")
    jobs = jobs or (1 if torch.accelerator.is_available() else None)  # runs would share the one device
    model, data = (str(Path(place).absolute()) if Path(place).is_dir() else place for place in (model, data))
    _sweep(runs, partial(finetune.run, model, data, skip_bad), out / "glue.jsonl", jobs, engine, address)
    if ranks.first():
        _show(out, "glue")


def _folder(quick: bool) -> Path:
    return Path("results/quick" if quick else "results")


def _sweep(
    runs: Sequence[Any],
    function: Callable[[Any], dict[str, Any]],
    path: Path,
    jobs: int | None,
    engine: str,
    address: str | None,
) -> None:
    from rsoftmax.experiments.sweep import sweep

    try:
        rows = sweep(runs, function, path, engine=engine, address=address, jobs=jobs)
    except (ModuleNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--engine") from None
    except OSError as error:  # a place that cannot be written, a full disk
        raise typer.BadParameter(str(error), param_hint="--out") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if len(rows) < len(runs):
        raise typer.Exit(1)


def _show(out: Path, experiment: str) -> None:
    """End with a table and a picture."""
    from rsoftmax.experiments import report

    console = Console()
    try:
        written = report.write(out, out / "report", Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    console.print(written.sections[experiment].summary)
    for path in written.files:
        typer.echo(f"wrote {path}")
