"""``rsoftmax attention-map`` and ``rsoftmax sparsify``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rsoftmax.cli.arguments import figure_path, parameters, usage_errors


def attention_map(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A folder or hub id of a model with its tokenizer.")],
    text: Annotated[str, typer.Option(help="The sentence.")],
    layer: Annotated[int, typer.Option(help="The layer, from 0; negative numbers count from the end.")] = -1,
    head: Annotated[list[int] | None, typer.Option(help="A head, from 0; repeatable. Default: all heads.")] = None,
    mapping: Annotated[
        str | None, typer.Option(help="The mapping. Default: the one that the model was saved with.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The figure: .png, .svg or .pdf.")] = Path("attention.png"),
) -> None:
    """Plot a model's attention weights for one sentence, with exact zeros marked.

    Set the mapping's parameter by the name that `rsoftmax list` shows: --r 0.5.
    """
    from rich.console import Console
    from rich.table import Table

    with usage_errors("--model"):
        from rsoftmax.attention.transformers.measure import attention_map as compute
        from rsoftmax.plots import draw_attention_map

    path = figure_path(out)
    with usage_errors():
        attention = compute(model, text, layer, head, mapping, parameters(context))
        draw_attention_map(attention, path)
    typer.echo(attention.title)
    table = Table("head", "zeros", "most attended token")
    for number, weights in attention.weights.items():
        most = attention.tokens[int(weights.nan_to_num().sum(0).argmax())]
        table.add_row(str(number), f"{attention.zeros(number):.1%}", most)
    Console(markup=False).print(table)
    typer.echo(f"wrote {out}")


def sparsify(
    model: Annotated[str, typer.Option(help="A folder or hub id of a model with its tokenizer.")],
    texts: Annotated[Path, typer.Option(help="A UTF-8 text file with texts like yours.", exists=True, dir_okay=False)],
    out: Annotated[Path, typer.Option(help="The folder for the sparse model; it must not exist.")],
    max_error: Annotated[
        float, typer.Option(help="The largest allowed change of the output: KL divergence, or 1 - cosine.")
    ] = 0.005,
    length: Annotated[
        int | None, typer.Option(help="Tokens per text; use the length of your own texts. Default: 512.", min=2)
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="The number of texts; half of them are held out. Default: 32, or 200 lines.", min=8),
    ] = None,
    edge: Annotated[float, typer.Option(help="The width of the edge in nats; 0 gives the most zeros.")] = 0.0,
    per_head: Annotated[
        bool, typer.Option("--per-head", help="One threshold per head; needs a backward pass.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="A figure of zeros and errors: .png, .svg or .pdf.")] = None,
) -> None:
    """Make a pretrained model's attention sparse, within an error certified on held-out text.

    A text is a piece of --length tokens for language models, a line of the file for others; evenly spaced.
    """
    with usage_errors("--model"):
        from rsoftmax._transformers import load_pretrained, quiet
        from rsoftmax.attention.transformers import register_attention, sparsify
        from rsoftmax.attention.transformers.compare import text_batches

    path = figure_path(plot, "--plot") if plot else None
    if out.exists():
        raise typer.BadParameter(f"{out} exists; choose another folder", param_hint="--out")
    with usage_errors("--model"):
        register_attention()  # for a model that is sparse already
        tokenizer, network = load_pretrained(model, task_head=True)
    with usage_errors("--texts"):
        batches = text_batches(tokenizer, network, texts.read_text(encoding="utf-8"), length, samples)
    with usage_errors(), new_folder(out) as staged:
        report = sparsify(network, batches, max_error, per_head=per_head, edge=edge, verbose=True)
        with quiet():
            network.save_pretrained(staged)
            tokenizer.save_pretrained(staged)
    typer.echo(str(report))
    typer.echo(f"wrote {out}")
    if path:
        from rsoftmax.plots import draw_sparsified_heads

        draw_sparsified_heads(report, path)
        typer.echo(f"wrote {path}")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which appears at ``path`` when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as parent:
        staged = Path(parent, path.name)
        yield staged
        staged.rename(path)
