"""The table of experiments: what each module promises, what follows from it, and the committed results."""

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rsoftmax_lab import commands, experiments, records
from rsoftmax_lab.comparison import ITS_NETWORK_TUNED, PREDICTORS, Comparison
from rsoftmax_lab.experiments import (
    COMMANDS,
    glue,
    images,
    lengths,
    load,
    load_all,
    rates,
    synthetic,
    tabular,
    users,
)
from rsoftmax_lab.records import BaseRun, Trials, differences, finished, key, read_trials
from rsoftmax_lab.report import write

RESULTS = Path(__file__).parents[2] / "results"
FILES = [name for name in COMMANDS if name != "rates"]  # whose runs are glue's


def run_type(command: str) -> type[BaseRun]:
    kind: type[BaseRun] = load(command).Run
    return kind


def test_the_table_lists_every_experiment() -> None:
    files = {path.stem for path in Path(*experiments.__path__).glob("*.py")}
    assert files - {"__init__", "trainer", "images_finetune"} == load_all().keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_experiment_has_the_parts_that_are_promised(command: str) -> None:
    module = load(command)
    assert module.__doc__
    for name in ("main", "report", "grid")[: 2 if command in ("guarantees", "pretrained") else 3]:
        assert getattr(module, name).__doc__, name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_says_what_it_is_done_on_and_what_is_compared_there(command: str) -> None:
    kind = run_type(command)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    assert kind.DATA
    assert {*kind.DATA, *kind.VARIED} <= known
    assert not {*kind.DATA} & {*kind.VARIED}
    assert kind.SCHEMA


@pytest.mark.parametrize("command", FILES)
def test_every_committed_record_is_known_and_keeps_its_name(command: str) -> None:
    path = RESULTS / f"{command}.jsonl"
    done = finished(records.read(path, pytest.fail))
    found = read_trials(path, run_type(command), pytest.fail)
    assert [key(differences(trial.run)) for trial in found] == list(done)
    assert len(found) > 0


@pytest.mark.train
def test_the_numbers_of_the_committed_report_follow_from_the_committed_records(tmp_path: Path) -> None:
    write(load_all(), RESULTS, tmp_path, pytest.fail)
    new, committed = ((folder / "report.md").read_text() for folder in (tmp_path, RESULTS / "report"))
    numbers, expected = (re.findall(r"[-+]?\d+\.\d+", text) for text in (new, committed))
    assert len(numbers) > 5000
    assert numbers == expected
    headings = [re.findall("^#+ .*", text, re.MULTILINE) for text in (new, committed)]
    assert len(headings[0]) == len(headings[1])


TOY = """
"A toy."
from dataclasses import dataclass
from typing import Annotated
import typer
from rsoftmax_lab.records import BaseRun, number, read_trials
from rsoftmax_lab.report import Section, Table, paragraphs
from rsoftmax_lab.sweep import Jobs, Out, Sweep

@dataclass(frozen=True)
class Run(BaseRun):
    VARIED = ("number",)
    SCHEMA = {"square": number}
    number: int = 0

def main(upto: Annotated[int, typer.Option()], out: Out = None, jobs: Jobs = None):
    return Sweep(out=out, jobs=jobs).do("squares", [Run(n) for n in range(upto + 1)], run)

def run(run):
    return {"square": run.number**2}

def report(results, out, notice):
    trials = read_trials(results / "squares.jsonl", Run, notice)
    table = Table(["number", "square"], [[str(run.number), str(record["square"])] for run, record in trials])
    return Section(paragraphs("## Squares", table), table.rich("Squares")) if trials else None
"""


