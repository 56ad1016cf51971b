"""The experiment with thousands of labels: from files in EURLEX57K's layout to a record and the report."""

import gzip
import json
from pathlib import Path

import pytest
from commands import rsoftmax

from rsoftmax.labels import AVERAGES
from rsoftmax_lab.experiments.eurlex import RULES


@pytest.mark.train
def test_the_rules_are_compared_and_reported(tmp_path: Path) -> None:
    labels = [f"concept {i}" for i in range(6)]
    for split, times in (("train", 40), ("dev", 10), ("test", 5)):
        rows = [{"text": f"law on {a} and {b}", "labels": [a, b]} for a in labels for b in labels if a < b] * times
        rows += [{"text": "law on nothing", "labels": ["only in test"]}] if split == "test" else []
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    out = tmp_path / "results"
    words = ["reproduce", "eurlex", "--data", tmp_path, "--jobs", 1, "--out", out]
    rsoftmax(*words)
    (row,) = [json.loads(line) for line in (out / "eurlex.jsonl").read_text().splitlines()]
    assert set(row["rules"]) == set(RULES)
    for average in AVERAGES:
        assert row["rules"][f"ours, {average}"][average] > 80
        assert row["rules"]["top 5"][average] < 80
    assert "1 of 1 runs are already in" in rsoftmax(*words)
    rsoftmax("report", "--results", out, "--out", tmp_path / "report")
    report = (tmp_path / "report" / "report.md").read_text()
    assert "## Thousands of labels" in report
    assert "| ours, macro |" in report
    (tmp_path / "dev.jsonl.gz").unlink()
    assert "has no dev.jsonl.gz" in rsoftmax(*words, code=2)
