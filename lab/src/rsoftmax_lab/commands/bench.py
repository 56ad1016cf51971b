"""``rsoftmax bench``, and ``rsoftmax bench NAME`` for each benchmark of the table."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsoftmax_lab.bench import BENCHMARKS, load

if TYPE_CHECKING:
    from rsoftmax_lab.bench.benchmark import Benchmark, Settings

USUAL = "mappings"
HELP = f"""{BENCHMARKS[USUAL]} With a command, time what it names.

Options may stand before the command or after it."""

app = typer.Typer()


@dataclass(frozen=True)
class Options:
    """What stands on the command line; None: nothing."""

    quick: bool | None = None
    threads: str | None = None
    out: Path | None = None
    model: str | None = None
    device: str | None = None


def bench(
    context: typer.Context,
    quick: Annotated[bool | None, typer.Option(help="Few and small cases: a minute at most.")] = None,
    threads: Annotated[
        str | None, typer.Option(help="Thread counts, apart by commas.", show_default="1, and as many as cores")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for the rows.", show_default="results; results/quick with --quick"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder, or a name on the hub: a model for texts, if one is needed.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to measure: cpu or cuda, which is AMD's as well.", show_default="cpu")
    ] = None,
) -> None:
    """``rsoftmax bench`` itself and each of its commands: they take the same options."""
    options = _joined(context.obj or Options(), Options(quick, threads, out, model, device))
    if context.invoked_subcommand:
        context.obj = options
    else:
        name = context.command.name
        _run(name if name in BENCHMARKS else USUAL, options)


app.callback(invoke_without_command=True, help=HELP)(bench)
for name, text in BENCHMARKS.items():
    app.command(name, help=text)(bench)


def _joined(before: Options, after: Options) -> Options:
    """Both together."""
    given = {name: value for name, value in asdict(before).items() if value is not None}
    for name, value in asdict(after).items():
        if value is not None and given.setdefault(name, value) != value:
            raise typer.BadParameter(
                f"it is {given[name]} before the command and {value} after it; give it once", param_hint=f"--{name}"
            )
    return Options(**given)


def _run(name: str, options: Options) -> None:
    from rich.console import Console

    from rsoftmax_lab.bench.run import run
    from rsoftmax_lab.bench.tables import verdict

    benchmark = _loaded(name)
    settings = _settings(name, benchmark, options)
    try:
        groups = benchmark.groups(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    path = (options.out or Path("results/quick" if options.quick else "results")) / benchmark.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = run(benchmark, groups, path, Console())
    except OSError as error:  # a place that cannot be written, a full disk
        raise typer.BadParameter(str(error), param_hint="--out") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    typer.echo(verdict(benchmark, rows))
    typer.echo(f"wrote {path}; {rows[0].machine}")
    if benchmark.draw:
        benchmark.draw(rows, path.with_suffix(".png"))
        typer.echo(f"wrote {path.with_suffix('.png')}")


def _loaded(name: str) -> "Benchmark":
    try:
        return load(name)
    except ModuleNotFoundError as missing:
        raise typer.BadParameter(f"`rsoftmax bench {name}` needs {missing.name}; install it") from None


def _settings(name: str, benchmark: "Benchmark", options: Options) -> "Settings":
    from rsoftmax_lab.bench.benchmark import Settings

    if benchmark.takes_model != (options.model is not None):
        says = "needs one: a folder, or a name on the hub" if benchmark.takes_model else "takes none"
        raise typer.BadParameter(f"`rsoftmax bench {name}` {says}", param_hint="--model")
    threads = benchmark.threads if options.threads is None else _counts(options.threads)
    return Settings(threads, bool(options.quick), options.model or "", _device(name, benchmark, options.device))


def _device(name: str, benchmark: "Benchmark", device: str | None) -> str:
    import torch

    if device in (None, "cpu"):
        return "cpu"
    if device != "cuda":
        raise typer.BadParameter(f"{device!r} is neither cpu nor cuda", param_hint="--device")
    if not benchmark.takes_device:
        raise typer.BadParameter(f"`rsoftmax bench {name}` runs on the CPU only", param_hint="--device")
    if not torch.cuda.is_available():
        raise typer.BadParameter(
            f"there is no such device: torch {torch.__version__} finds no CUDA or ROCm GPU", param_hint="--device"
        )
    return device


def _counts(threads: str) -> tuple[int, ...]:
    from rsoftmax.cli.arguments import numbers

    counts = numbers(threads)
    if not counts or not all(count >= 1 and count.is_integer() for count in counts):
        raise typer.BadParameter(f"{threads!r} is not a list of thread counts; write 1,2", param_hint="--threads")
    return tuple(sorted({int(count) for count in counts}))
