"""``rsoftmax reproduce voc`` and ``rsoftmax reproduce coco``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Seeds, Sweep

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.images.grid import Run
    from rsoftmax_lab.experiments.images.run import Way


@dataclass(frozen=True)
class Options:
    """The network, the data, and the part of the grid to run."""

    data: Annotated[str, typer.Option(help="The folder of the dataset, or a hub id.")]
    model: Annotated[str, typer.Option(help="A pretrained network: a folder or hub id.")]
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune/--frozen",
            help="Train the whole network, as in the paper, or only heads on frozen features.",
        ),
    ] = False
    train_last: Annotated[
        int,
        typer.Option(
            min=0,
            help="Fine-tune the head and the last N stages of the network. The outputs of the stages before are cached"
            " in float16: before the last stage of a ResNet-50, 0.4 MB per image of 224 x 224, and as much for each"
            " flipped training image with --augment. 0: no stage, or all with --finetune.",
        ),
    ] = 0
    only: Annotated[list[str] | None, typer.Option(help="A method to run; repeatable. Default: all.")] = None
    lr: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate; repeatable. Default, as in the paper: 1e-3, 1e-4, 1e-5."),
    ] = None
    epochs: Annotated[int, typer.Option(min=1, help="The number of epochs; 10 with --quick.")] = 100
    share: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=0.9,
            help="The fraction of training images held out to select epoch and learning rate; 0 selects on val, as in"
            " the paper; repeatable. Default: 0.2 and 0.",
        ),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="The batch size. Default: 128, or 32 in fine-tuning.")
    ] = None
    images: Annotated[
        int, typer.Option(min=0, help="The number of images of each split, always the same ones; 0 for all.")
    ] = 0
    augment: Annotated[
        bool,
        typer.Option("--augment", help="Random crops and flips in fine-tuning; with --train-last, only flips."),
    ] = False
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be opened.")] = False
    cache: Annotated[Path | None, typer.Option(help="The folder of cached features. Default: OUT/features.")] = None
    save: Annotated[
        Path | None,
        typer.Option(
            help="Save a model in this folder, for `rsoftmax predict`: of its best epoch, or after fine-tuning."
        ),
    ] = None
    save_method: Annotated[str, typer.Option(help="The method of the saved model.")] = "r_softmax_expected_f1"
    seeds: Seeds = 3

    @property
    def tunes(self) -> bool:
        """Whether the network is trained, completely or in its last stages."""
        return self.finetune or self.train_last > 0

    @property
    def methods(self) -> list[str]:
        """The methods to run, including the one to save."""
        from rsoftmax_lab.comparison import METHODS

        saved = [self.save_method] if self.save else []
        return list(dict.fromkeys([*self.only, *saved])) if self.only else list(METHODS)

    def settings(self, dataset: str) -> dict[str, Any]:
        """The settings of the grid on a dataset."""
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
            "pictures": self.images,
        }


def voc(options: Options, sweep: Sweep) -> None:
    """Table 1 and Figure 3 on VOC: DATA/VOC2007/JPEGImages and ImageSets/Main."""
    _reproduce("voc", options, sweep)


def coco(options: Options, sweep: Sweep) -> None:
    """Table 1 and Figure 3 on COCO: DATA/annotations/instances_*.json and the images."""
    _reproduce("coco", options, sweep)


def _reproduce(dataset: str, options: Options, sweep: Sweep) -> None:
    from rsoftmax.labels.models.images import BadImageError

    if options.augment and not options.tunes:
        raise typer.BadParameter(
            "--frozen processes each image once; use --finetune or --train-last", param_hint="--augment"
        )
    try:
        way, runs = _prepare(dataset, options, sweep)
    except BadImageError as error:
        raise typer.BadParameter(f"{error}; pass --skip-bad to skip it", param_hint="--data") from None
    except (OSError, ValueError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    (sweep.on_device() if options.tunes else sweep).do(dataset, runs, way.run)
    if options.save is not None:
        _save(way, runs, sweep.file(dataset), options.save_method, options.save)


def _prepare(dataset: str, options: Options, sweep: Sweep) -> "tuple[Way, list[Run]]":
    """Validate everything before the first run."""
    from rsoftmax.labels.models.folders import LABELS, check_writable
    from rsoftmax_lab.comparison import METHODS, check_method
    from rsoftmax_lab.experiments.images import data, grid
    from rsoftmax_lab.experiments.images.backbone import Backbone
    from rsoftmax_lab.experiments.images.run import prepare

    for method in (*options.methods, options.save_method):
        check_method(method, METHODS)
    if options.save is not None:
        check_writable(options.save, LABELS)
    splits = data.subset(data.read(dataset, options.data), options.images)
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
    from rsoftmax_lab.comparison import METHODS
    from rsoftmax_lab.experiments.images.results import chosen

    with usage_errors("--save"):
        run, epoch = chosen(rows, [run for run in runs if run.method == method])
        way.save(run, epoch, folder)
    typer.echo(f"wrote {folder}: {METHODS[method].title}, lr {run.lr:g}")
