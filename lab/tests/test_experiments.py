"""The table of experiments: what each entry promises, what follows from it, and the committed results."""

import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rsoftmax_lab import experiments
from rsoftmax_lab.commands import reproduce
from rsoftmax_lab.experiments import EXPERIMENTS
from rsoftmax_lab.experiments.experiment import Experiment
from rsoftmax_lab.report.write import write
from rsoftmax_lab.running import journal, rows
from rsoftmax_lab.running.runs import BaseRun, differences, key

RESULTS = Path(__file__).parents[2] / "results"
COMMANDS = [command for one in EXPERIMENTS.values() for command in one.commands]
FILES = [(name, command) for name, one in EXPERIMENTS.items() if not one.shows for command in one.commands]


def run_type(folder: str) -> type[BaseRun]:
    kind: type[BaseRun] = import_module(f"rsoftmax_lab.experiments.{folder}.grid").Run
    return kind


def test_the_table_has_a_row_for_every_folder() -> None:
    folders = {path.parent.name for path in Path(*experiments.__path__).glob("*/grid.py")}
    assert folders == {one.folder for one in EXPERIMENTS.values()} == EXPERIMENTS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_the_files_that_are_promised(name: str) -> None:
    package = f"rsoftmax_lab.experiments.{name}"
    assert import_module(package).__doc__
    shared = {"text": "rsoftmax_lab.experiments.goemotions"}  # the reader of several experiments
    if not EXPERIMENTS[name].shows:
        import_module(shared.get(name, f"{package}.data"))
        import_module(f"{package}.run")
    assert callable(import_module(f"{package}.section").section)
    assert (files(package) / "template.md.jinja").is_file()
    assert {"grid", "quick_grid"} <= vars(import_module(f"{package}.grid")).keys()
    for command in EXPERIMENTS[name].commands:
        assert EXPERIMENTS[name].command(command).__doc__


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_says_what_it_is_done_on_and_what_is_compared_there(name: str) -> None:
    kind = run_type(name)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    assert kind.PLACE
    assert {*kind.PLACE, *kind.VARIED} < known
    assert not {*kind.PLACE} & {*kind.VARIED}
    assert kind.REQUIRED


@pytest.mark.parametrize(("name", "command"), FILES)
def test_every_committed_row_is_known_and_keeps_its_name(name: str, command: str) -> None:
    path = RESULTS / f"{command}.jsonl"
    done = rows.finished(journal.read(path, pytest.fail))
    found = rows.read(path, run_type(name), pytest.fail)
    assert [key(differences(trial.run)) for trial in found] == list(done)
    assert len(found) > 0


@pytest.mark.train
def test_the_committed_report_is_what_the_committed_rows_give(tmp_path: Path) -> None:
    write(EXPERIMENTS, RESULTS, tmp_path, pytest.fail)
    assert (tmp_path / "report.md").read_text() == (RESULTS / "report" / "report.md").read_text()


TOY = {
    "__init__.py": '"""A toy."""',
    "grid.py": """
from dataclasses import dataclass
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun

@dataclass(frozen=True)
class Run(BaseRun):
    VARIED = ("number",)
    REQUIRED = {"square": schema.number}
    number: int = 0
""",
    "run.py": "def run(run): return {'square': run.number**2}",
    "command.py": """
from typing import Annotated
import typer
from rsoftmax_lab.running.options import Sweep

def squares(upto: Annotated[int, typer.Option(help="The last number.")], *, sweep: Sweep) -> None:
    "Squares of numbers."
    from rsoftmax_lab.experiments.toy.grid import Run
    from rsoftmax_lab.experiments.toy.run import run
    sweep.do("squares", [Run(number) for number in range(upto + 1)], run)
""",
    "section.py": """
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Table
from rsoftmax_lab.report.write import Section

def section(found, out, notice):
    table = Table(["number", "square"], [[str(run.number), str(row["square"])] for run, row in found["squares"]])
    return Section(render(__package__, table=table), table.rich("Squares"), [])
""",
    "template.md.jinja": "## Squares\n\n{{ table }}\n",
}


def test_an_experiment_is_added_by_its_folder_and_a_row_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy").mkdir()
    for name, text in TOY.items():
        (tmp_path / "toy" / name).write_text(text)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    app = reproduce.commands(EXPERIMENTS | {"toy": Experiment("toy", commands=("squares",))})
    words = ["squares", "--upto", "3", "--jobs", "1", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "4 of 4 runs finished" in shown.output
    assert "Squares" in shown.output
    assert "| 3 | 9 |" in (tmp_path / "out" / "report" / "report.md").read_text()
    assert "4 of 4 runs are already in" in CliRunner().invoke(app, words).output
    assert "Squares of numbers." in CliRunner().invoke(app, ["--help"]).output


def test_help_is_shown_without_anything_heavy() -> None:
    program = f"""
import sys
from typer.testing import CliRunner
from rsoftmax_lab.commands import reproduce
from rsoftmax_lab.experiments import EXPERIMENTS
for words in ([], {", ".join(f"['{command}']" for command in COMMANDS)}):
    shown = CliRunner().invoke(reproduce.commands(EXPERIMENTS), [*words, "--help"])
    assert shown.exit_code == 0, shown.output
heavy = {{"joblib", "matplotlib", "numpy", "sklearn", "torch", "transformers"}}
sys.exit(", ".join(heavy & sys.modules.keys()) or None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def read_toy(path: Path, *written: dict[str, Any]) -> tuple[rows.Trials[Any], list[str]]:
    for row in written:
        journal.append(path, row)
    notices: list[str] = []
    return rows.read(path, run_type("tabular"), notices.append).alike(notices.append), notices


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
    assert EXPERIMENTS["tabular"].section(tmp_path, tmp_path, pytest.fail) is None


@pytest.mark.parametrize(("name", "command"), FILES)
def test_a_row_without_what_a_finished_run_answers_is_left_out(name: str, command: str, tmp_path: Path) -> None:
    whole = next(iter(rows.finished(journal.read(RESULTS / f"{command}.jsonl", pytest.fail)).values()))
    for answer in run_type(name).REQUIRED:
        path = tmp_path / answer
        journal.append(path, {part: value for part, value in whole.items() if part != answer})
        notices: list[str] = []
        assert len(rows.read(path, run_type(name), notices.append)) == 0
        assert "1 rows are not runs known to this version" in notices[0]
