"""Why a text has a label: contributions of words that add up, shares of windows, exact passages, and HTML."""

import re
from collections.abc import Sequence
from html import unescape
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders import NAMES, TEXTS
from torch.testing import assert_close

from rsoftmax import sparsemax
from rsoftmax.labels import EncoderModel, Explanation, LabelModel, Passage, TableModel
from rsoftmax.labels.models.explanation import SENTENCE, explanation_lines, explanations_page, highlighted
from rsoftmax.labels.models.linear import OneVsRest
from rsoftmax.labels.models.tfidf import TfIdf, word_spans, words

WORDS = {
    "red wine": ["drink"],
    "hot tea": ["drink", "hot"],
    "hot soup": ["food", "hot"],
    "white bread": ["food"],
    "car": [],
}
TRAINING = [f"{word} number {i}{'!' * (i % 3)}" for i in range(16) for word in WORDS]
NEW = [
    "red wine, red wine. Hot tea!",
    "I had soup\nand bread and a car",
    "İstanbul tea! 漢字。Soup.",
    "",
    "unknown",
    "wine",
]
LONG = [f"{'rain sun it you at all nothing ' * 6}{text} {'it rain sun ' * 7}" for text in TEXTS]


@pytest.fixture(scope="module")
def model() -> LabelModel:
    return LabelModel(average="macro").fit(TRAINING, [labels for _ in range(16) for labels in WORDS.values()])


@pytest.fixture(scope="module")
def encoder(text_encoder: Path) -> EncoderModel:
    model = EncoderModel.from_encoder(text_encoder, NAMES, "macro")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_()
    return model


def total(passages: Sequence[Passage]) -> float:
    return sum(passage.weight for passage in passages)


def test_the_contributions_to_a_label_add_up_to_its_log_odds(model: LabelModel, tmp_path: Path) -> None:
    model.save(tmp_path)
    again = LabelModel.load(tmp_path)
    assert isinstance(again, LabelModel)
    for one in (model, again):
        log_odds = one.decoder.log_odds(one.classifier.scores(one.embed(NEW)))
        for explained, expected in zip(one.explain(NEW, every_label=True), log_odds.tolist(), strict=True):
            assert set(explained) == set(one.names)
            for name, u in zip(one.names, expected, strict=True):
                explanation = explained[name]
                assert explanation.base is not None
                assert explanation.log_odds is not None
                size = abs(explanation.base) + sum(map(abs, explanation.terms.values())) + 10
                rounding = size * torch.finfo(torch.float32).eps * (len(explanation.terms) + 10)
                assert explanation.log_odds == pytest.approx(u, abs=rounding)
                for passages in (explanation.passages, explanation.sentences):
                    assert explanation.base + total(passages) == pytest.approx(explanation.log_odds, abs=1e-12 * size)


def test_the_labels_and_marginals_are_those_of_the_prediction(model: LabelModel, encoder: EncoderModel) -> None:
    for one, texts in ((model, NEW), (encoder, [*TEXTS, *LONG])):
        for every_label in (False, True):
            explained = one.explain(texts, every_label=every_label)
            marginals = [{name: part.marginal for name, part in labels.items()} for labels in explained]
            assert marginals == one.predict(texts, every_label=every_label)


