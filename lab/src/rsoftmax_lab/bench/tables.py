"""Tables of rows: one group on the terminal, and all rows against the goals."""

import statistics
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from rsoftmax_lab.bench.benchmark import Benchmark
from rsoftmax_lab.bench.rows import Row, Spread


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


def group_table(benchmark: Benchmark, rows: Sequence[Row], caption: str) -> Table:
    """The rows of one group."""
    word, _ = MEASURES[rows[0]["measure"]]
    headers = (f"ratio to {' '.join(benchmark.baseline.values())}", word, "median", "quartiles", "extra memory")
    title = f"{word}, {benchmark.title.format_map(rows[0].case)}"
    table = Table(*headers, *benchmark.columns, title=escape(title), caption=caption)
    for row in rows:
        table.add_row(*map(escape, _cells(benchmark, row)))
    return table


def _cells(benchmark: Benchmark, row: Row) -> list[str]:
    _, text = MEASURES[row["measure"]]
    return [
        _label(benchmark, row),
        text(row.spread.median),
        ratio_text(row.spread.ratio),
        _quartiles(row.spread) if row.spread.rounds > 1 else "",
        "" if row.extra_bytes is None else bytes_text(row.extra_bytes),
        *(cell(row) for cell in benchmark.columns.values()),
    ]


def ratio_table(benchmark: Benchmark, rows: Sequence[Row], column: str) -> str:
    """A Markdown table of ratios with quartiles: one line per label, one column per group.

    Args:
        benchmark: the benchmark.
        rows: its rows.
        column: the name of a group, a format string of the case.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cell = f"{ratio_text(row.spread.ratio)} ({_quartiles(row.spread)})"
        cells.setdefault(_label(benchmark, row), {})[column.format_map(row.case)] = cell
    base = _label(benchmark, next(row for row in rows if row.case.items() >= benchmark.baseline.items()))
    columns = list(cells.pop(base))
    lines = [[f"`{label}`", *(found.get(name, "") for name in columns)] for label, found in cells.items()]
    return markdown([f"ratio to {base}", *columns], lines)


def _label(benchmark: Benchmark, row: Row) -> str:
    return " ".join(benchmark.label.format_map(row.case).split())


def _quartiles(spread: Spread) -> str:
    return f"{ratio_text(spread.ratio_low)} - {ratio_text(spread.ratio_high)}"


def verdict(benchmark: Benchmark, rows: Sequence[Row]) -> str:
    """A Markdown table of goals, with the median and the slowest of the cases that each one covers."""
    lines = []
    for goal in benchmark.goals:
        if cases := goal.measured(rows):
            ratios = [ratio for ratio, _ in cases]
            place = benchmark.place.format_map(cases[0][1].case).replace(", ,", ",")  # a mapping without a parameter
            slowest = f"{ratio_text(ratios[0])} ({place})"
            within = f"{sum(ratio <= goal.at_most for ratio in ratios)} of {len(ratios)}"
            lines.append([goal.title, f"{goal.at_most}", ratio_text(statistics.median(ratios)), slowest, within])
    return markdown(["target", "at most", "median", "slowest case", "cases within"], lines)


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))
