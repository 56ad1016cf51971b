"""``rsoftmax reproduce voc`` and ``rsoftmax reproduce coco``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax_lab.running.options import Seeds, Sweep

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.images.grid import Run
    from rsoftmax_lab.experiments.images.run import Way


@dataclass(frozen=True)
class Options:
    """What is trained on which pictures."""

    data: Annotated[str, typer.Option(help="The folder of the set, or a hub id of the package datasets.")]
    model: Annotated[str, typer.Option(help="A pre-trained network: a folder of Hugging Face's kind, or a hub id.")]
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune/--frozen",
            help="Train the whole network, as the paper does; or heads on features computed once.",
        ),
    ] = False
    train_last: Annotated[
        int,
        typer.Option(
            min=0,
            help="Fine-tune the last N stages of the network and the head. What lies before is computed once, in"
            " float16, and kept with the features: before the last stage of a ResNet-50, 0.4 MB for each picture of"
            " 224 x 224, and as much for each mirrored training picture with --augment. 0: no stage, or all with"
            " --finetune.",
        ),
    ] = 0
    only: Annotated[list[str] | None, typer.Option(help="A method to run; may be given again. All if not given.")] = (
        None
    )
    lr: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate; may be given again. If not given, the paper's: 1e-3, 1e-4, 1e-5."),
    ] = None
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training pictures; 10 with --quick.")] = 100
    share: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=0.9,
            help="The share of training pictures to choose epoch and learning rate on; 0 is the paper's way, on val;"
            " may be given again. If not given: 0.2 and 0.",
        ),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Pictures in a step. If not given: 128, or 32 in fine-tuning.")
    ] = None
    pictures: Annotated[int, typer.Option(min=0, help="How many of each split, always the same; all if 0.")] = 0
    augment: Annotated[
        bool,
        typer.Option("--augment", help="Crop and mirror at random, in fine-tuning; with --train-last, mirror only."),
    ] = False
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count and leave out pictures that cannot be opened.")
    ] = False
    cache: Annotated[
        Path | None, typer.Option(help="The folder for what is computed once. If not given: OUT/features.")
    ] = None
    save: Annotated[Path | None, typer.Option(help="Save a whole model here, for `rsoftmax predict`.")] = None
    save_method: Annotated[str, typer.Option(help="Which method's model to save.")] = "r_softmax_expected_f1"
    seeds: Seeds = 3

    @property
    def tunes(self) -> bool:
        """Whether the network is trained, all or the end of it."""
        return self.finetune or self.train_last > 0

    @property
    def methods(self) -> list[str]:
        """The methods to run, that to be saved among them."""
        from rsoftmax_lab.contest.methods import METHODS

        saved = [self.save_method] if self.save else []
        return list(dict.fromkeys([*self.only, *saved])) if self.only else list(METHODS)

    def settings(self, dataset: str) -> dict[str, Any]:
        """The settings of the grid on a set."""
        return {
            "seeds": self.seeds,
            "learning_rates": self.lr,
            "shares": self.share,
            "epochs": self.epochs,
            "batch_size": self.batch_size or (32 if self.tunes else 128),
            "dataset": dataset,
            "finetune": self.tunes,
            "train_last": self.train_last,
            "augment": self.augment,
            "pictures": self.pictures,
        }


def voc(options: Options, sweep: Sweep) -> None:
    """Table 1 and Figure 3 on VOC: DATA/VOC2007/JPEGImages and ImageSets/Main."""
    _reproduce("voc", options, sweep)


def coco(options: Options, sweep: Sweep) -> None:
    """Table 1 and Figure 3 on COCO: DATA/annotations/instances_*.json and the pictures."""
    _reproduce("coco", options, sweep)


def _reproduce(dataset: str, options: Options, sweep: Sweep) -> None:
    from rsoftmax.pictures import BadPictureError

    if options.augment and not options.tunes:
        raise typer.BadParameter(
            "--frozen sees each picture once; use --finetune or --train-last", param_hint="--augment"
        )
    try:
        way, runs = _prepare(dataset, options, sweep)
    except BadPictureError as error:
        raise typer.BadParameter(f"{error}; --skip-bad goes on without it", param_hint="--data") from None
    except (OSError, ValueError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    sweep.do(dataset, runs, way.run)
    if options.save is not None:
        _save(way, runs, sweep.file(dataset), options.save_method, options.save)


def _prepare(dataset: str, options: Options, sweep: Sweep) -> "tuple[Way, list[Run]]":
    """Everything that can be refused, before the first run."""
    from rsoftmax.folders import check_place
    from rsoftmax.huggingface.backbone import Backbone
    from rsoftmax_lab.contest.methods import check_method
    from rsoftmax_lab.experiments.images import data, grid
    from rsoftmax_lab.experiments.images.run import prepare

    for method in (*options.methods, options.save_method):
        check_method(method)
    if options.save is not None:
        check_place(options.save)
    splits = data.subset(data.read(dataset, options.data), options.pictures)
    backbone = Backbone.load(options.model)
    way = prepare(
        backbone,
        splits,
        sweep.folder,
        finetune=options.tunes,
        train_last=options.train_last,
        augment=options.augment,
        cache=options.cache,
        skip_bad=options.skip_bad,
        jobs=sweep.jobs,
    )
    runs = (grid.quick_grid if sweep.quick else grid.grid)(
        options.methods, model=backbone.name, data=data.fingerprint(backbone, way.splits), **options.settings(dataset)
    )
    grid.check(way.splits, runs)
    return way, runs


def _save(way: "Way", runs: "list[Run]", rows: Path, method: str, folder: Path) -> None:
    from rsoftmax_lab.contest.methods import METHODS
    from rsoftmax_lab.experiments.images.results import chosen

    try:
        run, epoch = chosen(rows, [run for run in runs if run.method == method])
        way.save(run, epoch, folder)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--save") from None
    typer.echo(f"wrote {folder}: {METHODS[method].title}, lr {run.lr:g}")
