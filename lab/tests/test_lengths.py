"""Lengths: the tasks' targets, the grid, a short run, and the report."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax_lab.experiments import lengths, load_all
from rsoftmax_lab.experiments.lengths import DRAW, KEYS, MAPPINGS, MARKED, TASKS, Model, Run, grid, measure, train
from rsoftmax_lab.records import differences
from rsoftmax_lab.report import write


def batch(task: str, n: int = 40, questions: int = 3) -> tuple[torch.Tensor, ...]:
    return DRAW[task](5, n, questions, torch.Generator().manual_seed(0))


def test_max_retrieval_asks_for_the_class_of_the_highest_priority() -> None:
    priorities, classes, _, targets = batch("max")
    for i in range(5):
        best = priorities[i].flatten().tolist().index(priorities[i].max().item())
        assert targets[i].tolist() == [classes[i, best].item()] * 3


def test_recall_has_one_item_for_each_question_and_others_that_match_by_half() -> None:
    keys, classes, questions, targets = batch("recall", n=600)
    assert keys[..., 0].max() < KEYS <= keys[..., 1].min()
    for i in range(5):
        same = keys[i, None] == questions[i][:, None]
        assert (same.all(-1).sum(-1) == 1).all()
        assert (same.any(-1).sum(-1) > 1).any()
        assert targets[i].tolist() == classes[i][same.all(-1).int().argmax(-1)].tolist()


def test_the_mean_is_that_of_the_items_with_the_key_in_question() -> None:
    keys, values, questions, targets = batch("mean")
    for i in range(5):
        for asked, answer in zip(questions[i], targets[i], strict=True):
            found = values[i][(keys[i] == asked).flatten()]
            assert 1 <= len(found) <= MARKED
            torch.testing.assert_close(answer, found.mean(0))


def test_the_grid_pairs_every_mapping_with_and_without_the_scale_and_has_asentmax() -> None:
    runs = lengths.grid(seeds=2)
    assert len(runs) == len(set(runs)) == 2 * len(TASKS) * (2 * len(MAPPINGS) + 1)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)  # an interrupted sweep has whole seeds
    for wrong in ({"mapping": "hardmax"}, {"scale": "log"}):
        with pytest.raises(ValueError, match="must be one of"):
            Run("max", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="task must be one of max, recall, mean, got 'min'"):
        Run("min")


@pytest.mark.parametrize("task", TASKS)
def test_a_run_trains_what_it_learns_and_counts_non_zero_weights(task: str) -> None:
    torch.manual_seed(0)
    run = Run(task, "t_softmax", "log n", steps=2)
    model = Model(run)
    before = {name: value.clone() for name, value in model.named_parameters()}
    train(model, run)
    after = dict(model.named_parameters())
    assert all(
        not torch.equal(after[name], before[name]) for name in ("attention.mapping.raw_value", "attention.log_scale")
    )
    accuracy, nonzeros = measure(Model(Run(task, "k_softmax")), task, TASKS[task].longest)
    assert 0 <= accuracy <= 1
    assert nonzeros == TASKS[task].k


def line(mapping: str, scale: str | None, seed: int, accuracy: float) -> str:
    run = differences(Run("max", mapping, scale, seed))
    learned = {"t": 2.5} if mapping == "t_softmax" else {}
    numbers = {"accuracy": {"16": 1.0, "64": accuracy}, "nonzeros": {"16": 2.0, "64": 3.5}, "learned": learned}
    return json.dumps({"run": run, "seconds": 1.0, **numbers, "version": "0.2.0", "kernels": "native (avx2)"})


def test_the_report_shows_accuracy_by_length(tmp_path: Path) -> None:
    lines = [line("softmax", None, 0, 0.5), line("t_softmax", "log n", 0, 0.9), line("t_softmax", "log n", 1, 0.8)]
    (tmp_path / "lengths.jsonl").write_text("\n".join([*lines, ""]))
    written = write(load_all(), tmp_path, tmp_path / "report", pytest.fail)
    text = (tmp_path / "report" / "report.md").read_text()
    for cells in (
        "| items | 16 | 64 |",
        "| softmax | **100.00** | 50.00 |",
        "| t-softmax, log n | **100.00 ± 0.00** | **85.00 ± 7.07** |",
        "| t-softmax, log n | 3.5 |",
        "| max retrieval | t-softmax, log n | t | 2.50 to 2.50 |",
        "3 of 225 runs; seeds: max retrieval 1 to 2",
    ):
        assert cells in text
    assert [path.name for path in written.files if path.suffix == ".png"] == ["lengths.png"]


@pytest.mark.train
def test_reproduce_lengths_resumes_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "grid", partial(grid, steps=40, times=4))
    words = ["reproduce", "lengths", "--quick", "--jobs", "1", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    rows = (tmp_path / "lengths.jsonl").read_text().splitlines()
    (tmp_path / "lengths.jsonl").write_text("\n".join([*rows[:-1], ""]))
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert f"{len(rows) - 1} of {len(rows)} runs are already in" in again.output
    assert len((tmp_path / "lengths.jsonl").read_text().splitlines()) == len(rows) == 2 * len(MAPPINGS) + 1
