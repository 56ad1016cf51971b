"""Multi-label datasets in Mulan's format: ``NAME/NAME-train.arff``, ``NAME/NAME-test.arff`` and ``NAME/NAME.xml``.

The ARFF files contain features and labels as columns, dense or sparse; the XML file lists the label columns.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import arff
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from rsoftmax.labels.models.card import printable
from rsoftmax_lab.comparison import Samples

BINARY = {"0", "1"}
FILES = "NAME/NAME.xml, NAME/NAME-train.arff and NAME/NAME-test.arff"


class Table(NamedTuple):
    """The samples of a split.

    Attributes:
        X: features [samples, d], float32; a sparse array if the file is sparse. A nominal feature with the values 0 and
            1 is one column, any other is one-hot encoded.
        Y: labels [samples, K], bool, in the order of the XML file.
        numeric: whether each column of X is numeric, [d].
    """

    X: Any
    Y: NDArray[np.bool_]
    numeric: NDArray[np.bool_]


def names(folder: Path, only: Sequence[str] | None = None, *, quick: bool = False) -> list[str]:
    """The datasets in a folder, or the requested ones; if none are requested, ``quick`` takes the smallest."""
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {str(folder)!r} does not exist")
    existing = sorted(path.parent.name for path in folder.glob("*/*.xml") if path.stem == path.parent.name)
    for name in existing:
        if printable(name) != name:
            raise ValueError(
                f"{str(folder)!r} has a dataset with non-printable characters in its name, {name!r}; rename it"
            )
    if not existing:
        raise FileNotFoundError(f"{str(folder)!r} contains no datasets; expected {FILES}")
    for name in only or ():
        if name not in existing:
            raise ValueError(f"{str(folder)!r} has no dataset {name!r}; it has {', '.join(existing)}")
    if quick and not only:
        return [min(existing, key=lambda name: (folder / name / f"{name}-train.arff").stat().st_size)]
    return list(dict.fromkeys(only or existing))


def read(folder: Path) -> tuple[Table, Table]:
    """The training and test samples of the dataset in a folder. Errors name the file and, if possible, the line."""
    labels = _labels(folder / f"{folder.name}.xml")
    train, test = (_load(folder / f"{folder.name}-{split}.arff") for split in ("train", "test"))
    tables = _table(train, labels), _table(test, labels)
    if train.attributes != test.attributes:
        raise ValueError(f"{test.path}: its attributes differ from those of {train.path}")
    return tables


@lru_cache(maxsize=1)  # consecutive runs use the same data
def read_cached(folder: Path) -> tuple[Table, Table]:
    """As :func:`read`."""
    return read(folder)


def standardized(splits: Sequence[Samples], numeric: NDArray[np.bool_]) -> list[Samples]:
    """Standardize numeric features by the statistics of the first split; one-hot features stay 0 and 1."""
    if not numeric.any():
        return list(splits)
    first = splits[0].X
    scaler = StandardScaler(with_mean=not sp.issparse(first)).fit(first[:, numeric])

    def scaled(X: Any) -> Any:
        if sp.issparse(X):
            factors = np.ones(X.shape[1], np.float32)
            factors[numeric] = 1 / scaler.scale_
            return sp.csr_array(X.multiply(factors))
        X = X.copy()
        X[:, numeric] = scaler.transform(X[:, numeric])
        return X

    return [Samples(scaled(samples.X), samples.Y) for samples in splits]


# ------------------------------------------------------------------------------------------------------ the files


class _File(NamedTuple):
    path: Path
    attributes: list[tuple[str, Any]]  # a name, and a type or the list of its values
    samples: list[Any]  # lists of values, or dictionaries from column to value
    sparse: bool


def _labels(path: Path) -> list[str]:
    try:
        root = ElementTree.fromstring(_text(path))
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}, line {error.position[0]}: not XML: {error}") from None
    labels = [_unescaped(item.get("name") or "") for item in root.iter() if item.tag.rpartition("}")[2] == "label"]
    if not labels or not all(labels):
        raise ValueError(f'{path}: expected <label name="..."> for every label, got {labels or "none"}')
    if len(labels) < 2:
        raise ValueError(f"{path}: lists 1 label; a multi-label dataset has at least two")
    if repeated := [name for name in labels if labels.count(name) > 1]:
        raise ValueError(f"{path}: lists the label {repeated[0]!r} twice")
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
        raise ValueError(f"{path}: has no samples after @data")
    return _File(path, [(_unescaped(name), kind) for name, kind in content["attributes"]], content["data"], sparse)


_QUOTED = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')"""
_VALUES = rf"""\{{\s*+(?:(?:{_QUOTED}|[^\s,"'{{}}][^\s,{{}}]*+|)\s*+(?:,\s*+|(?=\}})))*+\}}"""
_DECLARATION = re.compile(rf"""@attribute\s++(?:{_QUOTED}|[^\s{{}}]++)\s++(?:{_VALUES}|[^{{}}]*+)""", re.IGNORECASE)


