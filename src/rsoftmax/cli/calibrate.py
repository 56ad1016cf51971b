"""``rsoftmax calibrate``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import figure_path, usage_errors


def calibrate(
    model: Annotated[str, typer.Option(help="A folder or hub id of a model with its tokenizer.")],
    texts: Annotated[Path, typer.Option(help="A UTF-8 text file like the texts of your application.", exists=True)],
    out: Annotated[Path, typer.Option(help="The folder for the sparse model; it must not exist.")],
    error: Annotated[
        float, typer.Option(help="The largest change of the output: KL divergence, or 1 - cosine.")
    ] = 0.005,
    length: Annotated[int, typer.Option(help="Tokens per text; use the length of your application.", min=2)] = 512,
    samples: Annotated[int, typer.Option(help="The number of texts; half of them are held out.", min=4)] = 16,
    edge: Annotated[float, typer.Option(help="The width of the edge in nats; 0 has the most zeros.")] = 0.0,
    per_head: Annotated[bool, typer.Option("--per-head", help="One threshold per head, by a backward pass.")] = False,
    plot: Annotated[Path | None, typer.Option(help="A figure of the zeros: .png, .svg or .pdf.")] = None,
) -> None:
    """Make a pretrained model's attention sparse, within an error certified on held-out text.

    Language models are split into texts of --length tokens; other models get one line of the file per text.
    """
    with usage_errors("--model"):
        from rsoftmax.huggingface.attention.calibrate import calibrate_folder

    path = figure_path(plot) if plot else None
    if out.exists():
        raise typer.BadParameter(f"{out} exists; name another folder", param_hint="--out")
    with usage_errors():
        found = calibrate_folder(
            model, texts, out, error=error, length=length, samples=samples, edge=edge, per_head=per_head
        )
        if path:
            from rsoftmax.plots import draw_calibrated_heads

            draw_calibrated_heads(found, path)
            typer.echo(f"wrote {path}")
    typer.echo(str(found))
    typer.echo(f"wrote {out}")
