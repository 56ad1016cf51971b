"""Tables of records: one group on the terminal, ratios for the documentation, and all records against the goals."""

import statistics
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from rsoftmax_lab.bench.benchmark import Benchmark, Record


def time_text(us: float) -> str:
    """A time in microseconds, or in milliseconds if it is long.

    Example:
        >>> time_text(7.93), time_text(1023242.4)
        ('7.9 us', '1023.24 ms')
    """
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms"


def bytes_text(size: float) -> str:
    """A number of bytes, in KiB or MiB.

    Example:
        >>> bytes_text(5120), bytes_text(3 * 2**20)
        ('5.0 KiB', '3.0 MiB')
    """
    return f"{size / 2**10:.1f} KiB" if size < 2**20 else f"{size / 2**20:.1f} MiB"


def ratio_text(ratio: float) -> str:
    """A ratio with two decimals, or two digits if it is small.

    Example:
        >>> ratio_text(1.0), ratio_text(0.00488)
        ('1.00', '0.0049')
    """
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


MEASURES = {"us": ("time", time_text), "bytes": ("extra memory", bytes_text)}


def group_table(benchmark: Benchmark, records: Sequence[Record], caption: str) -> Table:
    """The records of one group."""
    measure, text = MEASURES[records[0]["measure"]]
    title = f"{measure}, {benchmark.title.format_map(records[0])}"
    headers = (f"ratio to {' '.join(benchmark.baseline.values())}", measure, "median", "quartiles", "extra memory")
    table = Table(*headers, title=escape(title), caption=caption)
    for record in records:
        cells = (
            label(benchmark, record),
            text(record["median"]),
            ratio_text(record["ratio"]),
            _quartiles(record) if record["rounds"] > 1 else "",
            "" if record["extra_bytes"] is None else bytes_text(record["extra_bytes"]),
        )
        table.add_row(*map(escape, cells))
    return table


def ratio_table(benchmark: Benchmark, records: Sequence[Record], column: str) -> str:
    """A Markdown table of ratios with quartiles: one line per label, one column per group.

    Args:
        benchmark: the benchmark.
        records: its records.
        column: the name of a group, a format string of the record.
    """
    cells: dict[str, dict[str, str]] = {}
    for record in records:
        cell = f"{ratio_text(record['ratio'])} ({_quartiles(record)})"
        cells.setdefault(label(benchmark, record), {})[column.format_map(record)] = cell
    base = label(benchmark, next(record for record in records if record.items() >= benchmark.baseline.items()))
    columns = list(cells.pop(base))
    lines = [[f"`{name}`", *(line.get(title, "") for title in columns)] for name, line in cells.items()]
    return markdown([f"ratio to {base}", *columns], lines)


def verdict(benchmark: Benchmark, records: Sequence[Record]) -> str:
    """A Markdown table of goals, with the median and the slowest of the cases that each one covers."""
    lines = []
    for goal in benchmark.goals:
        if cases := goal.ratios(records):
            ratios = [ratio for ratio, _ in cases]
            slowest = benchmark.slowest.format_map(cases[0][1]).replace(", ,", ",")  # a mapping without a parameter
            within = f"{sum(ratio <= goal.at_most for ratio in ratios)} of {len(ratios)}"
            median = ratio_text(statistics.median(ratios))
            lines.append([goal.title, f"{goal.at_most}", median, f"{ratio_text(ratios[0])} ({slowest})", within])
    return markdown(["target", "at most", "median", "slowest case", "cases within"], lines)


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def label(benchmark: Benchmark, record: Record) -> str:
    """The label of a record in tables."""
    return " ".join(benchmark.label.format_map(record).split())


def _quartiles(record: Record) -> str:
    return f"{ratio_text(record['ratio_low'])}-{ratio_text(record['ratio_high'])}"
