"""LabelModel: labels for texts from their words, trained, saved, loaded and evaluated; bad input refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_array
from torch.testing import assert_close

from rsoftmax.labels import AVERAGES, Average, LabelModel, TableModel, decode_csr, evaluate, evaluate_csr, indicator
from rsoftmax.labels.models import onnx
from rsoftmax.labels.models.tfidf import TfIdf, words

WORDS = {"wine": ["drink"], "tea": ["drink", "hot"], "soup": ["food", "hot"], "bread": ["food"], "car": []}
TEXTS = [f"{colour} {word} number {i}" for i in range(8) for colour in ("red", "white") for word in WORDS]
LABELS = [labels for _ in range(16) for labels in WORDS.values()]
NAMES = ["drink", "food", "hot"]


@pytest.fixture(scope="module")
def model() -> LabelModel:
    return LabelModel().fit(TEXTS, LABELS)


def test_labels_follow_from_words_in_any_order(model: LabelModel) -> None:
    assert model.names == NAMES
    assert model.predict_labels(["a glass of wine", "Soup, white", "bread"]) == [["drink"], ["hot", "food"], ["food"]]
    (predicted,) = model.predict(["tea"])
    assert list(predicted.values()) == sorted(predicted.values(), reverse=True)
    assert set(model.predict(["tea"], every_label=True)[0]) == set(NAMES)


def test_a_saved_model_predicts_the_same_and_holds_no_pickle(model: LabelModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    names = {"README.md", "config.json", "model.safetensors", "vocabulary.json"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
    again = LabelModel.load(tmp_path / "model")
    assert again.predict(TEXTS, every_label=True) == model.predict(TEXTS, every_label=True)
    assert again.evaluation == json.loads(json.dumps(model.evaluation))
    assert "LabelModel.load" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize("average", AVERAGES)
def test_the_evaluation_from_sparse_marginals_equals_the_dense_one(model: LabelModel, average: str) -> None:
    texts, y = [*TEXTS, "", "car"], [*LABELS, ["hot"], []]
    output = model.outputs(texts)
    dense = evaluate(output.marginals, output.labels, indicator(y, NAMES), NAMES)
    for name, value in model.evaluate(texts, y).as_dict().items():
        assert value == pytest.approx(dense.as_dict()[name]) if name != "labels" else value == dense.as_dict()[name]


def test_entries_that_are_left_out_have_marginal_zero() -> None:
    torch.manual_seed(0)
    marginals, y = torch.rand(40, 9).where(torch.rand(40, 9) < 0.4, 0), (torch.rand(40, 9) < 0.3).float()
    rows, columns = marginals.nonzero(as_tuple=True)
    y_rows, y_columns = y.nonzero(as_tuple=True)
    predicted, names = marginals > 0.5, [str(i) for i in range(9)]
    indptr, y_indptr = (torch.nn.functional.pad(r.bincount(minlength=40).cumsum(0), (1, 0)) for r in (rows, y_rows))
    pi = marginals[rows, columns]
    scores = evaluate_csr(indptr, columns, pi, predicted[rows, columns], y_indptr, y_columns, names)
    dense = evaluate(marginals, predicted, y, names)
    assert scores.labels == dense.labels
    for name in (*AVERAGES, "samples_zero", "brier", "calibration_error"):
        assert getattr(scores, name) == pytest.approx(getattr(dense, name))
    assert_close(scores.curve.entries, dense.curve.entries)


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_adapted_thresholds_have_the_best_expected_f1_of_the_texts(average: Average) -> None:
    model, new = LabelModel(average=average).fit(TEXTS, LABELS), ["red", "white", "number 3", "a red and a white one"]
    before = model.sparse_outputs(new)
    marginals, predicted = model.adapt(new).sparse_outputs(new)
    indptr, indices, pi = map(torch.from_numpy, (marginals.indptr, marginals.indices, marginals.data))
    assert predicted.tolist() == decode_csr(indptr, indices, pi, len(model.names), average).tolist()
    assert predicted.any()
    assert not before.predicted.any()  # held-out texts have words that tell more
    assert (marginals != before.marginals).nnz == 0


def test_models_without_thresholds_or_with_guaranteed_ones_are_not_adapted() -> None:
    with pytest.raises(ValueError, match="not trained yet"):
        LabelModel().adapt(TEXTS)
    with pytest.raises(ValueError, match="no texts to adapt to"):
        LabelModel().fit(TEXTS, LABELS).adapt([])
    with pytest.raises(ValueError, match="no thresholds cannot be adapted"):
        LabelModel(average="samples").fit(TEXTS, LABELS).adapt(TEXTS)
    with pytest.raises(ValueError, match="guaranteed thresholds cannot be adapted"):
        LabelModel().fit(TEXTS, LABELS, guarantee={"recall": 0.8}).adapt(TEXTS)


def test_a_guarantee_replaces_the_expected_f1(tmp_path: Path) -> None:
    model = LabelModel(average="macro").fit(TEXTS * 3, LABELS * 3, guarantee={"recall": 0.9})
    assert model.evaluation["guarantee"] == "recall of a sample at least 0.9, in expectation"
    model.save(tmp_path / "model")
    assert LabelModel.load(tmp_path / "model").predict(TEXTS) == model.predict(TEXTS)
    with pytest.raises(ValueError, match="cannot be guaranteed with 13 held-out samples"):
        LabelModel().fit(TEXTS, LABELS, guarantee={"recall": 0.99})


def test_held_out_texts_calibrate_in_place_of_folds() -> None:
    model = LabelModel().fit(TEXTS[:60], LABELS[:60], validation=(TEXTS[60:], LABELS[60:]))
    assert model.evaluation["num_samples"] == 20


def test_rules_about_labels_hold_for_every_text(tmp_path: Path) -> None:
    texts, y = TEXTS * 2, [[*labels, "thing"] if "hot" in labels else labels for labels in LABELS * 2]
    model = LabelModel(implies={"food": "thing"}, max_labels=2).fit(texts, y)
    assert all("thing" in labels for labels in model.predict(texts) if "food" in labels)
    model.save(tmp_path)
    again = LabelModel.load(tmp_path)
    assert again.predict(texts) == model.predict(texts)
    assert again.fit(texts, y).predict(texts) == model.predict(texts)


def test_a_label_that_never_occurs_is_not_predicted_and_one_that_always_does_is() -> None:
    with pytest.warns(UserWarning, match="1 of 4 labels never occur"):
        model = LabelModel(["all", "drink", "none", "hot"]).fit(
            TEXTS, [[*({"drink", "hot"} & set(labels)), "all"] for labels in LABELS]
        )
    assert all("all" in labels and "none" not in labels for labels in model.predict([*TEXTS, ""]))


def test_a_single_label_is_learned() -> None:
    y = [[name for name in labels if name == "hot"] for labels in LABELS]
    assert LabelModel().fit(TEXTS, y).predict_labels(["hot tea", "a car"]) == [["hot"], []]


def test_words_of_any_language_are_terms() -> None:
    assert words("Don't panic! पानी 漢字") == ["don", "t", "panic", "!", "पानी", "漢", "字"]
    assert words("ça va? 100% 👍") == ["ça", "va", "?", "100", "%", "👍"]


def test_terms_occur_in_two_texts_and_pairs_are_neighbours() -> None:
    vectorizer = TfIdf.fit(["a b c", "a b d", "b a"])
    assert vectorizer.terms == ["a", "b", "a b"]
    x = vectorizer.transform(["a b a b", "b", "", "z"])
    assert_close(np.sqrt(x.power(2).sum(1)), np.array([1.0, 1, 0, 0]), check_dtype=False)
    tf, idf = 1 + np.log([2, 2, 2]), vectorizer.idf
    assert_close(x.toarray()[0], (tf * idf / np.linalg.norm(tf * idf)).astype(np.float32))


def test_bad_input_is_refused(model: LabelModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no word occurs in two of the 3 texts"):
        LabelModel().fit(["a", "b", ""], [["x"], [], ["x"]])
    with pytest.raises(TypeError, match="item 2: expected a text, got 3"):
        model.predict(["a", 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="got one text"):
        model.predict("a")
    with pytest.raises(ValueError, match="as many items as labels"):
        LabelModel().fit(TEXTS, LABELS[1:])
    with pytest.raises(ValueError, match="unknown label 'joy'; the labels are drink, food, hot"):
        model.evaluate(["a"], [["joy"]])
    assert model.evaluate(["a"], [["joy"]], strict=False).labels[-1].recall == 0
    with pytest.raises(ValueError, match="labels contain NaN"):
        LabelModel(["a"]).fit(["x y", "x"], torch.tensor([[torch.nan], [1.0]]))
    with pytest.raises(ValueError, match="not trained yet"):
        LabelModel(["a"]).predict(["b"])
    with pytest.raises(ValueError, match="labels must be distinct names"):
        LabelModel().fit(["a b", "a"], [[], []])
    with pytest.raises(ValueError, match=r"labels must be distinct names .* got \[3, 'a'\]"):
        LabelModel().fit(["a b", "a"], [["a"], [3]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="item 1: labels must be a list of names, got 'a'"):
        LabelModel().fit(["a b", "a"], ["a", "b"])
    with pytest.raises(ValueError, match="labels are a matrix; name its columns"):
        LabelModel().fit(["a b", "a"], torch.eye(2))
    with pytest.raises(ValueError, match="labels must be 0 or 1, or NaN where unknown, got 2"):
        LabelModel(["a"]).fit(["a b", "a"], csr_array((np.ones(3), np.zeros(3, int), [0, 2, 3])))
    with pytest.raises(ValueError, match="2 texts are too few to learn labels from"):
        LabelModel().fit(["a b", "a b"], [["x"], ["x"]])
    with pytest.raises(ValueError, match=r"labels: .* is not valid Unicode"):
        LabelModel(["\ud800"])
    with pytest.raises(ValueError, match="train with --encoder"):
        onnx.export(model, tmp_path / "model.onnx")


def test_no_texts_have_no_labels(model: LabelModel) -> None:
    assert model.predict([]) == []
    assert model.predict_labels([]) == []
    assert model.outputs([]).marginals.shape == (0, len(NAMES))


@pytest.mark.parametrize("where", ["indices", "indptr"])
def test_weights_that_point_out_of_their_matrix_are_refused(model: LabelModel, tmp_path: Path, where: str) -> None:
    """Products of sparse matrices do not look, and crash."""
    for number in (10**8, -(10**8)):
        model.save(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        tensors[next(name for name in tensors if name.endswith(where))][1] = number
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="is damaged: ind"):
            LabelModel.load(tmp_path)


def test_damaged_folders_are_refused(model: LabelModel, tmp_path: Path) -> None:
    model.save(tmp_path)
    with pytest.raises(ValueError, match=r"load it by rsoftmax.labels.LabelModel.load"):
        TableModel.load(tmp_path)
    (tmp_path / "vocabulary.json").write_text("[]")
    with pytest.raises(ValueError, match="is damaged"):
        LabelModel.load(tmp_path)
    (tmp_path / "vocabulary.json").unlink()
    with pytest.raises(ValueError, match=r"vocabulary.json is missing"):
        LabelModel.load(tmp_path)