def test_a_term_counts_as_often_as_it_occurs_and_a_pair_for_both_words() -> None:
    vectorizer = TfIdf(["a", "b", "a b"], np.array([1.0, 2.0, 3.0], dtype=np.float32))
    model = LabelModel(["x", "y"])
    model.vectorizer = vectorizer
    indptr, indices, weights = (
        torch.tensor([0, 1, 2, 4]),
        torch.tensor([0, 0, 0, 1]),
        torch.tensor([1.0, -2.0, 4.0, 8.0]),
    )
    bias, scale = torch.tensor([0.5, 0.25]), torch.tensor([2.0, 1.0])
    tensors = {"indptr": indptr, "indices": indices.int(), "weights": weights, "bias": bias}
    state = OneVsRest(2, {}).state_dict() | {f"linear.{name}": tensor for name, tensor in tensors.items()}
    state["decoder.calibration.slope"], state["decoder.calibration.offset"] = scale, torch.tensor([0.0, 1.0])
    model.config.labels, model.classifier = ["x", "y"], OneVsRest.from_tensors(2, {}, state)
    (explained,) = model.explain(["A b. C a b"], every_label=True)
    x = np.array([1 + np.log(2), 2 * (1 + np.log(2)), 3 * (1 + np.log(2))])
    a, b, ab = x / np.linalg.norm(x)
    terms = {"a": 2 * a, "b": -4 * b, "a b": 8 * ab}
    assert explained["x"].terms == pytest.approx(terms)
    assert list(explained["x"].terms) == sorted(terms, key=lambda term: -terms[term])
    first, second = terms["a"] / 2 + terms["a b"] / 4, terms["b"] / 2 + terms["a b"] / 4
    expected = [(0, 1, first), (2, 3, second), (7, 8, first), (9, 10, second)]
    assert [part[:2] for part in explained["x"].passages] == [part[:2] for part in expected]
    assert [part.weight for part in explained["x"].passages] == pytest.approx([part[2] for part in expected])
    assert [part[:2] for part in explained["x"].sentences] == [(0, 4), (5, 10)]
    assert explained["x"].base == pytest.approx(1.0)
    assert explained["y"].base == pytest.approx(1.25)
    assert explained["y"].terms == {"a b": pytest.approx(8 * ab)}


def test_a_rule_raises_the_marginal_of_a_parent_but_not_what_its_words_contribute() -> None:
    y = [["thing", *labels] if "hot" in labels else labels for _ in range(16) for labels in WORDS.values()]
    model = LabelModel(implies={"food": "thing"}).fit(TRAINING, y)
    explained = model.explain(["white bread"], every_label=True)[0]
    assert explained["thing"].marginal == pytest.approx(explained["food"].marginal)
    assert explained["thing"].log_odds < explained["food"].log_odds  # type: ignore[operator]


@pytest.mark.parametrize(
    "text", ["Don't panic!", "İİ straße İ", "ẞ Ǆ ΑΣ.", "पानी 漢字 👍🏽 e\u0301", " \n ", "A\u00a0b\r\nc", "K 5 Å"]
)
def test_words_are_located_in_the_text_as_it_is_written(text: str) -> None:
    found = [text[start:end].lower() for start, end in word_spans(text)]
    assert found == words(text)


def test_every_word_is_in_one_sentence() -> None:
    text = ' Is it "true?" (Yes.) e.g. 3.14 ... no!! 漢字。漢字！ok\nnew line \n\n . end'  # noqa: RUF001
    sentences = [match.span() for match in SENTENCE.finditer(text)]
    assert [text[start:end] for start, end in sentences] == [
        'Is it "true?"', "(Yes.)", "e.g.", "3.14 ...", "no!!", "漢字。", "漢字！", "ok", "new line ", ". end"  # noqa: RUF001
    ]  # fmt: skip
    for start, end in word_spans(text).tolist():
        assert sum(first <= start and end <= last for first, last in sentences) == 1
    assert len(SENTENCE.findall("." * 200_000 + "x")) == 1  # in linear time


def test_windows_have_their_shares_of_the_pooled_score(encoder: EncoderModel) -> None:
    texts = [TEXTS[0], *LONG]
    for text, explained in zip(texts, encoder.explain(texts, every_label=True), strict=True):
        spans = encoder.inputs.spans(text)
        scores = encoder.outputs([text[start:end] for start, end in spans]).scores.margins
        for label, name in enumerate(NAMES):
            shares = sparsemax(scores[:, label])
            explanation = explained[name]
            assert [passage[:2] for passage in explanation.passages] == [
                span for span, share in zip(spans, shares.tolist(), strict=True) if share
            ]
            assert_close(
                torch.tensor([part.weight for part in explanation.passages]), shares[shares > 0], atol=1e-4, rtol=0
            )
            assert (explanation.base, explanation.log_odds, explanation.terms) == (None, None, {})


def test_windows_without_a_share_have_no_influence(encoder: EncoderModel) -> None:
    text = LONG[0]
    (before,) = encoder.explain([text], every_label=True)
    for name, explanation in before.items():
        spans = encoder.inputs.spans(text)
        decisive = [
            text[start:end] for start, end in spans if (start, end) in {part[:2] for part in explanation.passages}
        ]
        scores = encoder.outputs(decisive).scores.margins[:, NAMES.index(name)]
        pooled = encoder.outputs([text]).scores.margins[0, NAMES.index(name)]
        assert_close((sparsemax(scores) * scores).sum(), pooled, atol=1e-4, rtol=1e-4)
    assert any(len(one.passages) < len(encoder.inputs.spans(text)) for one in before.values())


