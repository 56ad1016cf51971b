"""``rsoftmax reproduce text``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.running.options import Sweep


def text(
    data: Annotated[Path, typer.Option(help="The folder of GoEmotions: train.tsv, dev.tsv, test.tsv, labels.txt.")],
    model: Annotated[str, typer.Option(help="A text encoder: a folder or hub id.")],
    way: Annotated[list[str] | None, typer.Option(help="tfidf, frozen or finetuned; repeatable.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="The maximum number of epochs of fine-tuning. Default: 3, 1 with --quick.")
    ] = None,
    lr: Annotated[float, typer.Option(help="The learning rate of fine-tuning.")] = 1e-4,
    max_tokens: Annotated[int, typer.Option(min=4, help="Truncate texts to this many tokens.")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds of the encoder's runs.")] = 1,
    *,
    sweep: Sweep,
) -> None:
    """Multi-label text classification: GoEmotions, with a frozen and a fine-tuned encoder, and with TF-IDF."""
    from functools import partial

    with usage_errors():
        from rsoftmax_lab.experiments.goemotions import read
        from rsoftmax_lab.experiments.names import absolute, source_name
        from rsoftmax_lab.experiments.text import grid
        from rsoftmax_lab.experiments.text.run import run

        read(data.resolve())
        runs = (grid.quick_grid if sweep.quick else grid.grid)(
            source_name(model, "*.safetensors", "*.json", "*.txt"),
            tuple(way or grid.WAYS),
            seeds,
            lr=lr,
            max_tokens=max_tokens,
            data=source_name(str(data), "*.tsv", "*.txt"),
            **({} if epochs is None else {"epochs": epochs}),
        )
    sweep.on_device().do("text", runs, partial(run, absolute(model), data.resolve(), sweep.folder.resolve()))
