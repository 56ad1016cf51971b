"""Long texts: documents whose parts are known, the ways of pooling, the evidence, a short run, and the report."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import rsoftmax
from encoders import LABELS, NAMES, TEXTS

from rsoftmax_lab.data.goemotions import GoEmotions, Split
from rsoftmax_lab.experiments import load_all, windows
from rsoftmax_lab.experiments.windows import WAYS, Documents, Run, carries, draw, evidence, grid, pooling
from rsoftmax_lab.records import differences
from rsoftmax_lab.report import write

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SMALL: dict[str, Any] = {"window": 12, "comments": 5, "emotional": 2, "train": 60, "dev": 10, "test": 8}


def emotions(times: int = 6) -> GoEmotions:
    """Every comment is another one, so that it can be found in a document; "neutral" is in the middle of the labels."""
    names = [NAMES[0], "neutral", *NAMES[1:]]
    y = torch.zeros(len(TEXTS) * times, len(names))
    for row, labels in enumerate(LABELS * times):
        y[row, [names.index(name) for name in labels or ["neutral"]]] = 1
    split = Split([f"{text} number {i}" for i, text in enumerate(TEXTS * times)], y)
    return GoEmotions(names, split, split, split)


def test_the_labels_of_a_document_are_those_of_its_comments_which_are_where_they_should_be() -> None:
    data, run = emotions(), Run("max", comments=5, emotional=2, test=7)
    texts, y, emotional = draw(data, "test", run)
    assert len(texts) == len(y) == len(emotional) == 7
    used = []
    for text, labels, parts in zip(texts, y, emotional, strict=True):
        assert len(parts) == 2
        assert torch.equal(torch.stack([own for _, own in parts]).amax(0), labels)
        assert text.count(" number ") == 5
        for (start, end), own in parts:
            row = data.test.texts.index(text[start:end])
            assert torch.equal(own, data.test.y[row][[0, 2, 3]])
            used.append(row)
    assert len(set(used)) == len(used), "an emotional comment is used once"
    assert draw(data, "test", run).texts == texts
    assert draw(data, "train", run).texts[0] != texts[0]


def test_even_and_highest_weights_leave_out_padding() -> None:
    scores, mask = torch.tensor([[[1.0, 3.0, 9.0]]]), torch.tensor([[[True, True, False]]])
    assert windows.Even()(scores, mask).tolist() == [[[0.5, 0.5, 0.0]]]
    assert windows.Highest()(scores, mask).tolist() == [[[0.0, 1.0, 0.0]]]
    for way in WAYS:
        x, keep = torch.randn(2, 4, 3), torch.arange(4) < torch.tensor([[4], [2]])
        weights = pooling(way).scores(x, mask=keep).weights
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
        assert (weights[1, :, 2:] == 0).all()


def test_a_window_carries_a_comment_if_half_of_one_is_in_the_other() -> None:
    assert carries((0, 10), (5, 15))
    assert not carries((0, 10), (6, 16))
    assert carries((0, 100), (20, 30))
    assert carries((20, 30), (0, 100))
    assert not carries((0, 10), (20, 30))


def test_evidence_is_right_where_the_window_with_the_largest_weight_carries_the_label() -> None:
    spans = [[(0, 10), (8, 20)]]
    y = torch.tensor([[1.0, 1.0, 0.0]])
    parts = [[((0, 6), torch.tensor([1.0, 0.0, 0.0])), ((12, 18), torch.tensor([0.0, 1.0, 0.0]))]]
    weights = [torch.tensor([[0.7, 0.3], [1.0, 0.0], [0.0, 1.0]])]
    found = evidence(weights, spans, Documents([""], y, parts), torch.tensor([[True, False, True]]))
    assert found == {
        "all": 0.5,
        "predicted": 1.0,
        "chance": 0.5,
        "windows": 2.0,
        "used": pytest.approx(4 / 3, abs=1e-3),
    }


def record(way: str, seed: int, f1: float, share: float | None) -> str:
    where = None if share is None else {"all": share, "predicted": share, "chance": 0.2, "windows": 6.5, "used": 1.25}
    scores = dict.fromkeys(("micro", "macro", "samples"), f1)
    return json.dumps({"run": differences(Run(way, seed)), "seconds": 1.0, "f1": scores, "evidence": where})


def test_the_report_shows_f1_and_evidence(tmp_path: Path) -> None:
    lines = [record("sparsemax", 0, 40.0, 0.8), record("sparsemax", 1, 42.0, 0.9), record("truncated", 0, 30.0, None)]
    (tmp_path / "windows.jsonl").write_text("\n".join([*lines, ""]))
    text = write(load_all(), tmp_path, tmp_path / "report", pytest.fail).sections["windows"].text
    assert "| sparsemax (the default) | **41.00 ± 1.41** | **41.00 ± 1.41** | **41.00 ± 1.41** |" in text
    assert "| truncated: the first window alone | 30.00 | 30.00 | 30.00 |" in text
    assert "| sparsemax (the default) | 85.00 ± 7.07 | 85.00 ± 7.07 | 20.00 ± 0.00 | 1.2 | 6.5 |" in text
    with pytest.raises(ValueError, match="way must be one of sparsemax"):
        Run("hardmax")
    assert len(grid()) == 3 * len(WAYS) - 2


@pytest.mark.train
def test_reproduce_windows_resumes_where_it_stopped(
    text_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = tmp_path / "emotions", emotions(30)
    folder.mkdir()
    (folder / "labels.txt").write_text("\n".join(data.labels))
    lines = [
        f"{text}\t{','.join(map(str, y.nonzero()[:, 0].tolist()))}\tid" for text, y in zip(*data.train, strict=True)
    ]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("\n".join(lines))
    monkeypatch.setattr(windows, "grid", partial(grid, **SMALL))
    words = ["reproduce", "windows", "--data", folder, "--model", text_encoder, "--seeds", 1, "--out", tmp_path]
    for way in ("sparsemax", "max", "features", "truncated", "words"):
        words += ["--way", way]
    words += ["--jobs", 1]
    assert "F1 on test, long texts" in rsoftmax(*words)
    rows = [json.loads(line) for line in (tmp_path / "windows.jsonl").read_text().splitlines()]
    assert [row["evidence"] is None for row in rows] == [False, False, True, True, False]
    assert rows[-1]["f1"]["micro"] > 90  # the words are those of the comments
    assert rows[-1]["evidence"]["all"] > 0.9
    (tmp_path / "windows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert "1 of 5 runs are already in" in rsoftmax(*words)
