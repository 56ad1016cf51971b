"""Mulan's files: dense, sparse, nominal, quoted, missing and broken."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from mulan_sets import save

from rsoftmax_lab.data import mulan


def test_names_are_the_folders_that_hold_a_set(sets: Path) -> None:
    (sets / "something else").mkdir()
    assert mulan.names(sets) == ["thick", "thin", "toys"]
    assert mulan.names(sets, ["toys", "thin", "toys"]) == ["toys", "thin"]
    assert mulan.names(sets, ["toys", "thin"], quick=True) == ["toys", "thin"]
    (smallest,) = mulan.names(sets, quick=True)
    assert smallest == min(sets.glob("*/*-train.arff"), key=lambda path: path.stat().st_size).parent.name
    with pytest.raises(ValueError, match="has no dataset 'toy'; it has thick, thin, toys"):
        mulan.names(sets, ["toy"])
    with pytest.raises(FileNotFoundError, match="contains no datasets"):
        mulan.names(sets / "something else")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        mulan.names(sets / "nowhere")


def test_labels_are_matched_by_name_and_nominal_features_get_a_column_for_each_value(sets: Path) -> None:
    train, test = mulan.read(sets / "toys")
    assert train.X.shape == (10, 5)
    assert train.X.dtype == np.float32
    assert train.X[:2].tolist() == [[1.5, 0, 1, 0, 0], [2.5, 1, 0, 0, 1]]
    assert train.numeric.tolist() == [True, False, False, False, False]
    assert train.Y[:4].tolist() == [[True, False], [True, True], [False, True], [False, False]]  # loud, Child's
    assert len(test.Y) == 4


def test_sparse_rows_are_read_as_dense_ones_are(sets: Path) -> None:
    (thin, _), (thick, _) = mulan.read(sets / "thin"), mulan.read(sets / "thick")
    assert sp.issparse(thin.X)
    np.testing.assert_array_equal(thin.X.toarray(), thick.X)
    np.testing.assert_array_equal(thin.Y, thick.Y)


SPARSE = """@relation s
@attribute size numeric
@attribute flag {1,0}
@attribute colour {red,green}
@attribute "A" {1,0}
@attribute B {0,1}
@data
{}
{0 2.5,1 0,2 green,3 0,4 1}
{1 1,2 red,3 1}
"""


def test_a_nominal_value_that_a_sparse_row_omits_is_the_first_one_declared(sets: Path) -> None:
    save(sets, "first", ["A", "B"], SPARSE, SPARSE)
    train, _ = mulan.read(sets / "first")
    assert train.X.toarray().tolist() == [[0, 1, 1, 0], [2.5, 0, 0, 1], [0, 1, 1, 0]]
    assert train.Y.tolist() == [[True, False], [False, True], [True, False]]


QUOTED = """@relation r
@ATTRIBUTE 'a {b}' numeric
@attribute c VALUES
@attribute A {0,1}
@attribute B {0,1}
@data
{0 1}
"""


@pytest.mark.parametrize("values", ["{red,green}", "{ red , 'light, blue' }", '{"a b", c}', "{'it\\'s',b}"])
def test_values_may_be_quoted_and_have_room_around_them(values: str, sets: Path) -> None:
    text = QUOTED.replace("VALUES", values)
    save(sets, "quoted", ["A", "B"], text, text)
    train, _ = mulan.read(sets / "quoted")
    assert train.X.toarray().tolist() == [[1, 1, 0]]


def test_a_set_whose_name_cannot_be_shown_is_refused(sets: Path) -> None:
    save(sets, "a\u202eb", ["A", "B"], SPARSE, SPARSE)
    with pytest.raises(ValueError, match=r"has a dataset with non-printable characters in its name, 'a\\u202eb'"):
        mulan.names(sets)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("toys-train.arff", "9,0,red,0,0", "9,0,pink,0,0", r"toys-train.arff: .*at line 14"),
        ("toys-train.arff", "9,0,red,0,0", "9,0,50%s,0,0", r"toys-train.arff: .*50%s.*at line 14"),
        ("toys-train.arff", "9,0,red,0,0", "nine,0,red,0,0", r"toys-train.arff: Invalid numerical value, at line 14"),
        ("toys-train.arff", "9,0,red,0,0", "9,0,red", r"toys-train.arff: Bad @DATA instance format in line 14"),
        ("toys-train.arff", "9,0,red,0,0", "?,0,red,0,0", r"toys-train.arff, line 14: 'size' has no value"),
        (
            "toys-train.arff",
            "9,0,red,0,0",
            "nan,0,red,0,0",
            r"toys-train.arff, line 14: 'size' is nan, not representable",
        ),
        ("toys-train.arff", "9,0,red,0,0", "1e99,0,red,0,0", r"toys-train.arff, line 14: 'size' is 1e\+99"),
        (
            "toys-train.arff",
            "colour {",
            "colour {" + ", ".join(map(str, range(60))) + ",dark red,",
            r"toys-train.arff, line 5: expected @attribute NAME \{VALUE,...\}, got '@attribute colour",
        ),
        ("toys-train.arff", "light blue'}", "light blue'", r"toys-train.arff, line 5: expected @attribute NAME"),
        ("toys-train.arff", "size numeric", "size words", r"toys-train.arff: Bad @ATTRIBUTE type, at line 3"),
        ("toys-train.arff", "size numeric", "size string", r"the feature 'size' is of type STRING"),
        ("toys-train.arff", "round {0,1}", "square {0,1}", r"its attributes differ from those of"),
        ("toys.xml", "loud", "silent", r"has no attribute 'silent', which the XML file lists as a label"),
        ("toys.xml", "loud", "size", r"the label 'size' must be \{0,1\}, got NUMERIC"),
        ("toys.xml", "loud", "Child's", r"toys.xml: lists the label \"Child's\" twice"),
        (
            "toys.xml",
            '<label name="loud"></label>',
            "",
            r"toys.xml: lists 1 label; a multi-label dataset has at least two",
        ),
        ("thick.xml", "</labels>", '<label name="a"/><label name="b"/></labels>', r"thick-train.arff: has no features"),
        ("toys.xml", "</labels>", "", r"toys.xml, line \d: not XML"),
        ("toys.xml", "label ", "tag ", r"toys.xml, line \d: not XML"),
    ],
)
def test_a_broken_file_is_named_with_the_line(file: str, old: str, new: str, message: str, sets: Path) -> None:
    path = next(sets.glob(f"*/{file}"))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        mulan.read(path.parent)


def test_files_written_on_windows_are_read_alike(sets: Path) -> None:
    expected = mulan.read(sets / "toys")
    for path in (sets / "toys").iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    for table, same in zip(mulan.read(sets / "toys"), expected, strict=True):
        np.testing.assert_array_equal(table.X, same.X)
        np.testing.assert_array_equal(table.Y, same.Y)


def test_a_missing_file_is_named(sets: Path) -> None:
    (sets / "toys" / "toys-test.arff").unlink()
    with pytest.raises(FileNotFoundError, match=r"toys-test.arff does not exist; a dataset consists of NAME/NAME.xml"):
        mulan.read(sets / "toys")


def test_an_empty_file_and_one_that_is_no_text_are_refused(sets: Path) -> None:
    path = sets / "toys" / "toys-train.arff"
    path.write_text(path.read_text().split("@data")[0] + "@data\n")
    with pytest.raises(ValueError, match=r"toys-train.arff: has no samples after @data"):
        mulan.read(sets / "toys")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"toys-train.arff: not UTF-8 text"):
        mulan.read(sets / "toys")
