"""``rsoftmax bench NAME``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rsoftmax_lab.bench import BENCHMARKS, load

if TYPE_CHECKING:
    from rsoftmax_lab.bench.benchmark import Benchmark

HELP = "Time the library against torch, in turns, and check the goals of a benchmark.\n\n\b\n" + "\n".join(
    f"{name:10}  {text}" for name, (_, text) in BENCHMARKS.items()
)


def bench(
    name: Annotated[str, typer.Argument(help="One of the above.")] = "mappings",
    quick: Annotated[bool, typer.Option(help="Fewer cases, each for a short time, on one thread.")] = False,
    threads: Annotated[
        str | None, typer.Option(help="Thread counts, comma-separated.", show_default="1 and the number of cores")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of results.", show_default="results; results/quick with --quick")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder or hub id of a text model, for benchmarks that need one.")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="cuda: NVIDIA and AMD GPUs.")] = "cpu",
    texts: Annotated[str | None, typer.Option(help="A text file for the model.", show_default="random tokens")] = None,
) -> None:
    """Run a benchmark."""
    import torch
    from rich.console import Console

    if name not in BENCHMARKS:
        raise typer.BadParameter(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    try:
        benchmark = load(name)
        from rsoftmax_lab.bench.benchmark import Settings
        from rsoftmax_lab.bench.run import run
        from rsoftmax_lab.bench.tables import verdict
    except ModuleNotFoundError as missing:
        raise typer.BadParameter(f"`rsoftmax bench {name}` needs {missing.name}; install it") from None
    if model is not None and benchmark.with_model:
        benchmark = benchmark.with_model
    _check_options(name, benchmark, {"model": model, "texts": texts, "device": device if device != "cpu" else None})
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter(f"torch {torch.__version__} finds no CUDA or ROCm GPU", param_hint="--device")
    settings = Settings(_thread_counts(threads, benchmark, quick), quick, model or "", device, texts or "")
    try:
        groups = list(benchmark.groups(settings))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    path = (out or Path("results/quick" if quick else "results")) / benchmark.file
    if quick:
        typer.echo("Not the full benchmark: a few of its cases, each for a short time.")
    try:
        records = run(benchmark, groups, settings, path, Console())
    except OSError as error:  # not writable, or the disk is full
        raise typer.BadParameter(str(error), param_hint="--out") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    typer.echo(verdict(benchmark, records))
    typer.echo(f"wrote {path}; {records[0]['machine']}")
    if benchmark.draw:
        benchmark.draw(records, path.with_suffix(".png"))
        typer.echo(f"wrote {path.with_suffix('.png')}")


def _check_options(name: str, benchmark: "Benchmark", values: dict[str, str | None]) -> None:
    if "model" in benchmark.options and values["model"] is None:
        raise typer.BadParameter(f"`rsoftmax bench {name}` needs a folder or hub id", param_hint="--model")
    for option, value in values.items():
        if value is not None and option not in benchmark.options:
            without = " without --model" if benchmark.with_model else ""
            raise typer.BadParameter(f"`rsoftmax bench {name}` takes no {option}{without}", param_hint=f"--{option}")


def _thread_counts(words: str | None, benchmark: "Benchmark", quick: bool) -> tuple[int, ...]:
    if words is None:
        return (1,) if quick else benchmark.threads
    counts = words.split(",")
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise typer.BadParameter(f"{words!r} is not a list of thread counts; write 1,2", param_hint="--threads")
    return tuple(sorted(set(map(int, counts))))
