"""The options that all experiments share. Heavy imports wait until the runs start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

Seeds = Annotated[int, typer.Option(min=1, help="The number of seeds; 1 with --quick.")]


@dataclass(frozen=True)
class Sweep:
    """Which grid to run, where to run it, and where to write its rows."""

    quick: Annotated[bool, typer.Option("--quick", help="Run a small grid: minutes instead of hours.")] = False
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of results; finished runs are skipped. Default: results, or results/quick with --quick."
        ),
    ] = None
    jobs: Annotated[int | None, typer.Option(min=1, help="The number of concurrent runs. Default: one per core.")] = (
        None
    )
    engine: Annotated[
        str, typer.Option(help="Where to run: local (processes on this machine), ray or dask (a cluster).")
    ] = "local"
    address: Annotated[
        str | None, typer.Option(help="The address of the cluster. Default: start one on this machine.")
    ] = None

    @property
    def folder(self) -> Path:
        """The folder of results."""
        return self.out or Path("results/quick" if self.quick else "results")

    def file(self, name: str) -> Path:
        """The file of the rows of ``rsoftmax reproduce NAME``."""
        return self.folder / f"{name}.jsonl"

    def on_device(self) -> "Sweep":
        """One run at a time unless ``jobs`` says otherwise if there is an accelerator, which they would share."""
        import torch

        return replace(self, jobs=self.jobs or 1) if torch.accelerator.is_available() else self

    def do(self, name: str, runs: Sequence[Any], function: Callable[[Any], dict[str, Any]]) -> None:
        """Do the runs of ``rsoftmax reproduce NAME``; exit with an error if any of them fails."""
        from rsoftmax_lab.running.runs import distinct
        from rsoftmax_lab.running.sweep import sweep

        runs = distinct(runs)
        try:
            rows = sweep(runs, function, self.file(name), engine=self.engine, address=self.address, jobs=self.jobs)
        except (ModuleNotFoundError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--engine") from None
        except OSError as error:  # not writable, or the disk is full
            raise typer.BadParameter(str(error), param_hint="--out") from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if len(rows) < len(runs):
            raise typer.Exit(1)
