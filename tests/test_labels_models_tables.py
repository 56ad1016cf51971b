"""Tables in files: the same rows from every format, errors with file and row, CSV that spreadsheets do not run."""

import csv
import gzip
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from rsoftmax.labels.models import streams
from rsoftmax.labels.models.tables import csv_line, read, write
from rsoftmax.labels.models.tfidf import TfIdf


def write_csv(path: Path, rows: list[Any]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_every_format_holds_the_same_rows(tmp_path: Path) -> None:
    texts, labels = ['say "NA"', "007", ""], [["a", "b"], [], ["b"]]
    joined = list(zip(texts, map(";".join, labels), strict=True))
    write_csv(tmp_path / "t.csv", [("text", "labels"), *joined])
    (tmp_path / "t.tsv").write_text("text\tlabels\n" + "".join(f"{a}\t{b}\n" for a, b in joined))
    rows = [{"text": text, "labels": names} for text, names in zip(texts, labels, strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress((tmp_path / "t.jsonl").read_bytes()))
    parquet.write_table(pyarrow.table({"text": texts, "labels": labels}), tmp_path / "t.parquet")
    for ending in ("csv", "tsv", "jsonl", "jsonl.gz", "parquet"):
        found = read(tmp_path / f"t.{ending}")
        assert list(found.texts("text")) == texts, ending
        assert found.labels("labels", ";") == labels, ending
        assert found.as_texts(";") == {"text": texts, "labels": [";".join(row) for row in labels]}, ending
        parts = [tmp_path / f"{name}.{ending}" for name in ("first", "second")]
        write(found, parts, [1, 0, 1])
        assert [list(read(part).texts("text")) for part in parts] == [[texts[1]], [texts[0], texts[2]]], ending


def test_labels_in_lists_and_in_texts_are_the_same_labels(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"labels": [" a", "", "b "]}\n{"labels": " a;;b "}\n')
    assert read(tmp_path / "t.jsonl").labels("labels", ";") == [["a", "b"], ["a", "b"]]


def test_a_cell_may_be_of_any_length(tmp_path: Path) -> None:
    long = "love " * 100_000
    for name, separator in (("t.csv", ","), ("t.tsv", "\t")):
        (tmp_path / name).write_text(f"text{separator}labels\n{long}{separator}joy\n")
        assert list(read(tmp_path / name).texts("text")) == [long]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "jsonl.gz", "parquet"])
def test_the_texts_of_a_file_are_never_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(streams, "CHARACTERS", 2**16)
    texts = [f"word{i} " * (2**13) for i in range(8)] * 8
    path, size = tmp_path / f"t.{ending}", sum(map(len, texts))
    if ending == "parquet":
        parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=8)
        monkeypatch.setattr("rsoftmax.labels.models.tables.ROWS_READ", 1)
    elif ending == "csv":
        write_csv(path, [["text"], *([text] for text in texts)])
    else:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(lines) if ending == "jsonl.gz" else lines)
        del lines
    expected = TfIdf.fit(texts).transform(texts).toarray()
    del texts
    tracemalloc.start()
    try:
        column = read(path).texts("text")
        vectorizer = TfIdf.fit(column)
        x = vectorizer.transform(column)
        parts = [part.as_texts(";")["text"][0][:5] for part in read(path).parts(1000)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 2
    assert (x.toarray() == expected).all()
    assert parts == [f"word{i}" for i in range(8)] * 8  # a part has no more than 2**16 characters


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path, row = tmp_path / "t.jsonl", '{"text": "a"}\n'
    path.write_text(2 * row)
    texts = read(path).texts("text")
    path.write_text(3 * row)
    with pytest.raises(ValueError, match=r"t\.jsonl has changed since its rows were counted"):
        list(texts)
    reading = iter(read(path).texts("text"))
    next(reading)
    os.utime(path, ns=(0, 0))
    with pytest.raises(ValueError, match=r"t\.jsonl has changed since its rows were counted"):
        list(reading)
    texts = read(path).texts("text")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"t\.jsonl"):
        list(texts)


