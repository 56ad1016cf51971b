"""Splits in which every label has its share of samples, as scikit-learn takes them and as files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, GroupKFold, GroupShuffleSplit, KFold, ShuffleSplit, cross_val_score
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax.labels import (
    MultilabelStratifiedKFold,
    MultilabelStratifiedShuffleSplit,
    multilabel_train_test_split,
)

RANDOM = np.random.RandomState(0)
Y = (RANDOM.rand(503, 12) < np.linspace(0.02, 0.5, 12)).astype(int)
X = RANDOM.randn(503, 3)
GROUPS = RANDOM.randint(60, size=503)
KFOLD = MultilabelStratifiedKFold(5)
SHUFFLE = MultilabelStratifiedShuffleSplit(5, test_size=0.2, random_state=0)


def names(matrix: Any) -> list[list[str]]:
    return [[f"label {j}" for j in np.flatnonzero(labels)] for labels in matrix]


def largest_difference(splitter: Any, groups: Any = None) -> float:
    """Between the number of test samples with a label and its share, over splits and labels."""
    splits = [Y[test].sum(0) - Y.sum(0) / 5 for _, test in splitter.split(X, Y, groups)]
    return float(np.abs(splits).max())


@pytest.mark.parametrize(
    ("splitter", "at_random"),
    [(KFOLD, KFold(5, shuffle=True, random_state=0)), (SHUFFLE, ShuffleSplit(5, test_size=0.2, random_state=0))],
    ids=["folds", "shuffle"],
)
def test_every_label_has_its_share_of_the_test_samples(splitter: Any, at_random: Any) -> None:
    assert 2 * largest_difference(splitter) < largest_difference(at_random)
    assert all(abs(len(test) - len(Y) / 5) <= 5 for _, test in splitter.split(X, Y))


def test_every_sample_is_tested_once() -> None:
    splits = list(KFOLD.split(X, Y))
    assert np.array_equal(np.sort(np.concatenate([test for _, test in splits])), np.arange(len(Y)))
    assert all(np.array_equal(np.setdiff1d(np.arange(len(Y)), test), train) for train, test in splits)


@pytest.mark.parametrize(
    ("splitter", "at_random"),
    [
        (KFOLD, GroupKFold(5, shuffle=True, random_state=0)),
        (SHUFFLE, GroupShuffleSplit(5, test_size=0.2, random_state=0)),
    ],
    ids=["folds", "shuffle"],
)
def test_a_group_is_never_in_both_parts_and_labels_keep_their_share(splitter: Any, at_random: Any) -> None:
    for train, test in splitter.split(X, Y, GROUPS):
        assert not set(GROUPS[train]) & set(GROUPS[test])
    assert largest_difference(splitter, GROUPS) < largest_difference(at_random, GROUPS)


@pytest.mark.parametrize("splitter", [KFOLD, MultilabelStratifiedKFold(5, shuffle=True, random_state=3), SHUFFLE])
@pytest.mark.parametrize("targets", [sp.csr_array(Y), Y.astype(bool), names(Y), np.where(Y, 1.0, np.nan)])
def test_the_format_of_the_labels_does_not_matter(splitter: Any, targets: Any) -> None:
    for expected, actual in zip(splitter.split(X, Y), splitter.split(X, targets), strict=True):
        assert all(map(np.array_equal, expected, actual))


def test_scikit_learn_takes_the_splitters() -> None:
    tree = DecisionTreeClassifier(random_state=0)
    assert len(cross_val_score(tree, X, Y, cv=KFOLD)) == KFOLD.get_n_splits() == 5
    with config_context(enable_metadata_routing=True):
        assert len(cross_val_score(tree, X, Y, cv=SHUFFLE, params={"groups": GROUPS})) == SHUFFLE.get_n_splits() == 5
    search = GridSearchCV(tree, {"max_depth": [1, 2]}, cv=MultilabelStratifiedKFold(3, shuffle=True, random_state=0))
    assert search.fit(X, Y, groups=GROUPS).n_splits_ == 3


def test_all_arrays_are_split_alike() -> None:
    X_train, X_test, y_train, y_test = multilabel_train_test_split(X, sp.csr_array(Y), random_state=1)
    assert len(X_train) + len(X_test) == len(Y)
    assert abs(len(X_test) - len(Y) / 4) <= 5
    index = [int(np.flatnonzero((x == X).all(1))[0]) for x in X_test]
    assert np.array_equal(y_test.toarray(), Y[index])
    again = multilabel_train_test_split(X, stratify=names(Y), random_state=1)
    assert np.array_equal(again[1], X_test)
    assert y_train.shape[0] == len(X_train)


def test_train_and_test_size_may_leave_samples_out() -> None:
    splitter = MultilabelStratifiedShuffleSplit(1, test_size=50, train_size=0.5, random_state=0)
    train, test = next(splitter.split(X, Y))
    assert abs(len(train) - 251) <= 5 >= abs(len(test) - 50)
    assert not set(train) & set(test)


@pytest.mark.parametrize(
    ("splitter", "rows", "message"),
    [
        (MultilabelStratifiedKFold(1), 9, "n_splits must be an integer of at least 2, got 1"),
        (MultilabelStratifiedKFold(2.5), 9, "n_splits must be an integer of at least 2, got 2.5"),  # type: ignore[arg-type]
        (MultilabelStratifiedKFold(3, random_state=1), 9, "random_state=1 has an effect only with shuffle=True"),
        (MultilabelStratifiedKFold(10), 9, "9 samples are too few, .* for 10 parts: 1 of them would be empty"),
        (MultilabelStratifiedShuffleSplit(test_size=1.5), 9, "test_size=1.5 should be"),
        (MultilabelStratifiedShuffleSplit(), 1, "With n_samples=1"),
    ],
)
def test_an_impossible_split_is_refused(splitter: Any, rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(splitter.split(X[:rows], Y[:rows]))


ROWS: list[dict[str, Any]] = [
    {"id": f"{i:03}", "text": f'"text" {i}, é', "tags": ["a", "b"] if i % 3 else [], "of": i // 4} for i in range(60)
]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_is_split_into_files_of_its_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        schema = pyarrow.schema(
            [("id", "string"), ("text", "string"), ("tags", pyarrow.list_(pyarrow.string())), ("of", "int8")]
        )
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS, schema), path)
    else:
        from rsoftmax.labels.models.tables import Table, write

        rows = [{name: str(cell) for name, cell in row.items()} | {"tags": ";".join(row["tags"])} for row in ROWS]
        write(Table(Path(f"x.{ending}"), list(ROWS[0]), rows), [path], [0] * 60)
    command = ["split", path, "--labels", "tags", "--out", tmp_path / "parts", "--validation", ".2", "--groups", "of"]
    done = CliRunner().invoke(app, list(map(str, command)))
    assert done.exit_code == 0, done.output

    from rsoftmax.labels.models.tables import read

    whole, parts = read(path), [read(tmp_path / f"parts/{name}.{ending}") for name in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [36, 12, 12]
    assert sorted(str(row) for part in parts for row in part.rows) == sorted(map(str, whole.rows))
    assert sum(len(set(part.column("of"))) for part in parts) == 15
    assert [sum(map(bool, part.labels("tags", ";"))) for part in parts] == [24, 8, 8]


def test_a_split_leaves_existing_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("text,tags\n" + "x,a\n" * 10)
    (tmp_path / "test.csv").write_text("mine")
    done = CliRunner().invoke(app, ["split", str(path), "--labels", "tags", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "test.csv exists" in done.output
    assert sorted(file.name for file in tmp_path.iterdir()) == ["table.csv", "test.csv"]
    assert (tmp_path / "test.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--test", "1"], "must be positive, with a sum below 1"),
        (["--test", "nan"], "must be positive, with a sum below 1"),
        (["--test", "0.01"], "no rows are left for test"),
        (["--groups", "who"], "no column 'who'"),
    ],
)
def test_a_split_that_is_impossible_writes_nothing(tmp_path: Path, words: list[str], message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text("text,tags\n" + "x,a\n" * 10)
    done = CliRunner().invoke(app, ["split", str(path), "--labels", "tags", "--out", str(tmp_path / "out"), *words])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert not (tmp_path / "out").exists()
