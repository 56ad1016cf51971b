"""Long texts: read in windows, their scores pooled for each label."""

import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders import LABELS, NAMES, TEXTS
from torch import nn
from torch.testing import assert_close

from rsoftmax import SparsePooling, sparsemax
from rsoftmax.labels import Embedder, EncoderModel, Scores, TrainingOptions, indicator
from rsoftmax.labels.estimators.ensemble import fit_features
from rsoftmax.labels.windows import Windows, pool_scores

QUICK: dict[str, Any] = {
    "n_estimators": 2,
    "training": TrainingOptions(max_epochs=5, lr=1e-2),
    "hidden_layer_sizes": (8,),
}
FILLER = "rain sun it you at all nothing it rain sun "
LONG = [f"{FILLER * 4}{text} {FILLER * 3}" for text in TEXTS]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def model(text_encoder: Path) -> EncoderModel:
    model = EncoderModel.from_encoder(text_encoder, NAMES, "macro")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_()
    return model


def windows(counts: list[int], features: int = 3) -> Windows:
    torch.manual_seed(0)
    pooling = SparsePooling(nn.Identity(), "sparsemax")
    return Windows(torch.randn(sum(counts), features), torch.tensor(counts), pooling)


def test_items_are_taken_with_their_windows() -> None:
    counts = [2, 1, 4, 3]
    items = windows(counts)
    parts = items.x.split(counts)
    assert (len(items), items.shape) == (4, (4, 3))
    for index in (torch.tensor([2, 0]), torch.tensor([3]), torch.tensor([True, False, False, True]), slice(1, 3)):
        some, chosen = items[index], torch.arange(4)[index].tolist()  # type: ignore[index]
        assert torch.equal(some.x, torch.cat([parts[i] for i in chosen]))
        assert some.counts.tolist() == [counts[i] for i in chosen]
    assert_close(items.mean(), torch.stack([part.mean(0) for part in parts]))
    assert torch.equal(items.map(lambda x: 2 * x).x, 2 * items.x)


def test_scores_of_windows_are_pooled_for_each_label_and_no_label_is_that_of_the_window_with_the_least() -> None:
    items = windows([2, 1, 4] * 200)  # more than are pooled at once
    weight = torch.randn(3, 5)

    def score(x: torch.Tensor) -> Scores:
        logits = x @ weight
        return Scores(logits[:, :3], logits[:, 3:4], no_label_logit=logits[:, 4:])

    scores, pooled = score(items.x), pool_scores(score, items)
    start = 0
    for item, count in enumerate(items.counts.tolist()):
        own = slice(start, start + count)
        for label in range(3):
            z = scores.margins[own, label]
            assert_close(pooled.margins[item, label], (sparsemax(z) * z).sum())
        assert scores.no_label_margin is not None
        assert pooled.no_label_margin is not None
        none = scores.no_label_margin[own, 0]
        assert_close(pooled.no_label_margin[item, 0], (sparsemax(-none) * none).sum())
        start += count


def test_items_of_one_window_have_the_scores_of_their_features() -> None:
    items, layer = windows([1] * 5), nn.Linear(3, 2)
    pooled = pool_scores(lambda x: Scores(layer(x)), items)
    assert torch.equal(pooled.logits, layer(items.x))


def test_the_windows_of_a_text_cover_it_and_cut_no_word(model: EncoderModel) -> None:
    inputs, tokenizer = model.inputs, model.processor
    most, overlap = model.config.windows["tokens"], model.config.windows["overlap"]
    assert (most, overlap) == (24, 6)
    for text in ("", "so", " ", "?" * (most - 2), "happy " * (most - 2)):
        assert inputs.spans(text) == [(0, len(text))], text
    words = ["I", "love,", "happy!", "rain", "sun", "unbelievable", "\n\n", "漢字", "naïve", "so", ""]
    for length in (23, 24, 25, 40, 100, 333):
        text = " ".join(words[i % len(words)] for i in range(length))
        spans = inputs.spans(text)
        assert spans[0][0] == 0
        assert spans[-1][1] == len(text.rstrip())
        for (_, end), (start, _) in pairwise(spans):
            assert start < end, "neighbours overlap"
        for start, end in spans:
            assert len(tokenizer(text[start:end])["input_ids"]) <= most
            for at in (start, end):  # each of the Chinese characters is a word
                assert not re.fullmatch(r"[a-zï]{2}", text[max(at - 1, 0) : at + 1]), text[at - 5 : at + 5]


def test_a_word_that_is_longer_than_a_window_is_cut(model: EncoderModel) -> None:
    text = "so " + "?" * 100 + " sun"
    spans = model.inputs.spans(text)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(start < end for (_, end), (start, _) in pairwise(spans))


