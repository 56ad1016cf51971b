"""Runs a benchmark: measures group by group, prints tables, and writes the records."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rsoftmax_lab.bench.benchmark import Benchmark, Case, Group, Record, Settings, read
from rsoftmax_lab.bench.tables import group_table
from rsoftmax_lab.bench.timing import Spread, extra_bytes, keep_freed_memory, machine, take_turns, threads


def run(
    benchmark: Benchmark, groups: Sequence[Group], settings: Settings, path: Path, console: Console
) -> list[Record]:
    """Measure the groups with each thread count, print a table for each, and write the records.

    Records are appended to PATH with the suffix ``.part`` as groups finish; that file replaces PATH when all have. A
    run that is stopped leaves PATH unchanged. The next run starts from the beginning: the records of a file are
    measured in one run, so that they are comparable. A benchmark that ``keeps_groups`` adds to PATH after every group,
    and a group that is there with this machine is not measured again.
    """
    if benchmark.keeps_memory:
        keep_freed_memory()
    path.parent.mkdir(parents=True, exist_ok=True)
    records = read(path) if benchmark.keeps_groups and path.exists() else []
    work = [(count, group) for count, group in product(settings.threads, groups) if not _has(records, group, count)]
    part, kept = path.with_suffix(".part"), len(records)
    _write(part, records)
    try:
        for done, (count, group) in enumerate(work, start=1):
            measured = measure(group, benchmark.baseline, count, settings.quick)
            records += measured
            _write(part, records)
            if benchmark.keeps_groups:
                part.replace(path)
            console.print(group_table(benchmark, measured, f"group {done} of {len(work)}"))
    except KeyboardInterrupt:
        where, then = (path, "goes on") if benchmark.keeps_groups else (part, "starts from the beginning")
        message = f"stopped; {len(records) - kept} records are in {where}; the next run {then}"
        console.print(message, markup=False, soft_wrap=True)
        raise
    _write(part, records).replace(path)
    return records


def _write(path: Path, records: Sequence[Record]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def _has(records: Sequence[Record], group: Group, count: int) -> bool:
    case = {**group.case, "threads": count, **_about(group)}
    return any(record.items() >= case.items() for record in records)


def _about(group: Group) -> Record:
    return {"machine": machine(group.case.get("device", "cpu")), "torch": torch.__version__}


def measure(group: Group, baseline: Case, count: int = 1, quick: bool = False) -> list[Record]:
    """The records of one group with a number of threads."""
    device = group.case.get("device", "cpu")
    with threads(count):
        cases, calls = zip(*group.calls(), strict=True)
        base = next(i for i, case in enumerate(cases) if case.items() >= baseline.items())
        seconds, rounds = (min(group.seconds, 0.3), min(group.rounds, 3)) if quick else (group.seconds, group.rounds)
        spreads = take_turns(calls, base, seconds, rounds) if group.measure == "us" else []
        sizes: list[Any] = [extra_bytes(call, device) if group.memory else None for call in calls]
    if not spreads:  # memory is measured once
        spreads = [Spread(size, ratio, ratio, ratio, 1) for size in sizes for ratio in [size / sizes[base]]]
    shared = {**group.case, "threads": count, "measure": group.measure}
    return [
        {**case, **shared, **spread._asdict(), "extra_bytes": size, **_about(group)}
        for case, spread, size in zip(cases, spreads, sizes, strict=True)
    ]
