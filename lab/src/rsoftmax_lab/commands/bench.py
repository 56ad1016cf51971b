"""``rsoftmax bench``, and ``rsoftmax bench attention | finetuning | heads``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rsoftmax.cli.arguments import numbers
from rsoftmax_lab.bench import attention as bench_attention
from rsoftmax_lab.bench import heads as bench_heads
from rsoftmax_lab.bench import mappings as experiment

app = typer.Typer()
Threads = Annotated[str, typer.Option(help="Thread counts, apart by commas.")]
EVERY = f"1,{os.cpu_count()}"


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    quick: Annotated[bool, typer.Option(help="Few shapes and one kind of input: about a minute.")] = False,
    threads: Threads = EVERY,
    out: Annotated[Path, typer.Option(help="The folder for bench.jsonl and bench.png.")] = Path("results"),
) -> None:
    """Time every mapping beside torch.softmax and print the ratios."""
    if context.invoked_subcommand:
        return
    counts = _counts(threads)
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


@app.command()
def attention(
    quick: Annotated[bool, typer.Option(help="One small shape: a few seconds.")] = False,
    threads: Threads = EVERY,
    out: Annotated[Path, typer.Option(help="The folder for bench_attention.jsonl.")] = Path("results"),
) -> None:
    """Time sparse attention beside torch's own, and measure its memory."""
    counts = _counts(threads)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[bench_attention.Row] = []
    for group in bench_attention.run(counts, quick):
        rows += group
        table = Table("ratio to torch's attention", "", "median", "quartiles", title=bench_attention.title(group))
        for row in group:
            cost = f"{row.median / 1000:.2f} ms" if row.measure == "us" else f"{row.median / 2**20:.0f} MiB"
            spread = f"{row.ratio_low:.2f} - {row.ratio_high:.2f}" if row.rounds > 1 else ""
            table.add_row(escape(f"{row.method} {row.parameter}"), cost, f"{row.ratio:.2f}", spread)
        Console().print(table)
    _end(rows, bench_attention.verdict(rows), out / "bench_attention.jsonl")


@app.command()
def finetuning(
    model: Annotated[str, typer.Option(help="A folder, or a name on the hub: a model for texts.")],
    quick: Annotated[bool, typer.Option(help="One small batch: a few seconds.")] = False,
    threads: Threads = EVERY,
    out: Annotated[Path, typer.Option(help="The folder for bench_finetuning.jsonl.")] = Path("results"),
) -> None:
    """Time a fine-tuning step of a model with sparse attention beside the same with torch's own."""
    from rsoftmax_lab.bench import finetuning as bench_finetuning

    counts = _counts(threads)
    rows: list[bench_finetuning.Row] = []
    try:
        bench_finetuning.check(model)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{model!r}: {error}", param_hint="--model") from None
    out.mkdir(parents=True, exist_ok=True)
    for group in bench_finetuning.run(model, counts, quick):
        rows += group
        first = group[0]
        table = Table("ratio to sdpa", "", "median", "quartiles")
        table.title = f"a step of {first.model}, {first.batch} x {first.tokens} tokens, threads: {first.threads}"
        for row in group:
            spread = f"{row.ratio_low:.2f} - {row.ratio_high:.2f}"
            table.add_row(row.attention, f"{row.median_us / 1000:.1f} ms", f"{row.ratio:.2f}", spread)
        Console().print(table)
    _end(rows, bench_finetuning.verdict(rows), out / "bench_finetuning.jsonl")


@app.command()
def heads(
    quick: Annotated[bool, typer.Option(help="One small shape: a few seconds.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for bench_heads.jsonl.")] = Path("results"),
) -> None:
    """Time the multi-label heads beside the one for binary cross-entropy, up to 100,000 labels, on one thread."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[bench_heads.Row] = []
    for group in bench_heads.run(quick):
        rows += group
        first = group[0]
        table = Table("ratio to BCE", "", "median", "quartiles", "extra memory")
        table.title = f"{first.mode}, {first.rows} x {first.labels} labels"
        for row in group:
            spread = f"{row.ratio_low:.2f} - {row.ratio_high:.2f}"
            memory = f"{row.extra_bytes / 2**20:.1f} MiB"
            table.add_row(row.method, f"{row.median_us / 1000:.2f} ms", f"{row.ratio:.2f}", spread, memory)
        Console().print(table)
    _end(rows, bench_heads.verdict(rows), out / "bench_heads.jsonl")


def _end(rows: Sequence[Any], verdict: str, path: Path) -> None:
    experiment.write(rows, path)
    typer.echo(verdict)
    typer.echo(f"wrote {path}; {rows[0].machine}")


def _counts(threads: str) -> list[int]:
    counts = sorted({int(count) for count in numbers(threads) if count >= 1 and count == int(count)})
    if not counts:
        raise typer.BadParameter(f"{threads!r} is not a list of thread counts; write 1,2", param_hint="--threads")
    return counts
