"""``rsoftmax attention-map``."""

from pathlib import Path
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

    Set the mapping's parameter by its letter in `rsoftmax list`: --r 0.5.
    """
    from rich.console import Console
    from rich.table import Table

    with usage_errors("--model"):
        from rsoftmax.huggingface.attention.measure import attention_map as compute
        from rsoftmax.plots import draw_attention_map

    path = figure_path(out)
    with usage_errors():
        found = compute(model, text, layer, head, mapping, parameters(context))
        draw_attention_map(found, path)
    typer.echo(found.title)
    table = Table("head", "zeros", "most attended token")
    for number, weights in found.weights.items():
        most = found.tokens[int(weights.nan_to_num().sum(0).argmax())]
        table.add_row(str(number), f"{found.zeros(number):.1%}", most)
    Console(markup=False).print(table)
    typer.echo(f"wrote {out}")