def test_an_experiment_is_added_by_its_file_and_a_line_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squares.py").write_text(TOY)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    monkeypatch.setitem(COMMANDS, "squares", "Squares of numbers.")
    app = typer.Typer(cls=commands._Experiments)
    for name, text in COMMANDS.items():
        app.command(name, help=text)(lambda: None)
    words = ["squares", "--upto", "3", "--jobs", "1", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "4 of 4 runs finished" in shown.output
    assert "Squares" in shown.output
    assert "| 3 | 9 |" in (tmp_path / "out" / "report" / "report.md").read_text()
    assert "4 of 4 runs are already in" in CliRunner().invoke(app, words).output
    assert "Squares of numbers." in CliRunner().invoke(app, ["--help"]).output


def test_the_list_of_commands_is_shown_without_anything_heavy() -> None:
    program = """
import sys
from typer.testing import CliRunner
from rsoftmax_lab.commands import reproduce
shown = CliRunner().invoke(reproduce, ["--help"])
assert shown.exit_code == 0, shown.output
assert "Figure 2" in shown.output
heavy = {"joblib", "matplotlib", "numpy", "sklearn", "torch", "transformers"}
sys.exit(", ".join(heavy & sys.modules.keys()) or None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_its_options(command: str) -> None:
    shown = CliRunner().invoke(commands.reproduce, [command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    for option in ("--quick", "--out", "--jobs", "--engine", "--address"):
        assert option in shown.output


def test_the_quick_points_of_figure_2_have_the_order_and_the_verdicts_of_all_points() -> None:
    full = Comparison.of(read_trials(RESULTS / "synthetic.jsonl", synthetic.Run, pytest.fail).alike(pytest.fail))
    quick = replace(full, records={point: {0: full.records[point][0]} for point in synthetic.QUICK})
    shown = [p for p in PREDICTORS if p.rule in ("labels", "tuned", "p0=0.05") and p != ITS_NETWORK_TUNED]
    orders = [sorted(shown, key=lambda p: one.mean(p, one.points(), "test") or 0) for one in (full, quick)]
    assert orders[0] == orders[1]
    verdicts = [[claim.holds for claim in synthetic.claims(one)] for one in (full, quick)]
    assert verdicts[0] == verdicts[1]


def test_quick_runs_are_among_the_full_ones() -> None:
    assert set(synthetic.grid(1, synthetic.QUICK)) < set(synthetic.grid())
    assert set(lengths.grid(lengths.QUICK, 1)) < set(lengths.grid())
    assert set(glue.quick_grid()) < set(glue.grid())
    assert set(rates.quick_grid()) < set(rates.grid())
    assert set(images.quick_grid(dataset="voc")) < set(images.grid(dataset="voc"))
    assert set(users.grid(["birds"], 1, users.QUICK)) < set(users.grid(["birds", "scene"]))
    assert set(tabular.grid(["birds"], 1)) < set(tabular.grid(["birds", "scene"]))


def read_toy(path: Path, *written: dict[str, Any]) -> tuple[Trials[Any], list[str]]:
    for row in written:
        records.append(path, row)
    notices: list[str] = []
    return read_trials(path, run_type("tabular"), notices.append).alike(notices.append), notices


def row(dataset: str, method: str = "softmax", **settings: Any) -> dict[str, Any]:
    return {"run": {"dataset": dataset, "method": method, **settings}, "epoch_seconds": 1.0, "rules": {}}


def test_of_different_settings_those_on_most_sets_are_shown_and_the_papers_first(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    many, notices = read_toy(path, row("a", epochs=1), row("a", "bce", epochs=1), row("a", "zlpr", epochs=1))
    assert (many.settings, len(many), notices) == ({"epochs": 1}, 3, [])
    wide, notices = read_toy(path, row("a", epochs=2), row("b", epochs=2))
    assert (wide.settings, len(wide)) == ({"epochs": 2}, 2)
    assert notices == [f"{path} mixes runs with different settings; showing those with {{'epochs': 2}}"]
    full, notices = read_toy(path, row("c"))
    assert (full.settings, len(full)) == ({}, 1)
    assert notices == [f"{path} mixes runs with different settings; showing those with the paper's settings"]


def test_a_file_without_rows_has_no_trials(tmp_path: Path) -> None:
    found, notices = read_toy(tmp_path / "none.jsonl")
    assert (len(found), notices) == (0, [])
    assert load("tabular").report(tmp_path, tmp_path, pytest.fail) is None


@pytest.mark.parametrize("command", FILES)
def test_a_record_without_a_required_field_is_left_out(command: str, tmp_path: Path) -> None:
    whole = next(iter(finished(records.read(RESULTS / f"{command}.jsonl", pytest.fail)).values()))
    for field in (name for name in run_type(command).SCHEMA if not name.endswith("?")):
        path = tmp_path / field
        records.append(path, {name: value for name, value in whole.items() if name != field})
        notices: list[str] = []
        assert len(read_trials(path, run_type(command), notices.append)) == 0
        assert "1 records are not runs known to this version" in notices[0]
