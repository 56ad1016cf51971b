"""Tables in files: CSV, TSV, JSON Lines (also gzipped) and Parquet. Errors name the file, the row and the remedy.

Rows are read anew in every loop over them, so that a file need not fit in memory. The only module that knows pyarrow,
which reads Parquet: ``pip install 'rsoftmax[parquet]'``.
"""

import csv
import gzip
import io
import json
import math
import os
import sys
import zlib
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from rsoftmax.labels.models.streams import Stream, batches

__all__ = ["READERS", "Table", "csv_line", "ending", "read", "write"]

FLOAT32_MAX = 3.4e38
MAX_FIELD = 2**31 - 1  # the longest cell that the csv module accepts on every platform
ROWS_READ, ROWS_WRITTEN = 2**8, 2**14  # at once; Parquet is read and written in parts
BYTES_AT_ONCE = 2**20
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows with named cells, which come from a file; counted from 1, without the header.

    Attributes:
        path: the file.
        names: the columns.
        rows: a stream, or a list.
        start: the number of rows of the file before these.
    """

    path: Path
    names: list[str]
    rows: Stream | list[Row]
    start: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def parts(self, size: int) -> "Iterator[Table]":
        """So many rows at a time, or fewer where they are long, in memory."""
        start = self.start
        for rows in batches(self.rows, size, _length):
            yield Table(self.path, self.names, rows, start)
            start += len(rows)

    def column(self, name: str, convert: Callable[[int, Any], Any] = lambda _, cell: cell) -> Stream:
        """The cells of a column, converted from the number of the row and the cell."""
        self._check_names([name])
        return Stream(len(self), lambda: (convert(row, cells.get(name)) for row, cells in self._numbered()))

    def texts(self, name: str) -> Stream:
        """A column of texts."""

        def text(row: int, cell: Any) -> str:
            if not isinstance(cell, str):
                raise self._error(row, f"{name!r} must be a text, got {cell!r:.80}; fill it in, or delete the row")
            return cell

        return self.column(name, text)

    def files(self, name: str) -> list[Path]:
        """A column of paths, relative to the folder of the table."""
        paths = [self.path.parent / text for text in self.texts(name)]
        for row, path in enumerate(paths, self.start + 1):
            if not path.is_file():
                raise self._error(row, f"the file {str(path)!r} does not exist; paths are relative to the table")
        return paths

    def categories(self, names: Sequence[str]) -> set[str]:
        """The columns without any number."""
        self._check_names(names)
        filled = ((name, row[name]) for row in self.rows for name in names if row.get(name) not in (None, ""))
        is_text = {(name, isinstance(cell, str) and not _is_number(cell)) for name, cell in filled}
        return {name for name in names if (name, True) in is_text and (name, False) not in is_text}

    def features(self, names: Sequence[str], categories: Collection[str] | None = None) -> list[list[float | str]]:
        """Columns of numbers and of categories, row by row.

        Args:
            names: the columns.
            categories: those of them whose cells are read as texts. None: :meth:`categories`.
        """
        texts = self.categories(names) if categories is None else categories
        self._check_names(names)
        return [
            [_text(cells.get(name)) if name in texts else self._number(row, name, cells.get(name)) for name in names]
            for row, cells in self._numbered()
        ]

    def labels(self, name: str, separator: str) -> list[list[str]]:
        """A column of labels: lists, or texts with a separator between labels. An empty cell has no labels."""
        if not separator:
            raise ValueError("the separator of labels is empty; pass the text between two labels, such as ';'")

        def names(row: int, cell: Any) -> list[str]:
            is_empty = cell is None or (isinstance(cell, float) and math.isnan(cell))
            labels = [] if is_empty else cell.split(separator) if isinstance(cell, str) else cell
            if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
                expected = f"a list of labels, or a text like 'a{separator}b'"
                raise self._error(row, f"{name!r} must be {expected}, got {cell!r:.80}")
            return [sys.intern(label.strip()) for label in labels if label.strip()]

        return list(self.column(name, names))

    def as_texts(self, separator: str) -> dict[str, list[str]]:
        """All cells as they are written to CSV: lists are joined by the separator, missing cells are empty."""
        return {name: [_text(cell, separator) for cell in self.column(name)] for name in self.names}

    def _numbered(self) -> Iterator[tuple[int, Row]]:
        return enumerate(self.rows, self.start + 1)

    def _check_names(self, names: Iterable[str]) -> None:
        if missing := [name for name in names if name not in self.names]:
            raise ValueError(
                f"{self.path}: no column {missing[0]!r}; the columns are {', '.join(map(repr, self.names))}"
            )

    def _number(self, row: int, name: str, cell: Any) -> float:
        try:
            number = float(cell)
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if not abs(number) <= FLOAT32_MAX:
            remedy = "fill it in, or delete the row"
            raise self._error(row, f"{name!r} must be a number up to {FLOAT32_MAX}, got {cell!r:.80}; {remedy}")
        return number

    def _error(self, row: int, message: str) -> ValueError:
        return ValueError(f"{self.path}, row {row}: {message}")


def read(path: Path) -> Table:
    """A table in UTF-8; of a folder, the only table in it. One pass over the file checks and counts its rows.

    In TSV files quotation marks are ordinary characters. The file must not change while its rows are used.
    """
    if path.is_dir():
        tables = sorted(file for file in path.iterdir() if ending(file) in READERS)
        if len(tables) != 1:
            names = ", ".join(file.name for file in tables) or "none"
            raise ValueError(f"{path} must hold exactly one table ({', '.join(READERS)}), got {names}; pass the file")
        path = tables[0]
    if not path.is_file():
        what = "is no regular file, which can be read several times" if path.exists() else "does not exist"
        raise FileNotFoundError(f"the file {str(path)!r} {what}")
    if ending(path) not in READERS:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(READERS)}")
    state, size, columns = _state(path), 0, dict[str, None]()
    for size, row in enumerate(_rows(path, state), 1):  # noqa: B007 - the last one is the number of rows
        columns.update(dict.fromkeys(row))
    if not size:
        raise ValueError(f"{path}: the file has no rows; is it the right one?")
    return Table(path, list(columns), Stream(size, lambda: _rows(path, state)))


def write(table: Table, paths: Sequence[Path], parts: Sequence[int]) -> None:
    """Write the rows of a table to new files in its format, all of them or none.

    Args:
        table: as it was read.
        paths: the files.
        parts: the number of the file that a row belongs to, for each row.
    """
    if existing := [path for path in paths if os.path.lexists(path)]:
        raise FileExistsError(f"{existing[0]} exists; remove it, or choose another folder")
    hidden = [path.with_name(f".{uuid4().hex}.{path.name}") for path in paths]
    try:
        with ExitStack() as stack:
            writers = []
            for path in hidden:
                path.parent.mkdir(parents=True, exist_ok=True)
                writers.append(stack.enter_context(WRITERS[ending(table.path)](path, table)))
            for some in table.parts(ROWS_WRITTEN):
                own = parts[some.start : some.start + len(some)]
                for number, writer in enumerate(writers):
                    writer([row for row, part in zip(some.rows, own, strict=True) if part == number])
        for new, path in zip(hidden, paths, strict=True):
            new.rename(path)
    finally:
        for new in hidden:
            new.unlink(missing_ok=True)


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


def _rows(path: Path, state: tuple[int, int]) -> Iterator[Row]:
    """The rows of a file, one by one; raises unless it is as it was."""
    _check_state(path, state)
    try:
        yield from _utf8_rows(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        _check_state(path, state)
        raise ValueError(f"{path}: not a gzip file, or damaged: {error}") from None
    except ValueError:
        _check_state(path, state)
        raise
    _check_state(path, state)


def _utf8_rows(path: Path) -> Iterator[Row]:
    try:
        yield from READERS[ending(path)](path)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: byte {_invalid_byte(path)} is not valid UTF-8; save the file as UTF-8") from None


def _state(path: Path) -> tuple[int, int]:
    """What tells whether a file has changed: its size, and when it was written."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _check_state(path: Path, state: tuple[int, int]) -> None:
    if _state(path) != state:
        raise ValueError(f"{path} has changed since its rows were counted; run the command again")