BAD: dict[str, tuple[str, str, str]] = {
    "missing column": ("t.csv", "txt,labels\na,b\n", "no column 'text'; the columns are 'txt', 'labels'"),
    "empty": ("t.csv", "", "the file has no rows; is it the right one?"),
    "header only": ("t.csv", "text,labels\n", "the file has no rows"),
    "many cells": ("t.csv", "text,labels\na,b\na,b,c,d\n", "row 2: expected 2 cells as in the header, got 4"),
    "few cells": ("t.csv", "text,labels\na,b\na\n", "row 2: expected 2 cells as in the header, got 1"),
    "open quotation mark": ("t.csv", 'text,labels\na,b\n"a,b\n', "is a quotation mark left open?"),
    "latin-1": ("t.csv", "text,labels\n\udcff,b\n", "byte 12 is not valid UTF-8; save the file as UTF-8"),
    "half an object": ("t.jsonl", '{"text": "a", "labels": ["x"]}\n{"text"\n', "row 2: invalid JSON"),
    "a list": ("t.jsonl", "[1]\n", "row 1: expected an object like"),
    "a number": ("t.jsonl", '{"text": "a", "labels": []}\n{"text": 3}\n', "row 2: 'text' must be a text, got 3"),
    "labels in an object": ("t.jsonl", '{"text": "a", "labels": {"x": 1}}\n', "row 1: 'labels' must be a list of"),
    "a column twice": ("t.csv", "text,text,labels\na,b,c\n", "the header has 2 columns named 'text'; rename or"),
    "columns without a name": (
        "t.csv",
        "text,labels,,\na,b,c,d\n",
        "the header has 2 columns named ''; rename or delete",
    ),
    "half a character": (
        "t.jsonl",
        '{"text": "a", "labels": [], "id": "\\ud800"}\n',
        "row 1: '\\ud800' is not valid Unicode",
    ),
    "damaged": ("t.parquet", "PAR1", "not a Parquet file, or damaged"),
    "not compressed": ("t.jsonl.gz", "{}", "not a gzip file, or damaged"),
    "unknown ending": ("t.xlsx", "", "expected a file that ends in .csv, .tsv, .jsonl, .jsonl.gz, .parquet"),
}


def read_all(path: Path) -> None:
    table = read(path)
    list(table.texts("text"))
    table.labels("labels", ";")


def test_a_parquet_column_twice_and_a_pipe_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(ValueError, match=r"t\.parquet: the header has 2 columns named 'text'"):
        read(path)
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(FileNotFoundError, match=r"t\.csv' is no regular file"):
        read(tmp_path / "t.csv")


def test_a_bad_table_is_refused_with_file_row_and_remedy(tmp_path: Path) -> None:
    for name, (file, content, message) in BAD.items():
        (tmp_path / file).write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared below
            read_all(tmp_path / file)
        assert message in str(error.value), name
        assert str(error.value).startswith(str(tmp_path / file)), name
    whole = gzip.compress(b'{"text": "\xff"}')
    for compressed, message in ((whole[:-9], "not a gzip file, or damaged"), (whole, "byte 10 is not valid UTF-8")):
        (tmp_path / "t.jsonl.gz").write_bytes(compressed)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "t.jsonl.gz")
    with pytest.raises(FileNotFoundError, match=r"none\.csv' does not exist"):
        read(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="must hold exactly one table"):
        read(tmp_path)


def test_numbers_must_be_finite_and_fit_float32(tmp_path: Path) -> None:
    for number in ("nan", "-inf", "1e39", "", "True", f"1{400 * '0'}"):
        (tmp_path / "t.csv").write_text(f"u,labels\n1,a\n{number},b\n")
        with pytest.raises(ValueError, match=r"t\.csv, row 2: 'u' must be a number"):
            pytest.fail(f"{number}: {read(tmp_path / 't.csv').features(['u'])}")
    (tmp_path / "t.jsonl").write_text(f'{{"u": 1{400 * "0"}, "labels": "a"}}\n')
    with pytest.raises(ValueError, match=r"t\.jsonl, row 1: 'u' must be a number"):
        read(tmp_path / "t.jsonl").features(["u"])


def test_a_cell_of_csv_is_never_a_formula_and_otherwise_comes_back(tmp_path: Path) -> None:
    for cell in ("=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", '=cmd|" /C calc"!A0'):
        (found,) = csv.reader(io.StringIO(csv_line([cell, "x"]), newline=""))
        assert found == [f"'{cell}", "x"], cell
    for cell in ("-1.5", "+2e3", "", "a,b", 'line\nend "q"', "end\rless", "a=b", "naïve"):
        (found,) = csv.reader(io.StringIO(csv_line([cell, "x"]), newline=""))
        assert found == [cell, "x"], cell