def test_a_truncated_text_is_explained_up_to_its_last_token(text_encoder: Path) -> None:
    model = EncoderModel.from_encoder(text_encoder, NAMES, max_tokens=6)
    with pytest.warns(UserWarning, match="are truncated"):
        explained = model.explain(["so happy", "I love it so very very much"], every_label=True)
    ends = [part.passages for labels in explained for part in labels.values()]
    assert ends == [[(0, 8, 1.0)]] * 3 + [[(0, len("I love it so"), 1.0)]] * 3


def test_images_and_rows_are_not_explained(image_encoder: Path) -> None:
    with pytest.raises(ValueError, match="only labels of texts can be explained, not of images"):
        EncoderModel.from_encoder(image_encoder, NAMES).explain(["a.png"])
    with pytest.raises(ValueError, match="only labels of texts can be explained, not of rows of features"):
        TableModel(["u"], ["a"]).explain([[1.0]])
    with pytest.raises(ValueError, match="not trained yet"):
        LabelModel(["a"]).explain(["b"])


def test_html_is_the_text_itself_with_passages_marked_and_nothing_that_runs(
    model: LabelModel, encoder: EncoderModel
) -> None:
    hostile = "<script>alert(1)</script> \"wine\" & 'tea' &amp; <img src=x onerror=alert(1)> soup\n\tBODY STYLE  end"
    for one, texts in ((model, [*NEW, hostile]), (encoder, [hostile, LONG[0] + hostile])):
        for text, labels in zip(texts, one.explain(texts, every_label=True), strict=True):
            for explanation in labels.values():
                html = highlighted(text, explanation)
                shown = html.removeprefix('<div class="rs-text" dir="auto">').split("</div>\n<pre")[0]
                assert unescape(re.sub(r"</?mark[^>]*>", "", shown)) == text
                marked = "".join(map(unescape, re.findall(r"<mark[^>]*>([^<]*)</mark>", shown)))
                assert bool(marked) == bool(explanation.passages)
    name = "<b>&"
    page = explanations_page(
        [(name, hostile, {name: next(iter(model.explain([hostile], every_label=True)[0].values()))})]
    )
    tags = set(re.findall(r"</?([a-z0-9]+)", page))
    assert tags == {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "section", "small", "div", "mark",
        "pre",
    }  # fmt: skip
    assert "default-src 'none'" in page
    assert "no label" in explanations_page([("1", "a text", {})])


def test_the_lines_add_up_and_name_what_counts_most() -> None:
    text = "".join(f"Sentence {i}. " for i in range(8))
    sentences = [
        Passage(12 * i, 12 * i + 11, weight) for i, weight in enumerate((0.1, -3.0, 0.5, 2.0, 0.25, 1.0, -0.05, 0.2))
    ]
    *lines, words_line = explanation_lines(
        text, Explanation(0.6, sentences, sentences, {"wine": 1.25, "tea": -0.25}, -1.0)
    )
    assert lines == [
        " -3.00  Sentence 1.", " +2.00  Sentence 3.", " +1.00  Sentence 5.", " +0.50  Sentence 2.",
        " +0.25  Sentence 4.",
        " +0.25  3 other sentences", " -1.00  without any word", " +0.00  log-odds"
    ]  # fmt: skip
    assert words_line == "words: wine +1.25, tea -0.25"
    windows = [Passage(0, 11, 0.25), Passage(12, 300, 0.75)]
    long = "a" * 12 + "b\x1b " * 100
    assert list(explanation_lines(long, Explanation(0.6, windows, [], {}, None))) == [
        "   75%  " + (r"b\x1b " * 100)[:50].rstrip() + " … " + (r"b\x1b " * 96).rstrip()[-50:].lstrip(),
        "   25%  " + "a" * 11,
    ]
    assert [*chain(explanation_lines("", Explanation(0.5, [], [], {}, 0.0)))] == [
        " +0.00  without any word", " +0.00  log-odds"
    ]  # fmt: skip
