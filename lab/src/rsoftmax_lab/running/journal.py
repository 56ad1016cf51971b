"""A file of JSON rows that several programs may append to at once, and that survives being killed.

A row is one line, written by one ``write`` to a file opened for appending, under a lock. A program that dies in the
middle of it leaves a torn line: the next writer starts on a new one, and readers skip it with a notice.
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
    """Add a row at the end of the file, whole or not at all."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    line = text.encode(errors="backslashreplace") + b"\n"  # a name that is no UTF-8, as JSON writes it
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
            raise OSError(f"{path}: no room for a row of {len(line)} bytes; the file is as it was before")


def size(path: Path) -> int:
    """How many bytes the file has by now."""
    return path.stat().st_size if path.exists() else 0


def read(path: Path, notice: Notice, start: int = 0) -> list[Row]:
    """The rows of the file, in the order in which they were written; none if there is no file.

    Args:
        path: the file.
        notice: told about each line that is not a row, and is skipped.
        start: how many bytes to leave out, a :func:`size` of before.
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
            notice(f"{path}, line {number} is not a whole row (a program was killed while writing it?): {shown!r}...")
    return rows


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and not _is_deep(row) else None


def _is_deep(row: Row) -> bool:
    """Whether there are more levels than a row has; Python stops at a thousand or so, wherever it meets them."""
    level: list[Any] = [row]
    for _ in range(DEEPEST):
        lists = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for values in lists for inner in values if isinstance(inner, dict | list)]
    return bool(level)
