"""The lab's commands of ``rsoftmax``: ``demo``, ``reproduce NAME``, ``report`` and ``bench``."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rsoftmax_lab import experiments


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    from rsoftmax_lab.bench import command as bench

    app.command("demo")(demo)
    app.command("bench", help=bench.HELP)(bench.bench)
    app.add_typer(reproduce, name="reproduce")
    app.command("report")(report)


def demo(out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("demo")) -> None:
    """Show what the library does, computed on this machine in about a minute."""
    from rsoftmax_lab import demo

    demo.demo(out)


class _Experiments(TyperGroup):
    """Imports an experiment when its command runs: the list of commands needs neither torch nor scikit-learn."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub and _command(str(name)), rest


reproduce = typer.Typer(help="Reproduce the paper's experiments.", no_args_is_help=True, cls=_Experiments)
for _name, _text in experiments.COMMANDS.items():
    reproduce.command(_name, help=_text)(lambda: None)


def _command(name: str) -> Any:
    try:
        main = experiments.load(name).main
    except ModuleNotFoundError as missing:
        hint = f"`rsoftmax reproduce {name}` needs {missing.name}; run: pip install 'rsoftmax-lab[glue,images]'"
        raise typer.BadParameter(hint) from None
    app = typer.Typer(rich_markup_mode=None)
    app.command(name, help=experiments.COMMANDS[name])(_with_report(name, main))
    return typer.main.get_command(app)


def _with_report(name: str, main: Callable[..., Path]) -> Callable[..., None]:
    """The command of an experiment: does its runs, then writes the report and prints its table."""

    @wraps(main)
    def command(**options: Any) -> None:
        folder = main(**options)
        write_report(folder, folder / "report", hint="--out", summary=experiments.MODULES.get(name, name))

    return command


def report(
    results: Annotated[Path, typer.Option(help="The results folder of `rsoftmax reproduce`.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="The folder to write to. Default: RESULTS/report.")] = None,
) -> None:
    """Write tables and figures of the results next to the paper's numbers, as Markdown and HTML."""
    write_report(results, out or results / "report", hint="--results or --out")


def write_report(results: Path, out: Path, *, hint: str, summary: str | None = None) -> None:
    """Write the report, and print its summary and the files.

    Args:
        results: the folder of results.
        out: the report's folder.
        hint: the option to blame if it cannot be written.
        summary: the experiment whose table is printed.
    """
    from rich.console import Console

    from rsoftmax_lab.report import write

    try:
        written = write(experiments.load_all(), results, out, Console(markup=False).print)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
    typer.echo(written.title)
    if summary in written.sections:
        Console().print(written.sections[summary].summary)
    for path in written.files:
        typer.echo(f"wrote {path}")