def test_short_texts_have_the_model_and_the_features_of_one_window(text_encoder: Path) -> None:
    with_windows, truncating = (EncoderModel.from_encoder(text_encoder, NAMES, max_tokens=n) for n in (None, 24))
    assert truncating.config.windows is None
    assert torch.equal(with_windows.embed(TEXTS), truncating.embed(TEXTS))
    for model in (with_windows, truncating):
        model.fit(TEXTS * 4, LABELS * 4, **QUICK)
    assert with_windows.predict(TEXTS) == truncating.predict(TEXTS)


def test_a_long_text_has_the_pooled_scores_of_its_windows(model: EncoderModel) -> None:
    texts = [TEXTS[0], LONG[1], TEXTS[2], LONG[3]]
    passages = [[text[start:end] for start, end in model.inputs.spans(text)] for text in texts]
    assert [len(windows) > 1 for windows in passages] == [False, True, False, True]
    margins = model.outputs(texts).scores.margins
    for found, windows in zip(margins, passages, strict=True):
        each = model.outputs(windows).scores.margins.T
        assert_close(found, (sparsemax(each) * each).sum(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.train
def test_a_model_of_long_texts_is_trained_saved_and_loaded(text_encoder: Path, tmp_path: Path) -> None:
    model = EncoderModel.from_encoder(text_encoder, NAMES)
    y = indicator(LABELS, NAMES)

    def loss() -> float:
        with torch.no_grad():
            return float(model.network.head.loss(model.network.scores(model.encode(LONG)), y))

    before = loss()
    model.fit(LONG * 4, LABELS * 4, **QUICK)
    assert loss() < before
    assert model.evaluation["num_samples"] == 24
    model.guarantee(LONG * 4, LABELS * 4, recall=0.5)
    model.save(tmp_path)
    assert_close(EncoderModel.load(tmp_path).outputs(LONG).marginals, model.outputs(LONG).marginals)
    assert "classifier for texts" in (tmp_path / "README.md").read_text()


@pytest.mark.train
def test_the_merged_network_pools_the_mean_scores_of_the_ensemble() -> None:
    items, y = windows([1, 2, 3, 4] * 10, 6), (torch.rand(40, 3) < 0.4).float()
    network, scores = fit_features(items, y, None, NAMES, {}, random_state=0, verbose=0, **QUICK)
    assert scores.num_samples == 40
    mean = network.head.scores(network.hidden(items.x)).margins.split(items.counts.tolist())
    expected = torch.stack([(sparsemax(z.T) * z.T).sum(-1) for z in mean])
    assert_close(network.scores(items).margins, expected)
    with_validation, _ = fit_features(items, y, (items, y), NAMES, {}, random_state=0, verbose=0, **QUICK)
    assert_close(with_validation(items).marginals.mean(), y.mean(), atol=0.1, rtol=0)


def test_texts_are_truncated_where_that_is_asked_for_and_it_is_said(text_encoder: Path, model: EncoderModel) -> None:
    truncating = EncoderModel.from_encoder(text_encoder, NAMES, max_tokens=12)
    with pytest.warns(
        UserWarning, match="1 of 2 texts are longer than 12 tokens and are truncated, the first is item 2"
    ):
        cut = truncating.embed(["so happy", LONG[0]])
    assert_close(cut, truncating.embed(["so happy", " ".join(LONG[0].split()[:10])]))
    partly = EncoderModel.from_encoder(text_encoder, NAMES, max_tokens=40)
    assert partly.config.windows["tokens"] == 24
    with pytest.warns(UserWarning, match="longer than 40 tokens"):
        partly.embed([LONG[0]])
    spans = partly.inputs.spans(LONG[0])
    assert LONG[0][: spans[-1][1]].split() == LONG[0].split()[:38]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.truncated(LONG) == []
        model.predict(LONG)


def test_another_rule_truncates_and_fine_tuning_refuses_long_texts(text_encoder: Path) -> None:
    ranking = EncoderModel.from_encoder(text_encoder, NAMES, rule="rate")
    assert (ranking.config.windows, ranking.config.max_tokens) == (None, 24)
    with pytest.raises(ValueError, match="fine-tuning reads 24 tokens at once, and 6 texts are longer; truncate them"):
        EncoderModel.from_encoder(text_encoder, NAMES).fit(LONG, LABELS, finetune=True, verbose=False)
    with pytest.raises(ValueError, match="windows need 4 tokens more than their overlap"):
        EncoderModel.from_encoder(text_encoder, NAMES, window=3)


def test_an_embedder_returns_the_mean_of_the_windows(text_encoder: Path, model: EncoderModel) -> None:
    found = Embedder(text_encoder).transform([LONG[0], TEXTS[0]])
    passages = [LONG[0][start:end] for start, end in model.inputs.spans(LONG[0])]
    assert_close(torch.from_numpy(found[0]), model.embed(passages).mean(0), atol=1e-5, rtol=1e-5)
    assert_close(torch.from_numpy(found[1:]), model.embed(TEXTS[:1]))
