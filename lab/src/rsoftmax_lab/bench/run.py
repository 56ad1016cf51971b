"""Runs a benchmark: measures group by group, prints tables, and writes the records."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from rich.console import Console

from rsoftmax_lab.bench.benchmark import Benchmark, Case, Group, Record, Settings
from rsoftmax_lab.bench.tables import group_table
from rsoftmax_lab.bench.timing import Spread, extra_bytes, keep_freed_memory, machine, take_turns, threads


def run(
    benchmark: Benchmark, groups: Sequence[Group], settings: Settings, path: Path, console: Console
) -> list[Record]:
    """Measure the groups with each thread count, print a table for each, and write the records.

    Records are appended to PATH with the suffix ``.part`` as groups finish; that file replaces PATH when all have. A
    run that is stopped leaves PATH unchanged. The next run starts from the beginning: the records of a file are
    measured in one run, so that they are comparable.
    """
    keep_freed_memory()
    work = list(product(settings.threads, groups))
    part, records = path.with_suffix(".part"), list[Record]()
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("w") as file:
        try:
            for done, (count, group) in enumerate(work, start=1):
                measured = measure(group, benchmark.baseline, count, settings.quick)
                file.writelines(f"{json.dumps(record)}\n" for record in measured)
                file.flush()
                records += measured
                console.print(group_table(benchmark, measured, f"group {done} of {len(work)}"))
        except KeyboardInterrupt:
            message = f"stopped; {len(records)} records are in {part}; the next run starts from the beginning"
            console.print(message, markup=False, soft_wrap=True)
            raise
    part.replace(path)
    return records


def measure(group: Group, baseline: Case, count: int = 1, quick: bool = False) -> list[Record]:
    """The records of one group with a number of threads."""
    device = group.case.get("device", "cpu")
    with threads(count):
        cases, calls = zip(*group.calls(), strict=True)
        base = next(i for i, case in enumerate(cases) if case.items() >= baseline.items())
        seconds, rounds = (min(group.seconds, 0.3), min(group.rounds, 3)) if quick else (group.seconds, group.rounds)
        spreads = take_turns(calls, base, seconds, rounds) if group.measure == "us" else []
        sizes = [extra_bytes(call, device) for call in calls]
    if not spreads:  # memory is measured once
        spreads = [Spread(size, ratio, ratio, ratio, 1) for size in sizes for ratio in [size / sizes[base]]]
    shared = {**group.case, "threads": count, "measure": group.measure}
    about = {"machine": machine(device), "torch": torch.__version__}
    return [
        {**case, **shared, **spread._asdict(), "extra_bytes": size, **about}
        for case, spread, size in zip(cases, spreads, sizes, strict=True)
    ]
