"""``rsoftmax reproduce voc``, ``rsoftmax reproduce coco`` and ``rsoftmax predict``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rsoftmax.cli.experiments import Address, Engine, Jobs, Out, Quick, Seeds, do_runs, results_folder, show_report
from rsoftmax.cli.reproduce import app as reproduce

if TYPE_CHECKING:
    from rsoftmax.experiments.images.pictures import Splits

app = typer.Typer()
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")

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


@reproduce.command("voc", help="Table 1 and Figure 3 on VOC: DATA/VOC2007/JPEGImages and ImageSets/Main.")
@reproduce.command("coco", help="Table 1 and Figure 3 on COCO: DATA/annotations/instances_*.json and the pictures.")
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
    from rsoftmax.experiments.contest import METHODS
    from rsoftmax.experiments.images import finetune as whole
    from rsoftmax.experiments.images import frozen, table1
    from rsoftmax.experiments.images.backbone import Backbone
    from rsoftmax.experiments.images.classifier import check_place
    from rsoftmax.experiments.images.pictures import BadPictureError

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


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="What `rsoftmax reproduce voc --save` wrote.")],
    pictures: Annotated[Path, typer.Argument(help="A picture, or a folder of them.")],
    show: Annotated[
        Path | None, typer.Option(help="Write the picture with its labels and a bar chart here; a folder for a folder.")
    ] = None,
    skip_bad: SkipBad = False,
) -> None:
    """Say what is in pictures: the labels with their probabilities, exact zeros left out."""
    from rsoftmax.experiments.images import show as drawing
    from rsoftmax.experiments.images.classifier import PictureClassifier
    from rsoftmax.experiments.images.classifier import predict as labels_of
    from rsoftmax.experiments.images.pictures import BadPictureError, open_picture

    try:
        classifier, backbone = PictureClassifier.load(model)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    paths = (
        sorted(path for path in pictures.iterdir() if path.suffix.lower() in ENDINGS)
        if pictures.is_dir()
        else [pictures]
    )
    if not paths:
        raise typer.BadParameter(f"{pictures} holds no pictures ({', '.join(ENDINGS)})", param_hint="PICTURES")
    targets = dict.fromkeys(paths, show)
    if show is not None and pictures.is_dir():
        targets = {path: show / f"{path.name}.png" for path in paths}
    elif show is not None and show.suffix.lower() not in drawing.endings():
        raise typer.BadParameter(f"{show} does not end in {', '.join(drawing.endings())}", param_hint="--show")
    if show is not None and show.resolve() == pictures.resolve():
        raise typer.BadParameter(f"{show} is where the pictures are; name another place", param_hint="--show")
    bad = 0
    for path in paths:
        try:
            picture = open_picture(path, str(path))
        except BadPictureError as error:
            if not skip_bad:
                raise typer.BadParameter(f"{error}; --skip-bad goes on without it", param_hint="PICTURES") from None
            bad += 1
            continue
        found = labels_of(classifier, backbone, [picture])[0]
        typer.echo(f"{path.name}: {', '.join(map(str, found)) or 'no label'}")
        if (target := targets[path]) is not None:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                drawing.draw(picture, found, path.name, target)
            except OSError as error:
                raise typer.BadParameter(str(error), param_hint="--show") from None
    if bad:
        typer.echo(f"left out: {bad} of {len(paths)} pictures, which cannot be opened")
    if show is not None and bad < len(paths):
        typer.echo(f"wrote {show}")


def _read(dataset: str, data: str) -> "Splits":
    from rsoftmax.experiments.images import coco, hub, voc

    folder = Path(data)
    if not folder.is_dir() and hub.is_hub_id(data):
        return hub.read(data)
    return (voc.read if dataset == "voc" else coco.read)(folder.resolve())
