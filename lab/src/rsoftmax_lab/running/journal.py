"""A JSON Lines file that several programs can append to concurrently, and that survives a kill.

A row is one line, written by a single ``write`` in append mode under a lock. If a program dies while writing, it leaves
a torn line: the next writer starts a new line, and readers skip the torn one with a notice.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rsoftmax_lab.running import lock
from rsoftmax_lab.running.runs import Row

Notice = Callable[[str], None]


DEEPEST = 20  # levels of lists and dictionaries in a row


def append(path: Path, row: Row) -> None:
    """Append a row to the file, completely or not at all."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    line = text.encode(errors="backslashreplace") + b"\n"  # lone surrogates, in JSON's spelling
    with lock.exclusive(path) as file:
        size = os.fstat(file).st_size
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        line = b"\n" + line if torn else line
        try:
            written = os.write(file, line)
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise
        if written < len(line):
            os.ftruncate(file, size)
            raise OSError(f"{path}: no space left for a row of {len(line)} bytes; the file is unchanged")


def size(path: Path) -> int:
    """The current size of the file in bytes."""
    return path.stat().st_size if path.exists() else 0


def read(path: Path, notice: Notice, start: int = 0) -> list[Row]:
    """The rows of the file in the order of writing; empty if the file does not exist.

    Args:
        path: the file.
        notice: called with a message for each line that is skipped because it is not a row.
        start: the offset to read from, an earlier :func:`size`.
    """
    if not path.exists():
        return []
    with lock.shared(path) as file, open(file, "rb", closefd=False) as stream:
        stream.seek(start)
        lines = stream.read().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if (row := _row(line)) is not None:
            rows.append(row)
        elif line.strip():
            shown = line[:40].decode(errors="replace")
            notice(
                f"{path}, line {number} is not a complete row (was a program killed while writing it?): {shown!r}..."
            )
    return rows


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and not _is_deep(row) else None


def _is_deep(row: Row) -> bool:
    """Whether a row is nested too deeply: deeper structures would exceed Python's recursion limit later."""
    level: list[Any] = [row]
    for _ in range(DEEPEST):
        lists = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for values in lists for inner in values if isinstance(inner, dict | list)]
    return bool(level)
