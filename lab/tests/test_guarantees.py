"""Guarantees over resplits: the numbers of a run, MAPIE's thresholds, and the report's section."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mulan_sets import save
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax.labels import ReviewThresholds
from rsoftmax_lab import records
from rsoftmax_lab.experiments import load_all
from rsoftmax_lab.experiments.guarantees import (
    GUARANTEES,
    MAPIE,
    OURS,
    REVIEW,
    REVIEWED,
    Run,
    Scored,
    half,
    levels,
    mapie_threshold,
    measure,
    measure_review,
    run,
)
from rsoftmax_lab.report import write

HEAD = "@relation plain\n" + "".join(f"@attribute x{i} numeric\n" for i in range(4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of 60 training and 400 test rows whose three labels can be learned."""
    random = np.random.default_rng(0)
    features = random.normal(size=(460, 4)).round(3)
    labels = (features[:, :3] + 0.5 * random.normal(size=(460, 3)) > [0.5, 0.3, 0.0]).astype(int)
    lines = [",".join(map(str, [*x, *y])) for x, y in zip(features.tolist(), labels.tolist(), strict=True)]
    head = HEAD + "".join(f"@attribute y{k} {{0,1}}\n" for k in range(3)) + "@data\n"
    save(tmp_path, "plain", ["y0", "y1", "y2"], head + "\n".join(lines[:60]), head + "\n".join(lines[60:]))
    return tmp_path


def test_a_run_measures_every_guarantee_on_rows_that_did_not_set_the_threshold(folder: Path) -> None:
    row = run(folder, None, Run("plain", resplits=8))
    assert row["guarantees"].keys() == GUARANTEES.keys()
    for name, one in GUARANTEES.items():
        found = row["guarantees"][name][OURS]
        assert {len(values) for values in found.values()} == {8}, name
        known = [level for level in found["level"] if level is not None]
        assert statistics.fmean(known) > one.level - 0.03, name
        assert all(0 <= size <= 3 for size in found["size"]), name
    assert list(row["reviews"]) == list(REVIEWED)
    for by, found in row["reviews"].items():
        assert {len(values) for values in found.values()} == {8}, by
        assert statistics.fmean(found["recall"]) > REVIEW["reject"] - 0.03, by
        assert statistics.fmean(p for p in found["precision"] if p is not None) > REVIEW["accept"] - 0.03, by


def test_halves_differ_and_levels_are_those_of_the_definition() -> None:
    assert not torch.equal(half(50, 0), half(50, 1))
    assert int(half(50, 0).sum()) == 25
    pi, y = torch.tensor([[0.9, 0.2], [0.4, 0.8], [0.1, 0.3]]), torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    rows, at_half = Scored(pi.double(), y.double()), torch.tensor([0.5])
    assert measure(GUARANTEES["recall"], at_half, rows) == {"level": 0.5, "size": 0.6667, "controlled": 1.0}
    assert measure(GUARANTEES["recall_micro"], at_half, rows)["level"] == 0.5
    assert measure(GUARANTEES["precision"], at_half, rows)["level"] == 1.0
    by_label = measure(GUARANTEES["recall_label"], torch.tensor([0.05, torch.nan]), rows)
    assert by_label == {"level": 1.0, "size": 1.0, "controlled": 0.5}


def test_mapie_gets_the_same_rows() -> None:
    """Its threshold of the expected recall is ours, rounded down to hundredths."""
    pytest.importorskip("mapie")
    random = np.random.default_rng(0)
    pi = torch.from_numpy(random.random((300, 4)))
    y = (torch.from_numpy(random.random((300, 4))) < pi).double()
    y[:, 0] = 1
    peer: Any = mapie_threshold(Scored(pi, y), GUARANTEES["recall"], MAPIE)
    first = half(300, 0)
    from rsoftmax.labels import recall_threshold

    ours = recall_threshold(pi[first], y[first], 0.9).item()
    assert 0 <= ours - peer(first).item() < 0.011