def _invalid_byte(path: Path) -> int:
    """The position of the first invalid byte in the whole file; a reader counts from its last chunk."""
    decoder, before = getincrementaldecoder("utf-8")(), 0
    with _open(path, "rb") as file:
        while chunk := file.read(BYTES_AT_ONCE):
            start = before - len(decoder.getstate()[0])
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return start + error.start
            before += len(chunk)
    return before - len(decoder.getstate()[0])


def _length(row: Row) -> int:
    """The characters of a row that are in texts."""
    return sum(len(cell) for cell in row.values() if isinstance(cell, str))


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


def _separated(path: Path, **dialect: Any) -> Iterator[Row]:
    """All cells as texts, unconverted: "NA" and "007" too."""
    csv.field_size_limit(max(csv.field_size_limit(), min(path.stat().st_size, MAX_FIELD)))
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, **dialect)
        try:
            header = next(lines, [])
            _check_header(path, header)
            for number, row in enumerate(filter(None, lines), 1):
                if len(row) != len(header):
                    message = f"expected {len(header)} cells as in the header, got {len(row)}"
                    raise ValueError(f"{path}, row {number}: {message}")
                yield dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error}; is a quotation mark left open?") from None


def _check_header(path: Path, header: Sequence[str]) -> None:
    """Raise unless every column has a name of its own."""
    for name, times in Counter(header).items():
        if times > 1:
            raise ValueError(f"{path}: the header has {times} columns named {name!r}; rename or delete all but one")


