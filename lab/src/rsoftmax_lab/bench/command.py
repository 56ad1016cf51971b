"""``rsoftmax bench``, and ``rsoftmax bench NAME`` for each registered benchmark."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsoftmax_lab.bench import BENCHMARKS, load

if TYPE_CHECKING:
    from rsoftmax_lab.bench.benchmark import Benchmark, Settings

USUAL = "mappings"
HELP = f"""{BENCHMARKS[USUAL]} A command selects another benchmark.

Options may come before or after the command."""

app = typer.Typer()


@dataclass(frozen=True)
class Options:
    """The options of the command line; None if not given."""

    quick: bool | None = None
    threads: str | None = None
    out: Path | None = None
    model: str | None = None
    device: str | None = None
    texts: str | None = None


def bench(
    context: typer.Context,
    quick: Annotated[bool | None, typer.Option(help="Few and small cases: at most a minute.")] = None,
    threads: Annotated[
        str | None, typer.Option(help="Thread counts, comma-separated.", show_default="1 and the number of cores")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of results.", show_default="results; results/quick with --quick"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder or hub id of a text model, for benchmarks that need one.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, or cuda for NVIDIA and AMD GPUs.", show_default="cpu")
    ] = None,
    texts: Annotated[str | None, typer.Option(help="A text file for the model.", show_default="random tokens")] = None,
) -> None:
    """Run ``rsoftmax bench`` or one of its commands, which take the same options."""
    options = _joined(context.obj or Options(), Options(quick, threads, out, model, device, texts))
    if context.invoked_subcommand:
        context.obj = options
    else:
        name = context.command.name
        _run(name if name in BENCHMARKS else USUAL, options)


app.callback(invoke_without_command=True, help=HELP)(bench)
for name, text in BENCHMARKS.items():
    app.command(name, help=text)(bench)


def _joined(before: Options, after: Options) -> Options:
    """Merge the options before and after the command."""
    given = {name: value for name, value in asdict(before).items() if value is not None}
    for name, value in asdict(after).items():
        if value is not None and given.setdefault(name, value) != value:
            raise typer.BadParameter(
                f"{given[name]} before the command contradicts {value} after it; pass it once", param_hint=f"--{name}"
            )
    return Options(**given)


def _run(name: str, options: Options) -> None:
    from rich.console import Console

    from rsoftmax_lab.bench.run import run
    from rsoftmax_lab.bench.tables import verdict

    benchmark = _loaded(name)
    if options.model is not None and benchmark.with_model:
        benchmark = benchmark.with_model
    settings = _settings(name, benchmark, options)
    try:
        groups = benchmark.groups(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    path = (options.out or Path("results/quick" if options.quick else "results")) / benchmark.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = run(benchmark, groups, path, Console())
    except OSError as error:  # not writable, or the disk is full
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
        says = "needs a folder or hub id" if benchmark.takes_model else "takes no model"
        raise typer.BadParameter(f"`rsoftmax bench {name}` {says}", param_hint="--model")
    if options.texts is not None and not benchmark.takes_texts:
        says = "reads them only with --model" if benchmark.with_model else "reads no texts"
        raise typer.BadParameter(f"`rsoftmax bench {name}` {says}", param_hint="--texts")
    threads = benchmark.threads if options.threads is None else _counts(options.threads)
    device = _device(name, benchmark, options.device)
    return Settings(threads, bool(options.quick), options.model or "", device, options.texts or "")


def _device(name: str, benchmark: "Benchmark", device: str | None) -> str:
    import torch

    if device in (None, "cpu"):
        return "cpu"
    if device != "cuda":
        raise typer.BadParameter(f"{device!r} is neither cpu nor cuda", param_hint="--device")
    if not benchmark.takes_device:
        raise typer.BadParameter(f"`rsoftmax bench {name}` runs on the CPU only", param_hint="--device")
    if not torch.cuda.is_available():
        raise typer.BadParameter(f"torch {torch.__version__} finds no CUDA or ROCm GPU", param_hint="--device")
    return device


def _counts(threads: str) -> tuple[int, ...]:
    from rsoftmax.cli.arguments import numbers

    counts = numbers(threads)
    if not counts or not all(count >= 1 and count.is_integer() for count in counts):
        raise typer.BadParameter(f"{threads!r} is not a list of thread counts; write 1,2", param_hint="--threads")
    return tuple(sorted({int(count) for count in counts}))