def test_a_review_is_measured_as_its_definition_says() -> None:
    pi, y = torch.tensor([[0.9, 0.5], [0.7, 0.8], [0.1, 0.6]]), torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    rows = Scored(pi.double(), y.double())
    at = ReviewThresholds(torch.tensor([0.7]), torch.tensor([0.4]))  # accepted: 1 + 2; asked: 1 + 1
    of_samples = measure_review(at, "samples", rows)
    assert of_samples == {"precision": 0.75, "recall": 0.6667, "accepted": 1.0, "asked": 0.6667}
    assert measure_review(at, "micro", rows) == of_samples | {"precision": 0.6667, "recall": 0.75}
    nothing = ReviewThresholds(torch.tensor([torch.inf]), torch.tensor([-torch.inf]))
    assert measure_review(nothing, "micro", rows) == {"precision": None, "recall": 1.0, "accepted": 0.0, "asked": 2.0}


@pytest.mark.train
def test_reproduce_guarantees_runs_and_reports(folder: Path, tmp_path: Path) -> None:
    words = ["reproduce", "guarantees", "--data", str(folder), "--jobs", "1", "--out", str(tmp_path / "new")]
    shown = CliRunner().invoke(app, [*words, "--resplits", "2"])
    assert shown.exit_code == 0, shown.output
    assert "recall of a sample 0.9, in expectation" in shown.output
    shown = CliRunner().invoke(app, [*words, "--only", "nothing"])
    assert shown.exit_code == 2
    assert "has no dataset 'nothing'" in shown.output


def test_the_section_judges_what_was_promised(tmp_path: Path) -> None:
    for dataset, level in (("good", 0.92), ("bad", 0.5)):
        splits = {"level": [level, level], "size": [2.0, 2.0], "controlled": [1.0, 1.0]}
        found = {name: dict.fromkeys((OURS, *one.peers), splits) for name, one in GUARANTEES.items()}
        measured = {"precision": [level], "recall": [0.95], "accepted": [1.0], "asked": [0.5]}
        row = {"run": {"dataset": dataset}, "seconds": 1.0, "rows": 10, "labels": 3, "guarantees": found}
        row |= {"reviews": dict.fromkeys(REVIEWED, measured)}
        records.append(tmp_path / "guarantees.jsonl", row)
    written = write(load_all(), tmp_path, tmp_path / "out", pytest.fail)
    assert [path.name for path in written.files] == ["guarantees.png", "report.md", "report.html"]
    text = written.files[1].read_text()
    assert "| recall of a sample 0.9, in expectation: the mean is kept | 0.920 | 0.500 | no |" in text
    assert "below in at most 10 % of resplits | 0 % | 100 % | no |" in text
    assert "with confidence 0.9: below in at most 10 % of resplits | 0 % | 100 % | no |" in text
    assert "| precision of accepted labels | 0.920 | 0.500 |" in text
    assert "sets are at most as large as those of MAPIE (ratio) | 1.00 | 1.00 | yes |" in text


def test_a_dataset_without_any_guarantee_has_empty_cells(tmp_path: Path) -> None:
    splits = {"level": [None], "size": [None], "controlled": [0.0]}
    found = {name: dict.fromkeys((OURS, *one.peers), splits) for name, one in GUARANTEES.items()}
    measured = {"precision": [None], "recall": [1.0], "accepted": [0.0], "asked": [3.0]}
    row = {"run": {"dataset": "small"}, "seconds": 1.0, "rows": 10, "labels": 3, "guarantees": found}
    row |= {"reviews": dict.fromkeys(REVIEWED, measured)}
    records.append(tmp_path / "guarantees.jsonl", row)
    text = write(load_all(), tmp_path, tmp_path / "out", pytest.fail).sections["guarantees"].text
    assert "| recall of a sample 0.9, in expectation: the mean is kept |  |" in text


def test_the_figure_leaves_out_resplits_without_a_guarantee() -> None:
    ours = {"level": [0.91, 1.0, None], "size": [2.0, 0.0, 0.0], "controlled": [1.0, 0.0, 0.0]}
    none = {"level": [1.0], "size": [0.0], "controlled": [0.0]}
    rows: dict[str, Any] = {"emotions": {"guarantees": {"precision": {OURS: ours, MAPIE: none}}}}
    assert levels(rows, "precision") == {"emotions": {OURS: [0.91]}}