def _json_lines(path: Path) -> Iterator[Row]:
    with _open(path, "rb") as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
        for number, line in enumerate(filter(str.strip, file), 1):
            try:
                row = json.loads(line)
                if "\\u" in line:
                    json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                wrong = error.object[error.start : error.end]
                raise ValueError(f"{path}, row {number}: {wrong!r} is not valid Unicode: a lone surrogate") from None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, row {number}: invalid JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f'{path}, row {number}: expected an object like {{"text": ...}}, got {line[:40]!r}')
            yield row


def _parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError(f"{path}: reading Parquet needs pyarrow: pip install 'rsoftmax[parquet]'") from None
    with _parquet_errors(path):
        file = parquet.ParquetFile(path, buffer_size=BYTES_AT_ONCE, pre_buffer=False)
    with file:
        _check_header(path, file.schema_arrow.names)
        with _parquet_errors(path):
            for batch in file.iter_batches(ROWS_READ, use_threads=False):
                yield from batch.to_pylist()


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # for damaged files pyarrow raises many kinds
        raise ValueError(f"{path}: not a Parquet file, or damaged: {error}") from None


Writer = Callable[[list[Row]], Any]
"""Writes some rows."""


@contextmanager
def _write_separated(path: Path, table: Table, **dialect: Any) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, **dialect)
        lines.writerow(table.names)
        yield lambda rows: lines.writerows(row.values() for row in rows)


@contextmanager
def _write_json_lines(path: Path, _: Table) -> Iterator[Writer]:
    with _open(path, "wb") as binary, io.TextIOWrapper(binary, encoding="utf-8") as file:
        yield lambda rows: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@contextmanager
def _write_parquet(path: Path, table: Table) -> Iterator[Writer]:
    import pyarrow
    from pyarrow import parquet

    schema = parquet.read_schema(table.path)
    with parquet.ParquetWriter(path, schema) as file:
        yield lambda rows: file.write_table(pyarrow.Table.from_pylist(rows, schema))


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": partial(_separated, delimiter=",", strict=True),
    ".tsv": partial(_separated, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
}
"""The supported formats by file ending."""
WRITERS: dict[str, Callable[[Path, Table], AbstractContextManager[Writer]]] = {
    ".csv": _write_separated,
    ".tsv": partial(_write_separated, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"),
    ".jsonl": _write_json_lines,
    ".jsonl.gz": _write_json_lines,
    ".parquet": _write_parquet,
}
"""Likewise; they take the new file, and the table whose rows are written."""
