"""Label trees: more than a thousand labels from the words of texts, with sparse marginals."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from rsoftmax.labels import LabelModel
from rsoftmax.labels.models.stages import Stages
from rsoftmax.labels.models.tree import (
    CANDIDATES,
    LabelTrees,
    PooledIsotonic,
    clusters_of,
    log_mean,
    log_odds,
    number_of_clusters,
)

NUM_LABELS, PER_TEXT = 1024, 3


def texts_about(*, size: int, seed: int) -> tuple[list[str], list[list[str]]]:
    """Texts of the names of their labels and of words about nothing."""
    rng = np.random.default_rng(seed)
    topics = [rng.choice(NUM_LABELS, PER_TEXT, replace=False) for _ in range(size)]
    words = [[*(f"word{i}" for i in some), *(f"noise{i}" for i in rng.integers(50, size=5))] for some in topics]
    return [" ".join(rng.permutation(some)) for some in words], [[f"label{i:04}" for i in some] for some in topics]


@pytest.fixture(scope="module")
def model() -> LabelModel:
    texts, y = texts_about(size=3000, seed=0)
    return LabelModel().fit(texts, y)


@pytest.mark.train
def test_a_thousand_labels_are_learned_and_their_marginals_are_sparse(model: LabelModel) -> None:
    assert isinstance(model.classifier, LabelTrees)
    texts, y = texts_about(size=300, seed=1)
    scores = model.evaluate(texts, y)
    assert scores.micro > 0.9
    assert model.evaluation["num_samples"] == 300
    marginals, predicted = model.sparse_outputs(texts)
    assert (np.diff(marginals.indptr) == CANDIDATES).all()
    assert predicted.sum() < 2 * PER_TEXT * len(texts)
    # the marginals are calibrated: as many labels as they promise
    assert abs(marginals.sum() / (PER_TEXT * len(texts)) - 1) < 0.1


@pytest.mark.train
def test_saved_trees_predict_the_same_and_hold_no_pickle(model: LabelModel, tmp_path: Path) -> None:
    texts, _ = texts_about(size=20, seed=2)
    model.save(tmp_path)
    names = {"README.md", "config.json", "model.safetensors", "vocabulary.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    again = LabelModel.load(tmp_path)
    assert again.predict(texts, every_label=True) == model.predict(texts, every_label=True)


@pytest.mark.train
def test_a_recall_is_guaranteed_among_the_candidates_or_refused(model: LabelModel, tmp_path: Path) -> None:
    texts, y = texts_about(size=500, seed=3)
    model.save(tmp_path)
    sure = LabelModel.load(tmp_path).guarantee(texts, y, recall=0.9)
    assert sure.evaluation["guarantee"] == "recall of a sample at least 0.9, in expectation"
    strangers = [[f"label{i % NUM_LABELS:04}"] for i in range(500)]  # no model can find these
    with pytest.raises(ValueError, match="more than the 50 most probable labels"):
        LabelModel.load(tmp_path).guarantee(texts, strangers, recall=0.9)


@pytest.mark.train
def test_the_words_of_a_label_explain_its_log_odds(model: LabelModel) -> None:
    texts, y = texts_about(size=20, seed=4)
    for explained, labels in zip(model.explain(texts), y, strict=True):
        for name, explanation in explained.items():
            assert explanation.base is not None
            assert explanation.log_odds is not None
            assert 1 / (1 + math.exp(-explanation.log_odds)) == pytest.approx(explanation.marginal, abs=1e-5)
            for parts in (explanation.passages, explanation.sentences):
                assert explanation.base + sum(part.weight for part in parts) == pytest.approx(explanation.log_odds)
            if name in labels:
                assert next(iter(explanation.terms)) == f"word{int(name.removeprefix('label'))}"


@pytest.mark.train
def test_a_text_without_known_words_has_the_base_alone(model: LabelModel) -> None:
    assert all(
        not one.passages and one.log_odds == one.base for one in model.explain([""], every_label=True)[0].values()
    )
    assert [labels.keys() for labels in model.explain(["", "new"])] == [
        labels.keys() for labels in model.predict(["", "new"])
    ]


@pytest.mark.train
def test_contributions_are_gradients_on_the_way_from_no_feature_to_all(model: LabelModel) -> None:
    (text, *_), ((label, *_), *_) = texts_about(size=1, seed=5)
    x, column, at = model.embed([text]), model.names.index(label), (np.arange(400) + 0.5) / 400
    assert isinstance(model.classifier, LabelTrees)
    trees, expected = model.classifier.trees, []
    for term in range(x.nnz):
        up, down = (sp.vstack([x * one for one in at], "csr") for _ in range(2))
        up.data[term :: x.nnz] *= 1.01
        down.data[term :: x.nnz] *= 0.99
        u_up, u_down = (log_odds(log_mean([tree(rows) for tree in trees]))[:, column].numpy() for rows in (up, down))
        expected.append(((u_up - u_down) / (0.02 * at)).mean())
    (contributions, _), *_ = model.classifier.contributions(x, [[column]])
    assert contributions[:, 0] / contributions.sum() == pytest.approx(np.array(expected) / sum(expected), abs=0.01)


@pytest.mark.train
def test_predictions_of_trees_obey_the_rules(tmp_path: Path) -> None:
    texts, y = texts_about(size=3000, seed=0)
    group = {f"label{i:04}": f"group{i // 64:02}" for i in range(NUM_LABELS)}
    y = [[*labels, *{group[name] for name in labels}] for labels in y]
    new, truth = texts_about(size=100, seed=1)
    model = LabelModel(implies=group, exclusive=[["group00", "group01"]], max_labels=6).fit(texts, y)
    assert model.evaluate(new, [[*labels, *{group[name] for name in labels}] for labels in truth]).micro > 0.85
    model.save(tmp_path)
    for trained in (model, LabelModel.load(tmp_path)):
        predicted, every = (trained.predict([*new, ""], every_label=some) for some in (False, True))
        for labels, marginals in zip(predicted, every, strict=True):
            assert len(labels) <= 6
            assert not {"group00", "group01"} <= labels.keys()
            assert all(group[name] in labels for name in labels if name in group)
            assert all(marginals[group[name]] >= pi for name, pi in marginals.items() if name in group)


@pytest.mark.train
@pytest.mark.parametrize(
    ("rules", "size"),
    [({"min_labels": 60}, 60), ({"average": "samples", "min_labels": 2, "exclusive": [[*range(1, NUM_LABELS)]]}, 2)],
)
def test_rules_that_need_labels_without_a_marginal_are_obeyed(
    model: LabelModel, tmp_path: Path, rules: dict[str, Any], size: int
) -> None:
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["head"] |= rules
    (tmp_path / "config.json").write_text(json.dumps(config))
    texts, _ = texts_about(size=20, seed=2)
    for labels in LabelModel.load(tmp_path).predict([*texts, ""]):
        assert len(labels) == size
        assert "exclusive" not in rules or model.names[0] in labels  # the one label that excludes no other


def test_clusters_have_equal_sizes_and_hold_similar_labels() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(8, dtype=np.float32), 32, 0)
    order = rng.permutation(256)
    vectors = (groups + 0.01 * rng.standard_normal(groups.shape).astype(np.float32))[order]
    clusters = clusters_of(vectors, 0)
    assert len(clusters) == number_of_clusters(256) == 16
    assert {len(cluster) for cluster in clusters} == {16}
    assert sorted(np.concatenate(clusters)) == [*range(256)]
    assert np.mean([len({order[i] // 32 for i in cluster}) for cluster in clusters]) < 1.5


def test_the_pooled_calibration_keeps_the_order_of_scores_and_returns_to_the_truth() -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(-1, 2, 50_000)
    y = (rng.random(50_000) < 1 / (1 + np.exp(-3 * u - 1))).astype(float)
    calibration = PooledIsotonic().fit(u, y)
    points = torch.linspace(-8, 8, 500)
    mapped = calibration(points)
    assert all(low < high for low, high in pairwise(mapped.tolist()))
    middle = points.abs() < 1
    assert (mapped[middle].sigmoid() - (3 * points[middle] + 1).sigmoid()).abs().max() < 0.05


@pytest.mark.parametrize("labels", [[[], [], ["label0003"]], [[], [], []]])
def test_texts_without_labels_are_too_few(labels: list[list[str]]) -> None:
    names = [f"label{i:04}" for i in range(1200)]
    with pytest.raises(ValueError, match="2 texts to learn labels from, and 1 held-out ones, are too few"):
        LabelModel(names).fit(["a b"] * 3, labels)


def test_a_cluster_without_training_texts_is_never_predicted() -> None:
    rng = np.random.default_rng(0)
    x = sp.random_array((80, 40), density=0.3, rng=rng, format="csr", dtype=np.float32)
    y = sp.csr_array((np.ones(80, np.float32), (np.arange(80), np.arange(80) % 3)), shape=(80, 2000))
    names = [f"label{i}" for i in range(2000)]
    trees = LabelTrees(2000, {})
    trees.fit(x, y, None, names=names, random_state=0, verbose=False, stages=Stages())
    marginals, predicted = trees.predict(x)
    assert np.isfinite(marginals.data).all()
    assert set(marginals.indices[predicted]) <= {0, 1, 2}
