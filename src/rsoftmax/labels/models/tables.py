"""Tables in files: CSV, TSV, JSON Lines (also gzipped) and Parquet. Errors name the file, the row and the remedy.

The only module that knows pyarrow, which reads Parquet: ``pip install 'rsoftmax[parquet]'``.
"""

import csv
import gzip
import io
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

__all__ = ["READERS", "Table", "csv_line", "ending", "read", "write"]

FLOAT32_MAX = 3.4e38
MAX_FIELD = 2**31 - 1  # the longest cell that the csv module accepts on every platform


@dataclass(frozen=True)
class Table:
    """The cells of a file by column. Rows are counted from 1, without the header.

    Attributes:
        path: the file.
        cells: the cells of each column.
    """

    path: Path
    cells: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def part(self, rows: slice) -> "Table":
        """Some of the rows."""
        return Table(self.path, {name: cells[rows] for name, cells in self.cells.items()})

    def column(self, name: str) -> list[Any]:
        """The cells of a column."""
        if name not in self.cells:
            raise ValueError(f"{self.path}: no column {name!r}; the columns are {', '.join(map(repr, self.cells))}")
        return self.cells[name]

    def texts(self, name: str) -> list[str]:
        """A column of texts."""
        for row, cell in enumerate(self.column(name), 1):
            if not isinstance(cell, str):
                raise self._error(row, f"{name!r} must be a text, got {cell!r}; fill it in, or delete the row")
        return self.column(name)

    def files(self, name: str) -> list[Path]:
        """A column of paths, relative to the folder of the table."""
        paths = [self.path.parent / text for text in self.texts(name)]
        for row, path in enumerate(paths, 1):
            if not path.is_file():
                raise self._error(row, f"the file {str(path)!r} does not exist; paths are relative to the table")
        return paths

    def categories(self, names: Sequence[str]) -> set[str]:
        """The columns without any number."""
        filled = {name: [cell for cell in self.column(name) if cell not in (None, "")] for name in names}
        is_text = {name: all(isinstance(c, str) and not _is_number(c) for c in filled[name]) for name in names}
        return {name for name in names if filled[name] and is_text[name]}

    def rows(self, names: Sequence[str], categories: Collection[str] | None = None) -> list[list[float | str]]:
        """Columns of numbers and of categories, row by row.

        Args:
            names: the columns.
            categories: those of them whose cells are read as texts. None: :meth:`categories`.
        """
        texts = self.categories(names) if categories is None else categories
        columns = [
            [_text(cell) if name in texts else self._number(row, name, cell) for row, cell in enumerate(cells, 1)]
            for name, cells in ((name, self.column(name)) for name in names)
        ]
        return list(map(list, zip(*columns, strict=True)))

    def labels(self, name: str, separator: str) -> list[list[str]]:
        """A column of labels: lists, or texts with a separator between labels. An empty cell has no labels."""
        if not separator:
            raise ValueError("the separator of labels is empty; pass the text between two labels, such as ';'")
        column = []
        for row, cell in enumerate(self.column(name), 1):
            is_empty = cell is None or (isinstance(cell, float) and math.isnan(cell))
            labels = [] if is_empty else cell.split(separator) if isinstance(cell, str) else cell
            if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
                expected = f"a list of labels, or a text like 'a{separator}b'"
                raise self._error(row, f"{name!r} must be {expected}, got {cell!r}")
            column.append([label.strip() for label in labels if label.strip()])
        return column

    def as_texts(self, separator: str) -> dict[str, list[str]]:
        """All cells as they are written to CSV: lists are joined by the separator, missing cells are empty."""
        return {name: [_text(cell, separator) for cell in cells] for name, cells in self.cells.items()}

    def _number(self, row: int, name: str, cell: Any) -> float:
        try:
            number = float(cell)
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if not abs(number) <= FLOAT32_MAX:
            remedy = "fill it in, or delete the row"
            raise self._error(row, f"{name!r} must be a number up to {FLOAT32_MAX}, got {cell!r}; {remedy}")
        return number

    def _error(self, row: int, message: str) -> ValueError:
        return ValueError(f"{self.path}, row {row}: {message}")


