"""How a command does its runs: the options that all experiments share. What does them is imported when they start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Seeds = Annotated[
    int, typer.Option(min=1, help="How often everything is run, each time with another seed; once with --quick.")
]


@dataclass(frozen=True)
class Sweep:
    """Which grid is run, where, and where its rows go."""

    quick: Annotated[bool, typer.Option("--quick", help="The same code on a small grid: minutes, not hours.")] = False
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of results; what is there already is not run again. If not given: results, or"
            " results/quick with --quick."
        ),
    ] = None
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one for each core if not given.")] = None
    engine: Annotated[str, typer.Option(help="Where: local (processes here), ray or dask (a cluster).")] = "local"
    address: Annotated[str | None, typer.Option(help="The cluster's address; without it, one is started here.")] = None

    @property
    def folder(self) -> Path:
        """The folder of results."""
        return self.out or Path("results/quick" if self.quick else "results")

    def file(self, name: str) -> Path:
        """The file of the rows of ``rsoftmax reproduce NAME``."""
        return self.folder / f"{name}.jsonl"

    def do(self, name: str, runs: Sequence[Any], function: Callable[[Any], dict[str, Any]]) -> None:
        """Do the runs of ``rsoftmax reproduce NAME``, and leave the program if it cannot be done or not all succeed."""
        from rsoftmax_lab.running.runs import distinct
        from rsoftmax_lab.running.sweep import sweep

        runs = distinct(runs)
        try:
            rows = sweep(runs, function, self.file(name), engine=self.engine, address=self.address, jobs=self.jobs)
        except (ModuleNotFoundError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--engine") from None
        except OSError as error:  # a place that cannot be written, a full disk
            raise typer.BadParameter(str(error), param_hint="--out") from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if len(rows) < len(runs):
            raise typer.Exit(1)
