"""Tables in files: CSV, TSV, JSON Lines and Parquet, with errors that name file, row and remedy.

The only file that knows pyarrow, which reads Parquet: ``pip install 'rsoftmax[parquet]'``.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["READERS", "Table", "read"]

LARGEST = 3.4e38  # in float32


@dataclass(frozen=True)
class Table:
    """The cells of a file, by column; rows are counted from 1, without the header.

    Attributes:
        path: the file.
        cells: for each column its cells.
    """

    path: Path
    cells: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def column(self, name: str) -> list[Any]:
        """The cells of a column."""
        if name not in self.cells:
            raise ValueError(f"{self.path}: there is no column {name!r}; there are {', '.join(map(repr, self.cells))}")
        return self.cells[name]

    def texts(self, name: str) -> list[str]:
        """A column of texts."""
        for row, cell in enumerate(self.column(name), 1):
            if not isinstance(cell, str):
                raise self.error(row, f"{name!r} must be a text, got {cell!r}; fill it in, or leave the row out")
        return self.column(name)

    def files(self, name: str) -> list[Path]:
        """A column of paths, which start from the folder of the table."""
        paths = [self.path.parent / text for text in self.texts(name)]
        for row, path in enumerate(paths, 1):
            if not path.is_file():
                raise self.error(row, f"the file {str(path)!r} does not exist; paths start from the table's folder")
        return paths

    def numbers(self, names: Sequence[str]) -> list[list[float]]:
        """Columns of numbers, row by row."""
        columns = [[self._number(row, name, cell) for row, cell in enumerate(self.column(name), 1)] for name in names]
        return list(map(list, zip(*columns, strict=True)))

    def labels(self, name: str, separator: str) -> list[list[str]]:
        """A column of labels: lists, or texts in which a separator stands between them; an empty cell has none."""
        if not separator:
            raise ValueError("the separator of labels is empty; name what stands between them, say ';'")
        return [self._labels(row, name, cell, separator) for row, cell in enumerate(self.column(name), 1)]

    def error(self, row: int, what: str) -> ValueError:
        """An error that names the file and the row."""
        return ValueError(f"{self.path}, row {row}: {what}")

    def _number(self, row: int, name: str, cell: Any) -> float:
        try:
            number = float(cell)
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if not abs(number) <= LARGEST:
            raise self.error(
                row, f"{name!r} must be a number, got {cell!r}; fill in one up to {LARGEST}, or leave the row out"
            )
        return number

    def _labels(self, row: int, name: str, cell: Any, separator: str) -> list[str]:
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return []
        labels = cell.split(separator) if isinstance(cell, str) else cell
        if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
            return [label.strip() for label in labels if label.strip()]
        raise self.error(row, f"{name!r} must be a list of labels, or a text like 'a{separator}b', got {cell!r}")


def read(path: Path) -> Table:
    """Read a table; of a folder, the only one in it.

    In TSV files quotation marks are ordinary characters. A file is read as UTF-8.
    """
    path = _in_folder(path) if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist")
    if path.suffix.lower() not in READERS:
        raise ValueError(f"{path}: it must end in {', '.join(READERS)}")
    try:
        cells = READERS[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is no UTF-8; save the file as UTF-8") from None
    if not cells or not next(iter(cells.values())):
        raise ValueError(f"{path}: the file has no rows; is it the right one?")
    return Table(path, cells)


def _in_folder(folder: Path) -> Path:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in READERS)
    if len(found) != 1:
        named = ", ".join(path.name for path in found) or "none"
        raise ValueError(f"{folder} must hold one table ({', '.join(READERS)}), there is {named}; name the file")
    return found[0]


def _csv(path: Path) -> dict[str, list[Any]]:
    return _separated(path, delimiter=",", strict=True)


def _tsv(path: Path) -> dict[str, list[Any]]:
    return _separated(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _separated(path: Path, **form: Any) -> dict[str, list[Any]]:
    """All cells as the texts that they are: "NA" and "007" too."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, **form)
        try:
            header = next(rows, [])
            _check_header(path, header)
            cells = [_whole(path, number, row, header) for number, row in enumerate(filter(None, rows), 1)]
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}: {error}; is a quotation mark open?") from None
    return {name: list(column) for name, column in zip(header, zip(*cells, strict=True), strict=False)}


def _check_header(path: Path, header: list[str]) -> None:
    for name, times in Counter(filter(None, header)).items():
        if times > 1:
            raise ValueError(f"{path}: the header names {times} columns {name!r}; rename all but one")


def _whole(path: Path, number: int, row: list[str], header: list[str]) -> list[str]:
    if len(row) != len(header):
        raise ValueError(f"{path}, row {number}: it has {len(row)} cells, and the header {len(header)}")
    return row


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError(f"{path}: to read it needs pyarrow: pip install 'rsoftmax[parquet]'") from None
    try:
        cells: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    except Exception as error:  # a damaged file makes pyarrow raise errors of many kinds
        raise ValueError(f"{path}: it is no Parquet file, or damaged: {error}") from None
    return cells


def _json_lines(path: Path) -> dict[str, list[Any]]:
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(filter(str.strip, file), 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, row {number}: it is no JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(
                    f'{path}, row {number}: a line must be an object like {{"text": ...}}, got {line[:40]!r}'
                )
            rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


READERS: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
"""The kinds of files that can be read, by their ending."""
