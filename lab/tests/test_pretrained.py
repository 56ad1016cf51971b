"""Pretrained models without training: from a small random encoder and a file of texts to rows and the report."""

import json
from pathlib import Path

import pytest
from encoders import TEXTS
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax_lab.experiments.pretrained import SETTINGS, arguments
from rsoftmax_lab.experiments.rates import KINDS, kind_of


def rsoftmax(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "300"})
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.train
def test_settings_and_calibrated_folders_are_measured_once_and_reported(text_encoder: Path, tmp_path: Path) -> None:
    texts, sparse, out = tmp_path / "texts.txt", tmp_path / "sparse", tmp_path / "results"
    texts.write_text("\n".join(f"{text} {other}" for text in TEXTS * 2 for other in TEXTS))
    rsoftmax("sparsify", "--model", text_encoder, "--texts", texts, "--out", sparse)
    given = ["reproduce", "pretrained", "--model", text_encoder, "--texts", texts, "--length", 16, "--jobs", 1]
    words = [*given, "--calibrated", sparse, "--setting", "t_softmax t=1 edge=0", "--setting", "softmax", "--out", out]
    rsoftmax(*words)
    (row,) = (json.loads(line) for line in (out / "pretrained.jsonl").read_text().splitlines())
    found = row["settings"]
    given_first, dense, calibrated = found
    assert (given_first, dense) == ("t_softmax t=1 edge=0", "softmax")
    assert calibrated.startswith("calibrated, sparse@")
    assert found["softmax"]["zeros"] == 0
    assert abs(found["softmax"]["error"]) < 1e-6 < found["t_softmax t=1 edge=0"]["error"]
    assert found[calibrated]["zeros"] > 0
    assert "1 of 1 runs are already in" in rsoftmax(*words)
    rsoftmax("report", "--results", out, "--out", tmp_path / "report")
    report = (tmp_path / "report" / "report.md").read_text()
    assert "## Pretrained models without training" in report
    assert "![Quality against time](rates.png)" in report
    assert (tmp_path / "report" / "rates.png").exists()
    assert "has no certified thresholds" in rsoftmax(*given, "--calibrated", text_encoder, "--out", out, code=2)
    assert "there is no mapping 'softmin'" in rsoftmax(*given, "--setting", "softmin t=1", "--out", out, code=2)


def test_settings_are_written_in_words() -> None:
    assert arguments("k_softmax k=64 edge=0") == {"mapping": "k_softmax", "k": 64.0, "edge": 0.0}
    assert {kind_of(setting) for setting in (*SETTINGS, "calibrated, a")} == set(KINDS)
    with pytest.raises(ValueError, match="expected words like"):
        arguments("t_softmax 6")
