"""Multi-label datasets in Mulan's format: ``NAME/NAME-train.arff``, ``NAME/NAME-test.arff`` and ``NAME/NAME.xml``.

The ARFF files contain features and labels as columns, dense or sparse; the XML file lists the label columns.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import arff
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from rsoftmax.labels.models.card import printable

BINARY = {"0", "1"}


class Table(NamedTuple):
    """The rows of a dataset.

    Attributes:
        X: features [rows, d], float32; a sparse array if the file is sparse. A nominal feature with the values 0 and 1
            is one column, any other is one-hot encoded.
        Y: labels [rows, K], bool, in the order of the XML file.
        numeric: whether each column of X is numeric, [d].
    """

    X: Any
    Y: NDArray[np.bool_]
    numeric: NDArray[np.bool_]


def names(folder: Path, only: Sequence[str] | None = None) -> list[str]:
    """The datasets in a folder, or the requested ones."""
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {str(folder)!r} does not exist")
    found = sorted(path.parent.name for path in folder.glob("*/*.xml") if path.stem == path.parent.name)
    for name in found:
        if printable(name) != name:
            raise ValueError(
                f"{str(folder)!r} has a dataset with non-printable characters in its name, {name!r}; rename it"
            )
    if not found:
        raise FileNotFoundError(
            f"{str(folder)!r} contains no datasets; expected NAME/NAME.xml, NAME-train.arff and NAME-test.arff"
        )
    for name in only or ():
        if name not in found:
            raise ValueError(f"{str(folder)!r} has no dataset {name!r}; it has {', '.join(found)}")
    return list(dict.fromkeys(only or found))


def read(folder: Path) -> tuple[Table, Table]:
    """The training and test rows of the dataset in a folder. Errors name the file and, if possible, the line."""
    labels = _labels(folder / f"{folder.name}.xml")
    train, test = (_load(folder / f"{folder.name}-{part}.arff") for part in ("train", "test"))
    tables = _table(train, labels), _table(test, labels)
    if train.attributes != test.attributes:
        raise ValueError(f"{test.path}: its attributes differ from those of {train.path}")
    return tables


class _File(NamedTuple):
    path: Path
    attributes: list[tuple[str, Any]]  # a name, and a type or the list of its values
    rows: list[Any]  # lists of values, or dictionaries from column to value
    sparse: bool


def _labels(path: Path) -> list[str]:
    try:
        root = ElementTree.fromstring(_text(path))
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}, line {error.position[0]}: not XML: {error}") from None
    found = [item.get("name") or "" for item in root.iter() if item.tag.rpartition("}")[2] == "label"]
    if not found or not all(found):
        raise ValueError(f'{path}: expected <label name="..."> for every label, got {found or "none"}')
    if len(found) < 2:
        raise ValueError(f"{path}: lists 1 label; a multi-label dataset has at least two")
    labels = [_plain(name) for name in found]
    twice = [name for name in labels if labels.count(name) > 1]
    if twice:
        raise ValueError(f"{path}: lists the label {twice[0]!r} twice")
    return labels


def _load(path: Path) -> _File:
    text = _text(path)
    _check_declarations(path, text)
    lines = _data_lines(text)
    sparse = bool(lines) and lines[0][1].startswith("{")
    try:
        content = arff.loads(text, return_type=arff.LOD if sparse else arff.DENSE)
    except Exception as error:  # ArffException, or any other error on unexpected input
        raise ValueError(f"{path}: {_reason(error)}") from None
    if not content["data"]:
        raise ValueError(f"{path}: has no rows after @data")
    attributes = [(_plain(name), kind) for name, kind in content["attributes"]]
    return _File(path, attributes, content["data"], sparse)


_QUOTED = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')"""
_VALUES = rf"""\{{\s*+(?:(?:{_QUOTED}|[^\s,"'{{}}][^\s,{{}}]*+|)\s*+(?:,\s*+|(?=\}})))*+\}}"""
_DECLARATION = re.compile(rf"""@attribute\s++(?:{_QUOTED}|[^\s{{}}]++)\s++(?:{_VALUES}|[^{{}}]*+)""", re.IGNORECASE)


def _check_declarations(path: Path, text: str) -> None:
    """Reject malformed lists of values: arff's regular expression would take forever on them."""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if "{" in line and line.lower().startswith("@attribute") and not _DECLARATION.fullmatch(line):
            raise ValueError(f"{path}, line {number}: expected @attribute NAME {{VALUE,...}}, got {line[:80]!r}")


def _reason(error: Exception) -> str:
    """The message of an error; arff formats it with the line number, which fails if the message contains a %."""
    try:
        return str(error) or type(error).__name__
    except (TypeError, ValueError):
        return str(getattr(error, "message", "")).replace("%d", str(getattr(error, "line", "?")))