def _check_declarations(path: Path, text: str) -> None:
    """Reject malformed lists of values: arff's regular expression would take forever on them."""
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if "{" in line and line.lower().startswith("@attribute") and not _DECLARATION.fullmatch(line):
            raise ValueError(f"{path}, line {number}: expected @attribute NAME {{VALUE,...}}, got {line[:80]!r}")


def _reason(error: Exception) -> str:
    """The message of an error; arff formats it with the line number, which fails if the message contains a %."""
    try:
        return str(error) or type(error).__name__
    except (TypeError, ValueError):
        return str(getattr(error, "message", "")).replace("%d", str(getattr(error, "line", "?")))


def _table(file: _File, labels: list[str]) -> Table:
    """Features and labels; a feature has one column, or one for each of its values."""
    _check(file, labels)
    features = [(name, kind) for name, kind in file.attributes if name not in labels]
    columns = [(name, value) for name, kind in features for value in ([None] if _is_number(kind) else kind)]
    if not columns:
        raise ValueError(f"{file.path}: has no features, only the labels of the XML file")
    kinds = dict(file.attributes)
    numeric = np.array([isinstance(kinds[name], str) for name, _ in columns])
    X, Y = _arrays(file, {column: number for number, column in enumerate(columns)}, labels)
    return Table(X if file.sparse else X.toarray(), Y, numeric)


def _check(file: _File, labels: list[str]) -> None:
    kinds = dict(file.attributes)
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


def _arrays(
    file: _File, columns: dict[tuple[str, str | None], int], labels: list[str]
) -> tuple[sp.csr_array, NDArray[np.bool_]]:
    """The features X and the labels Y."""
    Y = np.zeros((len(file.samples), len(labels)), dtype=bool)
    order = {label: k for k, label in enumerate(labels)}
    entries: list[tuple[int, int, float]] = []
    for sample, name, kind, value in _cells(file):
        if name in order:
            Y[sample, order[name]] = value == "1"
        elif _is_number(kind):
            entries.append((sample, columns[name, None], float(value)))
        elif (name, str(value)) in columns:
            entries.append((sample, columns[name, str(value)], 1.0))
    with np.errstate(over="ignore"):
        values = np.array([value for _, _, value in entries], dtype=np.float32)
    for wrong in np.flatnonzero(~np.isfinite(values))[:1]:
        sample, column, value = entries[wrong]
        where, name = _line(file, sample), list(columns)[column][0]
        raise ValueError(f"{where}: {name!r} is {value}, not representable as a finite float32")
    indices = np.array([entry[:2] for entry in entries]).reshape(-1, 2).T
    return sp.csr_array((values, indices), shape=(len(file.samples), len(columns))), Y


def _cells(file: _File) -> Iterator[tuple[int, str, Any, str | float]]:
    """Sample, attribute, type and value of every cell.

    Sparse files omit numbers that are zero, and nominal values that are the first declared one; of the latter, those
    that are not zero are included.
    """
    first = {index: kind[0] for index, (_, kind) in enumerate(file.attributes) if not isinstance(kind, str)}
    omitted = {index: v for index, v in first.items() if v != "0" or not _is_number(file.attributes[index][1])}
    for number, sample in enumerate(file.samples):
        for index, value in (omitted | sample).items() if file.sparse else enumerate(sample):
            name, kind = file.attributes[index]
            if value is None:
                raise ValueError(f"{_line(file, number)}: {name!r} has no value")
            yield number, name, kind, value


def _line(file: _File, sample: int) -> str:
    """The file and line of a sample."""
    return f"{file.path}, line {_data_lines(_text(file.path))[sample][0]}"


def _is_number(kind: Any) -> bool:
    return isinstance(kind, str) or set(kind) == BINARY


def _unescaped(name: str) -> str:
    r"""A name without backslashes: ARFF files write Swainson\'s, and the reader does not remove the backslash."""
    return re.sub(r"\\(.)", r"\1", name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows adds a byte order mark
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; a dataset consists of {FILES}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _data_lines(text: str) -> list[tuple[int, str]]:
    """The numbered lines of the data section."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    start = next((i for i, (_, line) in enumerate(lines) if line.lower() == "@data"), len(lines))
    return [(number, line) for number, line in lines[start + 1 :] if line and not line.startswith("%")]