def read(path: Path) -> Table:
    """Read a table in UTF-8; from a folder, the only table in it.

    In TSV files quotation marks are ordinary characters.
    """
    if path.is_dir():
        tables = sorted(file for file in path.iterdir() if ending(file) in READERS)
        if len(tables) != 1:
            names = ", ".join(file.name for file in tables) or "none"
            raise ValueError(f"{path} must hold exactly one table ({', '.join(READERS)}), got {names}; pass the file")
        path = tables[0]
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist")
    if ending(path) not in READERS:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(READERS)}")
    try:
        cells = _read_utf8(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a gzip file, or damaged: {error}") from None
    if not cells or not next(iter(cells.values())):
        raise ValueError(f"{path}: the file has no rows; is it the right one?")
    return Table(path, cells)


def write(table: Table, parts: Mapping[Path, Sequence[int]]) -> list[Path]:
    """Write rows of a table to new files in its format, all of them or none.

    Args:
        table: as it was read.
        parts: the rows of each file, counted from 0.

    Returns:
        The files.
    """
    if existing := [path for path in parts if os.path.lexists(path)]:
        raise FileExistsError(f"{existing[0]} exists; remove it, or choose another folder")
    new = {path: path.with_name(f".{uuid4().hex}.{path.name}") for path in parts}
    try:
        for path, rows in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            cells = {name: [column[row] for row in rows] for name, column in table.cells.items()}
            WRITERS[ending(table.path)](new[path], cells, table.path)
        for path, hidden in new.items():
            hidden.rename(path)
    finally:
        for hidden in new.values():
            hidden.unlink(missing_ok=True)
    return list(parts)


def csv_line(cells: Sequence[str]) -> str:
    """One line of a CSV file, without the line break.

    A cell that a spreadsheet would run as a formula (``=``, ``+``, ``-``, ``@``, tab or carriage return at its start)
    gets an apostrophe in front, unless it is a number.

    Example:
        >>> csv_line(["a, b", "=1+1", "-1.5"])
        '"a, b",\\'=1+1,-1.5'
    """
    line, formulas = io.StringIO(), ("=", "+", "-", "@", "\t", "\r")
    inert = [f"'{cell}" if cell.startswith(formulas) and not _is_number(cell) else cell for cell in cells]
    csv.writer(line, lineterminator="\r\n").writerow(inert)
    return line.getvalue().removesuffix("\r\n")


def ending(path: Path) -> str:
    """The end of a file's name that says its format.

    Example:
        >>> ending(Path("a.b.CSV")), ending(Path("a.jsonl.gz"))
        ('.csv', '.jsonl.gz')
    """
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def _open(path: Path, mode: str) -> Any:
    """A file as bytes ("rb", "wb"), compressed if its name says so."""
    return gzip.open(path, mode) if path.suffix.lower() == ".gz" else path.open(mode)


def _read_utf8(path: Path) -> dict[str, list[Any]]:
    try:
        return READERS[ending(path)](path)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: byte {_invalid_byte(path)} is not valid UTF-8; save the file as UTF-8") from None


def _invalid_byte(path: Path) -> int | None:
    """The position of the first invalid byte in the whole file; a reader counts from its last chunk."""
    try:
        with _open(path, "rb") as file:
            file.read().decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _text(cell: Any, separator: str = ";") -> str:
    if isinstance(cell, list | tuple):
        return separator.join(_text(part, separator) for part in cell)
    return "" if cell is None else str(cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _separated(path: Path, **dialect: Any) -> dict[str, list[Any]]:
    """All cells as texts, unconverted: "NA" and "007" too."""
    csv.field_size_limit(max(csv.field_size_limit(), min(path.stat().st_size, MAX_FIELD)))
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, **dialect)
        try:
            header, *rows = [next(lines, []), *filter(None, lines)]
        except csv.Error as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error}; is a quotation mark left open?") from None
    for name, times in Counter(filter(None, header)).items():
        if times > 1:
            raise ValueError(f"{path}: the header has {times} columns named {name!r}; rename all but one")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(f"{path}, row {number}: expected {len(header)} cells as in the header, got {len(row)}")
    return {name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=False)}


def _json_lines(path: Path) -> dict[str, list[Any]]:
    rows = []
    with _open(path, "rb") as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
        for number, line in enumerate(filter(str.strip, file), 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, row {number}: invalid JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f'{path}, row {number}: expected an object like {{"text": ...}}, got {line[:40]!r}')
            rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError(f"{path}: reading Parquet needs pyarrow: pip install 'rsoftmax[parquet]'") from None
    try:
        cells: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    except Exception as error:  # for damaged files pyarrow raises many kinds
        raise ValueError(f"{path}: not a Parquet file, or damaged: {error}") from None
    return cells


def _write_separated(path: Path, cells: dict[str, list[Any]], _: Path, **dialect: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **dialect).writerows([cells, *zip(*cells.values(), strict=True)])


def _write_json_lines(path: Path, cells: dict[str, list[Any]], _: Path) -> None:
    with _open(path, "wb") as binary, io.TextIOWrapper(binary, encoding="utf-8") as file:
        for row in zip(*cells.values(), strict=True):
            file.write(json.dumps(dict(zip(cells, row, strict=True)), ensure_ascii=False) + "\n")


def _write_parquet(path: Path, cells: dict[str, list[Any]], source: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(cells, schema=parquet.read_schema(source)), path)


READERS: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
    ".csv": partial(_separated, delimiter=",", strict=True),
    ".tsv": partial(_separated, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
}
"""The supported formats by file ending."""
WRITERS: dict[str, Callable[[Path, dict[str, list[Any]], Path], None]] = {
    ".csv": _write_separated,
    ".tsv": partial(_write_separated, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"),
    ".jsonl": _write_json_lines,
    ".jsonl.gz": _write_json_lines,
    ".parquet": _write_parquet,
}
"""Likewise; they take the new file, its cells, and the file that these were read from."""
