"""``rsoftmax reproduce glue``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rsoftmax_lab.commands.sweeps import Address, Engine, Jobs, Out, Quick, do_runs, results_folder, show_report

app = typer.Typer()


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
    from dataclasses import replace
    from functools import partial

    import torch

    from rsoftmax_lab.experiments.glue import grid as experiment
    from rsoftmax_lab.running import ranks

    try:
        from rsoftmax_lab.experiments.glue import run as finetune
    except ImportError as missing:
        raise typer.BadParameter(
            f"{missing.name} is missing; run: pip install 'rsoftmax[hf]'", param_hint="glue"
        ) from None

    out = out or results_folder(quick)
    if r and mapping and not any(map(experiment.takes_r, mapping)):
        raise typer.BadParameter(f"{', '.join(mapping)} takes no r", param_hint="--r")
    given: dict[str, Any] = {
        "tasks": [one.upper() for one in task] if task else None,
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
            model=experiment.name(model, "*.safetensors", "*.json", "*.txt"),
            **{name: value for name, value in given.items() if value is not None},
        )
        runs = [replace(run, data=experiment.name(data, f"{run.task}/*.tsv")) for run in runs]
        skipped = finetune.check(model, data, runs, skip_bad)
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    for name, count in skipped.items():
        if count and ranks.first():
            typer.echo(f"{name}: {count} bad lines are left out")
    jobs = jobs or (1 if torch.accelerator.is_available() else None)  # runs would share the one device
    model, data = (str(Path(place).absolute()) if Path(place).is_dir() else place for place in (model, data))
    do_runs(runs, partial(finetune.run, model, data, skip_bad), out / "glue.jsonl", jobs, engine, address)
    if ranks.first():
        show_report(out, "glue")
