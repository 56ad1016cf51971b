"""``rsoftmax attention-map``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import picture
from rsoftmax.cli.parameters import given


def attention_map(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A folder, or a hub id, with a model and its tokenizer.")],
    text: Annotated[str, typer.Option(help="The sentence.")],
    layer: Annotated[int, typer.Option(help="Its number, from 0; negative ones count from the end.")] = -1,
    head: Annotated[list[int] | None, typer.Option(help="A head; may be given again. All if not given.")] = None,
    mapping: Annotated[
        str | None, typer.Option(help="The mapping; if not given, what the model was saved with.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the picture; its ending names the format.")] = Path(
        "attention.png"
    ),
) -> None:
    """Draw the attention of a model to one sentence, zeros shown as zeros.

    The mapping's parameter comes under its letter, as `rsoftmax list` shows it: --r 0.5.
    """
    from rich.console import Console
    from rich.table import Table

    try:
        from rsoftmax.huggingface.attention_map import attention_map as look
        from rsoftmax.plots import draw_attention_map
    except ImportError as missing:
        raise typer.BadParameter(str(missing), param_hint="--model") from None

    path = picture(out)
    try:
        found = look(model, text, layer, head, mapping, given(context))
        draw_attention_map(found, path)
    except (OSError, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(found.title)
    table = Table("head", "zeros", "most looked at")
    for number, weights in found.weights.items():
        most = found.tokens[int(weights.nan_to_num().sum(0).argmax())]
        table.add_row(str(number), f"{found.zeros(number):.1%}", most)
    Console(markup=False).print(table)
    typer.echo(f"wrote {out}")
