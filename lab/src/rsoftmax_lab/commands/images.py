"""``rsoftmax reproduce voc`` and ``rsoftmax reproduce coco``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsoftmax_lab.commands.sweeps import Address, Engine, Jobs, Out, Quick, Seeds, do_runs, results_folder, show_report

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.images.pictures import Splits

app = typer.Typer()

Data = Annotated[str, typer.Option(help="The folder of the set, or a hub id of the package datasets.")]
Model = Annotated[str, typer.Option(help="A pre-trained network: a folder of Hugging Face's kind, or a hub id.")]
Finetune = Annotated[
    bool,
    typer.Option(
        "--finetune/--frozen", help="Train the whole network, as the paper does; or heads on features computed once."
    ),
]
Only = Annotated[list[str] | None, typer.Option(help="A method to run; may be given again. All if not given.")]
Rates = Annotated[list[float] | None, typer.Option("--lr", help="A learning rate; may be given again. [default: the "
                  "paper's 1e-3, 1e-4, 1e-5]")]  # fmt: skip
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the training pictures; 10 with --quick.")]
Shares = Annotated[
    list[float] | None,
    typer.Option(
        "--share",
        min=0,
        max=0.9,
        help="The share of training pictures to choose epoch and learning rate on; 0 is the paper's way, on val; may be"
        " given again. [default: 0.2 and 0]",
    ),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Pictures in a step. [default: 128, or 32 in fine-tuning]")]
Some = Annotated[int, typer.Option("--pictures", min=0, help="How many of each split, always the same; all if 0.")]
Augment = Annotated[bool, typer.Option("--augment", help="Crop and mirror at random, in fine-tuning.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Count and leave out pictures that cannot be opened.")]
Cache = Annotated[Path | None, typer.Option(help="The folder for features. [default: OUT/features]")]
Save = Annotated[Path | None, typer.Option(help="Save a whole model here, for `rsoftmax predict`.")]
Saved = Annotated[str, typer.Option("--save-method", help="Which method's model to save.")]


@app.command("voc", help="Table 1 and Figure 3 on VOC: DATA/VOC2007/JPEGImages and ImageSets/Main.")
@app.command("coco", help="Table 1 and Figure 3 on COCO: DATA/annotations/instances_*.json and the pictures.")
def images(
    context: typer.Context,
    data: Data,
    model: Model,
    finetune: Finetune = False,
    only: Only = None,
    lr: Rates = None,
    epochs: Epochs = 100,
    share: Shares = None,
    batch_size: BatchSize = None,
    pictures: Some = 0,
    augment: Augment = False,
    skip_bad: SkipBad = False,
    cache: Cache = None,
    save: Save = None,
    save_method: Saved = "r_softmax_expected_f1",
    quick: Quick = False,
    seeds: Seeds = 3,
    out: Out = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Train every method of Table 1 on a set of pictures, the one that the command is called after."""
    from rich.console import Console

    from rsoftmax.huggingface.backbone import Backbone
    from rsoftmax.huggingface.picture_classifier import check_place
    from rsoftmax.pictures import BadPictureError
    from rsoftmax_lab.contest.play import METHODS
    from rsoftmax_lab.experiments.images import finetune as whole
    from rsoftmax_lab.experiments.images import frozen, table1

    out, dataset = out or results_folder(quick), str(context.command.name)
    methods = list(dict.fromkeys([*only, *([save_method] if save else [])])) if only else list(METHODS)
    for method in (*methods, save_method):
        if method not in METHODS:
            raise typer.BadParameter(f"no method is called {method!r}; there are {', '.join(METHODS)}")
    if augment and not finetune:
        raise typer.BadParameter("--frozen sees each picture once; use --finetune", param_hint="--augment")
    console = Console(soft_wrap=True)
    try:
        if save is not None:
            check_place(save)
        splits = table1.some(_read(dataset, data), pictures)
        backbone = Backbone.load(model)
        if finetune:
            way: whole.Whole | frozen.Frozen = whole.Whole.of(model, out / "finetune", splits, skip_bad, console)
        else:
            way = frozen.Frozen.of(backbone, splits, cache or out / "features", skip_bad, jobs, console)
        runs = table1.grid(
            methods,
            1 if quick else seeds,
            lr or (table1.LEARNING_RATES[:1] if quick else table1.LEARNING_RATES),
            share or table1.SHARES,
            epochs=10 if quick else epochs,
            batch_size=batch_size or (32 if finetune else 128),
            dataset=dataset,
            finetune=finetune,
            augment=augment,
            pictures=pictures,
            model=backbone.name,
            data=table1.fingerprint(backbone, way.splits),
        )
        table1.check(way.splits, runs)
    except BadPictureError as error:
        raise typer.BadParameter(f"{error}; --skip-bad goes on without it", param_hint="--data") from None
    except (OSError, ValueError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    do_runs(runs, way.run, out / f"{dataset}.jsonl", jobs, engine, address)
    if save is not None:
        run, epoch = table1.chosen(out / f"{dataset}.jsonl", [run for run in runs if run.method == save_method])
        try:
            way.save(run, epoch, save)
        except (OSError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--save") from None
        typer.echo(f"wrote {save}: {METHODS[save_method].title}, lr {run.lr:g}")
    show_report(out, "images")


def _read(dataset: str, data: str) -> "Splits":
    from rsoftmax.huggingface.backbone import is_hub_id
    from rsoftmax_lab.experiments.images import coco, hub, voc

    folder = Path(data)
    if not folder.is_dir() and is_hub_id(data):
        return hub.read(data)
    return (voc.read if dataset == "voc" else coco.read)(folder.resolve())
