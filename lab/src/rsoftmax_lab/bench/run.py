"""Runs a benchmark: measures group by group, prints tables, and writes the rows."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rsoftmax_lab.bench.benchmark import Benchmark, Group
from rsoftmax_lab.bench.rows import Case, Row, Spread, append, read
from rsoftmax_lab.bench.tables import group_table
from rsoftmax_lab.bench.timing import extra_bytes, keep_freed_memory, machine, take_turns, threads


def run(benchmark: Benchmark, groups: Sequence[Group], path: Path, console: Console) -> list[Row]:
    """Measure the groups, print a table for each, and write the rows.

    Rows are appended to PATH with the suffix ``.part`` as groups finish; that file replaces PATH when all have. A run
    that is stopped leaves PATH unchanged. The next run starts from the beginning: the rows of a file are measured in
    one run, so that they are comparable.
    """
    keep_freed_memory()
    part = path.with_suffix(".part")
    part.write_bytes(b"")
    rows: list[Row] = []
    try:
        with _progress(console) as bar:
            for done, group in enumerate(bar.track(groups, description="groups"), start=1):
                found = measure(group, benchmark.baseline)
                for row in found:
                    append(part, row)
                rows += found
                console.print(group_table(benchmark, found, f"group {done} of {len(groups)}"))
    except KeyboardInterrupt:
        kept = len(read(part))
        console.print(
            f"stopped; {kept} rows are in {part}; the next run starts from the beginning", markup=False, soft_wrap=True
        )
        raise
    part.replace(path)
    return rows


def measure(group: Group, baseline: Case) -> list[Row]:
    """The rows of one group."""
    with threads(group.common["threads"]):
        cases, calls = zip(*group.calls(), strict=True)
        base = next(i for i, case in enumerate(cases) if case.items() >= baseline.items())
        timed = group.common["measure"] == "us"
        times = take_turns(calls, base, group.seconds, group.rounds) if timed else []
        device = group.common.get("device", "cpu")
        sizes = [extra_bytes(call, device) for call in calls]
    return [
        Row({**case, **group.common}, spread, machine(device), torch.__version__, size)
        for case, spread, size in zip(cases, times or _same_each_time(sizes, base), sizes, strict=True)
    ]


def _same_each_time(sizes: Sequence[int], base: int) -> list[Spread]:
    """Memory is measured once and has no spread."""
    return [Spread(size, ratio, ratio, ratio, rounds=1) for size in sizes for ratio in [size / sizes[base]]]


def _progress(console: Console) -> Progress:
    """A bar on a terminal, updated between groups only: a refresh thread would disturb the measurement."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("left:"), TimeRemainingColumn())  # fmt: skip
    return Progress(
        *columns, console=console, auto_refresh=False, speed_estimate_period=3600, disable=not console.is_terminal
    )
