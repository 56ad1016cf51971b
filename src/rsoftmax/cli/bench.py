"""``rsoftmax bench``."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rsoftmax.cli.mappings import numbers
from rsoftmax.experiments import bench as experiment

app = typer.Typer()


@app.command()
def bench(
    quick: Annotated[bool, typer.Option(help="Few shapes and one kind of input: about a minute.")] = False,
    threads: Annotated[str, typer.Option(help="Thread counts, apart by commas.")] = f"1,{os.cpu_count()}",
    out: Annotated[Path, typer.Option(help="The folder for bench.jsonl and bench.png.")] = Path("results"),
) -> None:
    """Time every mapping beside torch.softmax and print the ratios."""
    counts = sorted({int(count) for count in numbers(threads) if count >= 1 and count == int(count)})
    if not counts:
        raise typer.BadParameter(f"{threads!r} is not a list of thread counts; write 1,2", param_hint="--threads")
    out.mkdir(parents=True, exist_ok=True)
    timings: list[experiment.Timing] = []
    for group in experiment.run(counts, quick):
        timings += group
        table = Table("ratio to torch.softmax", "", "median", "quartiles", "extra memory / output")
        for t in group:
            name = f"{t.method} {t.parameter}" + (" (reference)" if t.kernels == "reference" else "")
            spread = f"{t.ratio_low:.2f} - {t.ratio_high:.2f}"
            memory = f"{t.extra_bytes / t.output_bytes:.1f}"
            table.add_row(escape(name), f"{t.median_us:.0f} us", f"{t.ratio:.2f}", spread, memory)
        first = group[0]
        table.title = f"{first.mode}, {first.rows} x {first.n}, {first.kind}, threads: {first.threads}"
        Console().print(table)
    experiment.write(timings, out / "bench.jsonl")
    experiment.draw(timings, out / "bench.png")
    typer.echo(experiment.verdict(timings))
    typer.echo(f"wrote {out / 'bench.jsonl'} and {out / 'bench.png'}; {timings[0].machine}")
