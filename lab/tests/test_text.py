"""The text comparison: from files in GoEmotions' layout and a small random encoder to rows and the report."""

import json
from pathlib import Path

import pytest
import torch
from commands import rsoftmax
from encoders import LABELS, NAMES, TEXTS

from rsoftmax.labels import AVERAGES
from rsoftmax_lab import records
from rsoftmax_lab.data import goemotions as data
from rsoftmax_lab.experiments import load_all
from rsoftmax_lab.experiments.text import RULES, score
from rsoftmax_lab.report import write

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def emotions(tmp_path: Path) -> Path:
    folder = tmp_path / "emotions"
    folder.mkdir()
    (folder / "labels.txt").write_text("\n".join([*NAMES, "neutral"]))
    numbers = [",".join(str(NAMES.index(name)) for name in labels) or "3" for labels in LABELS]
    lines = [f"{text}\t{row}\tid\n" for text, row in zip(TEXTS, numbers, strict=True)]
    for split, times in (("train", 8), ("dev", 3), ("test", 2)):
        (folder / f"{split}.tsv").write_text("".join(lines * times))
    return folder


@pytest.mark.train
def test_the_comparison_is_run_once_and_reported(emotions: Path, text_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    words = ["reproduce", "text", "--data", emotions, "--model", text_encoder, "--epochs", 1, "--jobs", 1, "--out", out]
    rsoftmax(*words)
    rows = [json.loads(line) for line in (out / "text.jsonl").read_text().splitlines()]
    assert [row["run"]["way"] for row in rows] == ["tfidf", "frozen", "finetuned"]
    for row in rows:
        assert set(row["rules"]) == set(RULES)
        assert all(0 <= f1 <= 100 for rule in row["rules"].values() for part in rule.values() for f1 in part.values())
    assert rows[0]["rules"]["ours, micro"]["test"]["micro"] == 100  # the texts of all splits are the same
    assert "3 of 3 runs are already in" in rsoftmax(*words)
    rsoftmax("report", "--results", out, "--out", tmp_path / "report")
    report = (tmp_path / "report" / "report.md").read_text()
    assert "## Multi-label text classification" in report
    assert "| ours, macro |" in report


def test_models_are_reported_apart_and_seeds_together(tmp_path: Path) -> None:
    for model, f1, seed in (("a", 40.0, 0), ("a", 42.0, 1), ("b", 60.0, 0)):
        scores = dict.fromkeys(("dev", "test"), dict.fromkeys(AVERAGES, f1))
        row = {
            "run": {"way": "frozen", "model": model, "seed": seed},
            "seconds": 1.0,
            "rules": dict.fromkeys(RULES, scores),
        }
        records.append(tmp_path / "text.jsonl", row)
    text = write(load_all(), tmp_path, tmp_path / "out", pytest.fail).sections["text"].text
    assert "### encoder frozen, a, goemotions" in text
    assert "41.00 ± 1.41" in text
    assert "60.00" in text


def test_a_broken_line_is_named(emotions: Path, text_encoder: Path) -> None:
    with (emotions / "dev.tsv").open("a") as file:
        file.write("a text\t1,4\tid\n")
    said = rsoftmax("reproduce", "text", "--data", emotions, "--model", text_encoder, code=2)
    assert "line 19" in said
    (emotions / "dev.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"dev\.tsv"):
        data.read.__wrapped__(emotions)


def test_a_tuned_threshold_is_the_best_of_all() -> None:
    torch.manual_seed(0)
    u, truth = torch.randn(60, 4).round(decimals=1), (torch.rand(60, 4) < 0.3).float()
    tuned = score(u, truth, u, truth)
    for p in ("at .5", "at .3"):
        assert tuned["tuned"]["dev"]["micro"] >= tuned[p]["dev"]["micro"]
        assert tuned["tuned for each label"]["dev"]["macro"] >= tuned[p]["dev"]["macro"]
