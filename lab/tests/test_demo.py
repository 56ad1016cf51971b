"""The demo: its points of Figure 2 have the order of all, and every block ends in a sentence with its numbers."""

import csv
import json
from pathlib import Path

import pytest
from commands import rsoftmax

from rsoftmax_lab import demo
from rsoftmax_lab.comparison import BEST_OF_OURS, Comparison
from rsoftmax_lab.experiments import synthetic
from rsoftmax_lab.records import differences, key, read_trials
from rsoftmax_lab.report import Table

RESULTS = Path(__file__).parents[2] / "results"


def ignore(seconds: float) -> None:
    """The progress."""


def test_the_rows_of_figure_2_have_the_order_of_the_full_experiment() -> None:
    full = Comparison.of(read_trials(RESULTS / "synthetic.jsonl", synthetic.Run, pytest.fail).alike(pytest.fail))

    def order(points: list[synthetic.Draw], seed: int | None) -> list[str]:
        one = full if seed is None else Comparison({}, {point: {seed: full.records[point][seed]} for point in points})
        means = {predictor.title: one.mean(predictor, points, "test") for predictor in demo.ROWS}
        return sorted(means, key=lambda title: means[title] or 0)

    assert order([*demo.POINTS], 0) == order(full.points(), None)


def finished(folder: Path) -> Path:
    """A folder in which the runs of Figure 2 are finished, with the committed records."""
    wanted = {key(differences(run)) for run in demo.runs()}
    lines = (RESULTS / "synthetic.jsonl").read_text().splitlines()
    done = [line for line in lines if key(json.loads(line)["run"]) in wanted]
    assert len(done) == len(wanted)
    (folder / "synthetic.jsonl").write_text("\n".join([*done, ""]))
    return folder


def test_finished_runs_of_figure_2_are_not_repeated(tmp_path: Path) -> None:
    block = demo.figure2(finished(tmp_path), ignore)
    assert isinstance(block.shown, Table)
    assert len(block.shown.lines) == len(demo.ROWS) == 8
    scores = {line[0]: float(line[1]) for line in block.shown.lines}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    ours, tuned = scores[demo.TITLES[BEST_OF_OURS]], scores["BCE, threshold tuned"]
    assert f"score {ours:.1f}: {ours - tuned:+.1f} against the best tuned threshold" in block.sentence
    assert (tmp_path / "figure2.png").exists()
    assert [line[2] for line in block.shown.lines].count("yes") == 2


def test_zeros_are_shown_as_zeros(tmp_path: Path) -> None:
    block = demo.mappings(tmp_path, ignore)
    assert isinstance(block.shown, Table)
    assert [line.count("0") for line in block.shown.lines] == [0, 1, 2, 1]
    assert (tmp_path / "mappings.png").exists()


def test_the_texts_are_always_the_same_and_all_kinds_of_labels_occur(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        demo.write_texts(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with paths[0].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == demo.TEXTS
    assert {tag for row in rows for tag in row["tags"].split(";")} == {*demo.PHRASES, ""}


def test_attention_is_timed_by_length_with_its_share_of_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LENGTHS", (16, 512))
    block = demo.attention(tmp_path, ignore)
    assert isinstance(block.shown, Table)
    shares = [int(line[1].rstrip("%")) for line in block.shown.lines]
    assert 0 < shares[0] < shares[1] < 100
    assert "With 512 keys" in block.sentence
    assert (tmp_path / "attention.png").exists()


@pytest.mark.train
def test_the_command_prints_four_blocks_and_what_to_try_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LENGTHS", (16, 32))
    shown = rsoftmax("demo", "--out", str(finished(tmp_path)))
    for text in ("1. Prob", "2. Labels", "3. From texts", "4. Attention", "Figures:", "Try next:", "rsoftmax train"):
        assert text in shown
