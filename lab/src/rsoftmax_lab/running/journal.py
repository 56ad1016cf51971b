"""A file of JSON rows that several programs may append to at once, and that survives being killed.

A row is one line, written by one ``write`` to a file opened for appending, under a lock. A program that dies in the
middle of it leaves a torn line: the next writer starts on a new one, and readers skip it with a notice.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from rsoftmax_lab.running import lock
from rsoftmax_lab.running.runs import Row

Notice = Callable[[str], None]


def append(path: Path, row: Row) -> None:
    """Add a row at the end of the file, whole or not at all."""
    line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
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


def read(path: Path, notice: Notice) -> list[Row]:
    """The rows of the file, in the order in which they were written; none if there is no file.

    Args:
        path: the file.
        notice: told about each line that is not a row, and is skipped.
    """
    if not path.exists():
        return []
    with lock.shared(path) as file, open(file, "rb", closefd=False) as stream:
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
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
