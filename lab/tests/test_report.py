"""The report, on results that are made up, and the commands that make and show real ones."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax_lab import records
from rsoftmax_lab.comparison import ALL_METHODS, METHODS, Comparison, Predictor
from rsoftmax_lab.experiments import load_all, synthetic, tabular
from rsoftmax_lab.experiments.synthetic import Draw, claims
from rsoftmax_lab.records import differences, read_trials
from rsoftmax_lab.report import Mean, Report, write

F1 = {"softmax": 70.0, "sparsemax_huber": 60.0, "sparsemax_hinge": 61.0, "sparsehourglass": 62.0,
      "r_softmax_rate": 72.0, "r_softmax_count": 70.0, "t_softmax_threshold": 79.0, "r_softmax_expected_f1": 81.0,
      "bce": 80.0, "zlpr": 78.0}  # fmt: skip


def made_up(run: Any) -> dict[str, Any]:
    """Higher for later seeds, lower thresholds and on validation."""

    def scores(rule: str, bonus: float) -> dict[str, float]:
        loss = 100 * float(rule[3:]) if rule.startswith("p0=") else 0
        micro = max(F1[run.method] + run.seed - loss + bonus, 0)
        return {"micro": micro, "macro": micro / 2, "samples": micro / 4}

    rules = {
        rule: {"epoch": 7, "validation": scores(rule, 1), "test": scores(rule, 0), "test_last": scores(rule, -1)}
        for rule in ALL_METHODS[run.method].rules
    }
    cost = 0.02 if run.method == "r_softmax_count" else 0.01
    return {"run": differences(run), "seconds": 1.0, "epoch_seconds": cost, "rules": rules}


def fill(folder: Path, name: str, runs: Sequence[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for run in runs:
        records.append(folder / name, made_up(run))
    return folder


def comparison_of(folder: Path, notice: Callable[[str], None] = pytest.fail) -> Comparison:
    return Comparison.of(read_trials(folder / "synthetic.jsonl", synthetic.Run, notice).alike(notice))


def report_of(folder: Path, out: Path) -> Report:
    return write(load_all(), folder, out, pytest.fail)


def rsoftmax(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_means_run_over_points_and_then_over_seeds(tmp_path: Path) -> None:
    comparison = comparison_of(fill(tmp_path, "synthetic.jsonl", synthetic.grid(3, synthetic.QUICK)))
    bce, points = Predictor("bce"), comparison.points()
    assert comparison.seeds == [0, 1, 2]
    assert comparison.mean(bce, points, "test") == Mean(81, 1)
    assert comparison.mean(bce, points, "test_last") == Mean(80, 1)
    assert comparison.mean(bce, points[:1], "validation", "macro") == Mean(41, 0.5)
    ahead = comparison.margin(Predictor("r_softmax_expected_f1"), [bce, Predictor("zlpr")], points, "test")
    assert ahead == Mean(1, 0)
    assert str(Mean(81, 1)) == "81.00 ± 1.00"
    assert str(Mean(81, None)) == "81.00"


def test_a_seed_that_lacks_a_point_does_not_count(tmp_path: Path) -> None:
    runs = synthetic.grid(2, synthetic.QUICK)
    comparison = comparison_of(fill(tmp_path, "synthetic.jsonl", runs[:-1]))
    assert comparison.mean(Predictor("zlpr"), comparison.points(), "test") == Mean(78, None)
    assert str(comparison.mean(Predictor("bce"), comparison.points(), "test")) == "80.50 ± 0.71"


@pytest.mark.train
def test_the_report_has_every_table_and_figure(tmp_path: Path) -> None:
    fill(tmp_path, "synthetic.jsonl", synthetic.grid(seeds=2))
    fill(tmp_path, "tabular.jsonl", tabular.grid(["toys", "yeast"], seeds=2))
    written = report_of(tmp_path, tmp_path / "out" / "deep")
    assert [path.name for path in written.files] == [
        "figure2-validation.png", "figure2-test.png", "report.md", "report.html"
    ]  # fmt: skip
    with Image.open(written.files[0]) as image:
        assert image.size[0] > 1500
    text = written.files[2].read_text()
    assert "| **r-softmax, expected F1 (ours)" not in text  # names are not scores
    assert "| r-softmax, expected F1 (ours) | **81.50 ± 0.71** | **81.50 ± 0.71** | **81.50 ± 0.71** |" in text
    assert "| softmax, p0 = 0.05 | 65.50 ± 0.71 |" in text
    assert "| r-softmax, count | 20.0 (2.00) |" in text
    assert "Best or within 0.5 of the best, without a tuned threshold: 2 of 2 datasets (toys, yeast)." in text
    assert "Not the full experiment" not in text
    assert re.findall(r"\| (yes|no|\?) \|", text) == ["yes"] * 7
    html = written.files[3].read_text()
    assert html.count("data:image/png;base64,") == 2
    assert html.count("<table>") == text.count("\n| --- ")
    assert "figure2" not in re.sub(r'alt="[^"]*"', "", html)


@pytest.mark.train
def test_classifiers_as_users_get_them_have_a_table_where_they_were_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, f1 in (("users_micro", 90.0), ("users_bce", 85.0)):
        monkeypatch.setitem(F1, name, f1)
    fill(tmp_path, "synthetic.jsonl", [*synthetic.grid(seeds=1), *synthetic.users_grid(seeds=1)])
    text = report_of(tmp_path, tmp_path).files[2].read_text()
    assert "| micro-F1 | 3 of 30 labels, length 2000 |" in text
    assert '| SparseLabelClassifier(average="micro") (ours) | **90.00** |' in text
    assert '| SparseLabelClassifier(average="micro"), lead over the best other | +5.00 |' in text


def test_claims_are_weighed_by_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(F1, "r_softmax_rate", 61.5)
    monkeypatch.setitem(F1, "bce", 82.0)
    comparison = comparison_of(fill(tmp_path, "synthetic.jsonl", synthetic.grid(1)))
    found = claims(comparison)
    assert [claim.holds for claim in found] == [True, True, False, False, False, False, True]
    assert found[1].numbers == ["+1.50"] * 3
    assert found[2].numbers == ["-0.50"] * 3
    assert found[5].numbers == ["-1.00"] * 3


def test_a_part_of_the_results_gives_a_part_of_the_report(tmp_path: Path) -> None:
    fill(tmp_path, "tabular.jsonl", tabular.grid(["toys"], 1, epochs=10))
    text = report_of(tmp_path, tmp_path).files[0].read_text()
    assert "## Real datasets" in text
    assert "Figure 2" not in text
    assert "**Not the full experiment**: epochs = 10." in text
    records.append(tmp_path / "synthetic.jsonl", made_up(synthetic.Run(method="bce")))
    text = report_of(tmp_path, tmp_path).files[2].read_text()
    assert "| ? |" in text
    assert comparison_of(tmp_path).points() == [Draw(10, 5, 2000)]


def test_full_results_come_before_quick_ones_and_failed_runs_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "synthetic.jsonl", [replace(run, epochs=12) for run in synthetic.grid(1, synthetic.QUICK)])
    fill(tmp_path, "synthetic.jsonl", synthetic.grid(seeds=1)[:9])
    records.append(tmp_path / "synthetic.jsonl", {"run": {"seed": 5}, "error": "lost"})
    notices: list[str] = []
    comparison = comparison_of(tmp_path, notices.append)
    assert (comparison.settings, comparison.seeds, len(comparison.points())) == ({}, [0], 1)
    assert "mixes runs with different settings" in notices[0]


@pytest.mark.parametrize(
    "row",
    [
        {"run": {"method": "bce", "dropout": 0.1}, "rules": {}},  # of a later version
        {"run": {"method": "perfect", "seed": 9}, "rules": {}},
        {"run": {"model": "bert"}, "score": 1.0},  # of another experiment
        {"run": {"method": "bce"}},
        {"run": "bce"},
    ],
    ids=str,
)
def test_rows_that_are_not_of_this_comparison_are_left_out_with_a_notice(row: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path, "synthetic.jsonl", synthetic.grid(seeds=1)[:9])
    records.append(tmp_path / "synthetic.jsonl", row)
    notices: list[str] = []
    comparison = comparison_of(tmp_path, notices.append)
    assert (comparison.settings, comparison.seeds, len(comparison.points())) == ({}, [0], 1)
    assert "1 records are not runs known to this version" in notices[0]


def test_settings_may_be_anything_that_a_row_can_hold(tmp_path: Path) -> None:
    odd = made_up(synthetic.Run(method="bce"))
    odd["run"]["hidden"] = [8, 8]
    records.append(tmp_path / "synthetic.jsonl", odd)
    assert comparison_of(tmp_path).settings == {"hidden": [8, 8]}


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "results", "tabular.jsonl", tabular.grid(["toys"], seeds=1))
    file = tmp_path / "file"
    file.touch()
    shown = rsoftmax("report", "--results", str(tmp_path / "results"), "--out", str(file), code=2)
    assert "File exists" in shown
    assert "File exists" in rsoftmax("reproduce", "synthetic", "--quick", "--out", str(file), code=2)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    fill(tmp_path, "tabular.jsonl", tabular.grid(["odd[/bold]"], seeds=1))
    console = Console(width=200)
    with console.capture() as shown:
        console.print(report_of(tmp_path, tmp_path).sections["tabular"].summary)
    assert "odd[/bold]" in shown.get()


def test_without_results_the_command_says_how_to_get_some(tmp_path: Path) -> None:
    shown = rsoftmax("report", "--results", str(tmp_path), code=2)
    assert "no results in" in shown
    assert "rsoftmax reproduce synthetic --out" in shown
    rsoftmax("report", "--results", str(tmp_path / "nowhere"), code=2)
    assert not (tmp_path / "nowhere").exists()


def test_reproduce_synthetic_ends_with_a_table_and_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"classes": 4, "labels": 2, "length": 50, "samples": 100, "test_samples": 40, "features": 10, "epochs": 2}
    runs = [synthetic.Run(method=method, **small) for method in METHODS]  # type: ignore[arg-type]
    monkeypatch.setattr(synthetic, "grid", lambda seeds, draws: runs)
    words = ["reproduce", "synthetic", "--quick", "--jobs", "1", "--out", str(tmp_path / "new")]
    shown = rsoftmax(*words)
    assert "10 of 10 runs finished, 0.0 min remaining" in shown
    assert "Not the full experiment: a few of its runs (synthetic)" in shown
    assert "Micro-F1 on test" in shown
    report = (tmp_path / "new" / "report" / "report.md").read_text()
    assert report.splitlines()[0] == "# Not the full experiment: a few of its runs (synthetic)"
    assert (tmp_path / "new" / "report" / "figure2-test.png").exists()
    again = rsoftmax(*words)
    assert "10 of 10 runs are already in" in again
    assert rsoftmax("report", "--results", str(tmp_path / "new")).count("wrote") == 4


def test_reproduce_tabular_reads_a_folder_and_survives_a_broken_set(sets: Path, tmp_path: Path) -> None:
    (sets / "thick" / "thick-test.arff").unlink()
    words = ["reproduce", "tabular", "--data", str(sets), "--quick", "--jobs", "1", "--out", str(tmp_path / "new")]
    shown = rsoftmax(*words, "--only", "toys")
    assert "10 of 10 runs finished" in shown
    assert "| set |" in (tmp_path / "new" / "report" / "report.md").read_text()
    shown = rsoftmax(*words, "--only", "thick", code=1)
    assert "thick-test.arff does not exist" in shown
    assert "10 of 10 runs failed; rerun the command to try them again" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabular", "--data", "nowhere"], "the folder 'nowhere' does not exist"),
        (["synthetic", "--quick", "--engine", "spark"], "engine must be one of local, ray, dask, got 'spark'"),
        (["synthetic", "--quick", "--address", "here"], "address='here' needs engine 'ray' or 'dask'"),
        (["synthetic", "--seeds", "0"], "--seeds"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in re.sub(r"[│\s]+", " ", rsoftmax("reproduce", *words, code=2))
    assert not list(tmp_path.iterdir())
