"""TableModel: what a classifier of tables has learned, as one network and one folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_multilabel_classification
from torch.testing import assert_close

from rsoftmax.labels import HeadOptions, LabelNetwork, SparseLabelClassifier, TableModel, TrainingOptions
from rsoftmax.labels.estimators.features import Preprocessing, normal_quantile
from rsoftmax.labels.models.table import TableConfig

ROWS, LABELS = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
SHORT, FAST = TrainingOptions(max_epochs=2), TrainingOptions(lr=1e-2)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_one_network_predicts_the_mean_of_several() -> None:
    X, Y = make_multilabel_classification(120, n_classes=4, random_state=0)
    for hidden in ((8,), ()):
        several = SparseLabelClassifier(n_estimators=3, training=SHORT, hidden_layer_sizes=hidden, average="macro").fit(
            X, Y
        )
        one = TableModel.from_classifier(several, [f"x{i}" for i in range(20)], list("abcd"))
        assert isinstance(one.network, LabelNetwork)
        assert_close(one.outputs(X).marginals.numpy(), several.predict_proba(X), atol=1e-5, rtol=1e-4)
        assert ((one.outputs(X).probs > 0).numpy() == several.predict(X)).all()


def test_networks_whose_rate_reads_the_logits_are_converted_one_at_a_time() -> None:
    X, Y = make_multilabel_classification(60, n_classes=4, random_state=0)
    names = [f"x{i}" for i in range(20)]
    model = SparseLabelClassifier(n_estimators=1, training=SHORT, head=HeadOptions(rule="rate"), random_state=0).fit(
        X, Y
    )
    one = TableModel.from_classifier(model, names, list("abcd"))
    assert ((one.outputs(X).probs > 0).numpy() == model.predict(X)).all()
    with pytest.raises(ValueError, match="networks with rule='rate' cannot be merged; pass n_estimators=1"):
        TableModel(names).fit(X.tolist(), [["a"]] * 60, head=HeadOptions(rule="rate"))


def test_features_are_prepared_as_scikit_learn_prepares_them() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=400), rng.integers(0, 4, 400), np.full(400, 7), rng.lognormal(size=400)], 1)
    Y = np.stack([X[:, 0] > 0, X[:, 1] > 1], 1)
    model = SparseLabelClassifier(n_estimators=1, training=SHORT, random_state=0).fit(X[:300], Y[:300])
    asked = np.concatenate([X, 3 * X - 5]).astype(np.float32)
    prepared = Preprocessing.of(model._preprocessing)(torch.from_numpy(asked))
    assert_close(prepared.numpy(), model._preprocess(asked), atol=1e-4, rtol=0, check_dtype=False)
    p = torch.linspace(0.0006, 0.9994, 999)
    assert_close(normal_quantile(p), torch.special.ndtri(p), atol=3e-5, rtol=0)


def test_a_table_model_is_saved_without_pickle_and_predicts_the_same(tmp_path: Path) -> None:
    model = TableModel(["u", "v"], average="samples").fit(ROWS, LABELS, n_estimators=2, training=SHORT)
    model.save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    again = TableModel.load(tmp_path / "model")
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))
    assert again.predict_labels(ROWS) == model.predict_labels(ROWS)
    assert again.evaluation["num_samples"] == 27
    assert again.modality == "features"


@pytest.mark.train
def test_a_single_label_is_trained_too() -> None:
    table = TableModel(["u"]).fit([[0.0], [1.0]] * 9, [[], ["a"]] * 9, n_estimators=2, training=FAST)
    rows = table.predict([[0.0], [1.0]], every_label=True)
    assert rows[0]["a"] < rows[1]["a"]
    known = torch.tensor([[0.0], [1.0]] * 9)
    gaps = torch.cat([known, torch.full((9, 1), torch.nan)])
    items = [[0.0], [1.0]] * 9 + [[0.0]] * 9
    other = TableModel(["u"], ["a"]).fit(items, gaps, n_estimators=2, training=FAST)
    assert other.predict([[0.0], [1.0]], every_label=True) == rows
    with pytest.raises(ValueError, match="no sample has a label"):
        TableModel(["u"], ["a"]).fit([[0.0], [1.0]], [[], []])


def test_rows_must_be_finite_numbers_of_every_feature() -> None:
    model = TableModel.from_config(TableConfig(["u", "v"], ["a", "b"], quantiles=3, hidden=4))
    assert model.predict([]) == []
    for number in (float("nan"), float("inf"), 1e39):
        with pytest.raises(ValueError, match=r"row 2: 'v' is (nan|inf); expected a finite float32"):
            model.predict([[1.0, 0.0], [1.0, number]])
        with pytest.raises(ValueError, match=r"row 28: 'v' is (nan|inf); expected a finite float32"):
            TableModel(["u", "v"]).fit([*ROWS, [1.0, number]], [*LABELS, ["a"]])
    for wrong, message in (
        ([["a", "b"]], "row 1: 'u' must be a number, got 'a'"),
        ([[1.0, 2.0], [1.0, None]], "row 2: 'v' must be a number, got None"),
        ([[1.0, 2.0], [1.0]], r"expected 2 features per row, \['u', 'v'\], got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(wrong)
    with pytest.raises(ValueError, match=r"expected 2 features per row, \['u', 'v'\], got 3"):
        model.predict([[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match=r"expected 1 features per row, \['u'\], got 2"):
        TableModel(["u"]).fit(ROWS, LABELS)
    with pytest.raises(ValueError, match="no sample has a label"):
        TableModel(["u", "v"]).fit(ROWS, [[]] * 27)


COLOURED: list[list[float | str]] = [[0.0, "red"], [1.0, "blue"], [1.0, "red"]] * 9


def test_columns_of_texts_are_categories(tmp_path: Path) -> None:
    labels = [["warm"], ["cold"], ["warm", "wet"]] * 9
    table = TableModel(["rain", "colour"]).fit(COLOURED, labels, n_estimators=2)
    assert table.config.categories == {"colour": ["blue", "red"]}
    assert table.metadata() == {"features": ["rain", "colour=blue", "colour=red"]}
    table.save(tmp_path / "model")
    again = TableModel.load(tmp_path / "model")
    red, blue = again.predict([[0.0, "red"], [0.0, "blue"]], every_label=True)
    assert red["warm"] > blue["warm"]
    with pytest.warns(UserWarning, match="the column 'colour' holds values that did not occur in training: 'green'"):
        again.predict([[0.0, "green"]])
    with pytest.raises(ValueError, match="row 1: 'rain' must be a number, got 'much'"):
        again.predict([["much", "red"]])
    assert again.predict([]) == []
    many: list[list[float | str]] = [[float(i), f"text {i}"] for i in range(60)]
    with pytest.raises(ValueError, match="the column 'colour' has 60 different texts in 60 rows, such as 'text 9'"):
        TableModel(["rain", "colour"]).fit(many, [["a"]] * 60)


def test_a_guarantee_replaces_the_best_f1_and_is_saved(tmp_path: Path) -> None:
    """The recall of rows that set the threshold is at least the level; impossible levels are refused at once."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=random)
    y = (x + torch.randn(200, 2, generator=random) > 0.5).float()
    model = TableModel(["u", "v"], ["a", "b"]).fit(x.tolist(), y, n_estimators=2, guarantee={"recall": 0.9})
    assert model.evaluation["guarantee"] == "recall of a sample at least 0.9, in expectation"
    assert model.evaluation["num_samples"] == 40
    model.save(tmp_path / "model")
    assert (
        "Guaranteed: recall of a sample at least 0.9, in expectation" in (tmp_path / "model" / "README.md").read_text()
    )
    again = TableModel.load(tmp_path / "model")
    assert again.predict(x.tolist()) == model.predict(x.tolist())
    rows, labels = x[:100].tolist(), y[:100]
    by_label = again.guarantee(rows, labels, recall=0.8, by="label")
    found = torch.tensor([[name in one for name in ("a", "b")] for one in by_label.predict(rows)])
    assert ((found & labels.bool()).sum(0) / labels.sum(0) >= 0.8).all()
    with pytest.raises(ValueError, match=r"recall of 0\.99 cannot be .* held-out samples: it takes at least 99"):
        TableModel(["u", "v"], ["a", "b"]).fit(x.tolist(), y, guarantee={"recall": 0.99})
    with pytest.raises(ValueError, match="pass either recall or precision"):
        again.guarantee(rows, labels)
    counted = TableModel(["u", "v"]).fit(ROWS, LABELS, head=HeadOptions(rule="rate"), n_estimators=1, training=SHORT)
    with pytest.raises(ValueError, match="a threshold needs rule='expected_f1', got rule='rate'"):
        counted.guarantee(ROWS, LABELS, recall=0.8)