Column = tuple[str, str | None]  # a feature, and one of its values if each value has a column


def _table(file: _File, labels: list[str]) -> Table:
    kinds = dict(file.attributes)
    _check(file, kinds, labels)
    columns = {column: place for place, column in enumerate(_columns(file, labels))}
    if not columns:
        raise ValueError(f"{file.path}: has no features, only the labels of the XML file")
    X = _features(file, columns)
    numeric = np.array([isinstance(kinds[name], str) for name, _ in columns])
    return Table(X if file.sparse else X.toarray(), _truth(file, labels), numeric)


def _check(file: _File, kinds: dict[str, Any], labels: list[str]) -> None:
    for label in labels:
        if label not in kinds:
            raise ValueError(f"{file.path}: has no attribute {label!r}, which the XML file lists as a label")
        if isinstance(kinds[label], str) or set(kinds[label]) != BINARY:
            raise ValueError(f"{file.path}: the label {label!r} must be {{0,1}}, got {kinds[label]}")
    for name, kind in kinds.items():
        if isinstance(kind, str) and kind.upper() not in ("NUMERIC", "REAL", "INTEGER"):
            raise ValueError(
                f"{file.path}: the feature {name!r} is of type {kind}; only numeric and {{...}} are supported"
            )


def _columns(file: _File, labels: list[str]) -> Iterator[Column]:
    for name, kind in file.attributes:
        if name not in labels:
            yield from ((name, value) for value in ([None] if _is_number(kind) else kind))


def _cells(file: _File) -> Iterator[tuple[int, str, Any, str | float]]:
    """Row, attribute, type and value of every cell, including the non-zero cells that a sparse file omits."""
    omitted = _omitted(file) if file.sparse else {}
    for number, row in enumerate(file.rows):
        for index, value in (omitted | row).items() if file.sparse else enumerate(row):
            name, kind = file.attributes[index]
            if value is None:
                raise ValueError(f"{_line(file, number)}: {name!r} has no value")
            yield number, name, kind, value


def _omitted(file: _File) -> dict[int, str]:
    """The values of omitted cells in a sparse file: for a nominal column, the first declared value.

    Omitted numbers, and "0" where it is the first of 0 and 1, are zero and left out here.
    """
    first = {index: kind[0] for index, (_, kind) in enumerate(file.attributes) if not isinstance(kind, str)}
    return {index: value for index, value in first.items() if value != "0" or not _is_number(file.attributes[index][1])}


def _features(file: _File, columns: dict[Column, int]) -> sp.csr_array:
    places: list[tuple[int, int]] = []
    amounts: list[float] = []
    for number, name, kind, value in _cells(file):
        column = columns.get((name, None) if _is_number(kind) else (name, str(value)))
        if column is not None:  # otherwise it is a label
            places.append((number, column))
            amounts.append(float(value) if _is_number(kind) else 1.0)
    with np.errstate(over="ignore"):
        values = np.array(amounts, dtype=np.float32)
    for wrong in np.flatnonzero(~np.isfinite(values))[:1]:
        number, place = places[wrong]
        name = list(columns)[place][0]
        raise ValueError(f"{_line(file, number)}: {name!r} is {amounts[wrong]}, not representable as a finite float32")
    return sp.csr_array((values, np.array(places).reshape(-1, 2).T), shape=(len(file.rows), len(columns)))


def _truth(file: _File, labels: list[str]) -> NDArray[np.bool_]:
    Y = np.zeros((len(file.rows), len(labels)), dtype=bool)
    order = {label: k for k, label in enumerate(labels)}
    for number, name, _, value in _cells(file):
        if name in order:
            Y[number, order[name]] = value == "1"
    return Y


def _line(file: _File, number: int) -> str:
    """The file and line of a row."""
    line, _ = _data_lines(_text(file.path))[number]
    return f"{file.path}, line {line}"


def _is_number(kind: Any) -> bool:
    return isinstance(kind, str) or set(kind) == BINARY


def _plain(name: str) -> str:
    r"""A name without backslashes: ARFF files write Swainson\'s, and the reader keeps the backslash."""
    return re.sub(r"\\(.)", r"\1", name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows adds a byte order mark
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist; a dataset consists of NAME/NAME.xml, NAME/NAME-train.arff and NAME/NAME-test.arff"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _data_lines(text: str) -> list[tuple[int, str]]:
    """The numbered lines of the data section."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    start = next((i for i, (_, line) in enumerate(lines) if line.lower() == "@data"), len(lines))
    return [(number, line) for number, line in lines[start + 1 :] if line and not line.startswith("%")]
