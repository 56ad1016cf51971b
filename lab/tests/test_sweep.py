"""Sweeps that are killed, interrupted and started again, and the file of their records."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import pytest
import squares
from rich.console import Console
from squares import Square, gate_of, square

from rsoftmax_lab import records
from rsoftmax_lab.records import differences, key
from rsoftmax_lab.sweep import Sweep, sweep


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def start(path: Path, engine: str = "local", free: int = 8, *outcomes: str) -> subprocess.Popen[str]:
    program = [sys.executable, squares.__file__, str(path), engine, str(free), *outcomes]
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


@pytest.fixture(autouse=True)
def nobody_has_said_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests say of all processes; here the sweep itself has to say it to its workers."""
    monkeypatch.delenv("OMP_NUM_THREADS")


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def wait_for_rows(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, process)


def rows_of(path: Path) -> list[dict[str, Any]]:
    notices: list[str] = []
    rows = records.read(path, notices.append)
    assert not notices
    return rows


def test_a_run_is_named_by_what_it_differs_in() -> None:
    assert differences(Square()) == {}
    assert differences(Square(number=3, gate="")) == {"number": 3}
    assert key({"b": 1, "a": 2}) == key({"a": 2, "b": 1})


def test_rows_come_back_in_the_order_of_the_grid_and_are_not_done_twice(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "rows.jsonl"
    first = sweep([Square(2), Square(3)], square, path, jobs=1, console=quiet())
    again = sweep([Square(4), Square(3), Square(2), Square(3)], square, path, jobs=1, console=quiet())
    assert [row["square"] for row in again] == [16, 9, 4]
    assert again[1:] == first[::-1]
    assert len(rows_of(path)) == 3


@pytest.mark.parametrize("outcome", ["raises", "answers nonsense"])
def test_a_failing_run_is_recorded_and_tried_again(outcome: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    grid = [Square(1), Square(2, outcome=outcome), Square(3)]
    console = Console(width=200, force_terminal=False)
    with console.capture() as shown:
        rows = sweep(grid, square, path, jobs=1, console=console)
    assert [row["square"] for row in rows] == [1, 9]
    assert "1 of 3 runs failed; rerun the command to try them again" in shown.get()
    assert ("too square: [rows, 4] [/x]" in shown.get()) == (outcome == "raises")
    (failed,) = [row for row in rows_of(path) if "error" in row]
    assert failed["run"] == {"number": 2, "outcome": outcome}
    assert failed["error"].startswith("ArithmeticError: too square" if outcome == "raises" else "ValueError")
    assert "Traceback" in failed["traceback"]
    mended = sweep(grid, lambda run: {"square": run.number**2}, path, jobs=1, console=quiet())
    assert [row["square"] for row in mended] == [1, 4, 9]
    assert len(rows_of(path)) == 4


@pytest.mark.process
def test_a_worker_that_dies_costs_its_own_run_only_and_every_worker_has_one_thread(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    grid = [Square(1), Square(2), Square(3, outcome="dies"), Square(4), Square(5)]
    rows = sweep(grid, square, path, jobs=2, console=quiet())
    assert [row["square"] for row in rows] == [1, 4, 16, 25]
    (failed,) = [row for row in rows_of(path) if "error" in row]
    assert failed["run"] == {"number": 3, "outcome": "dies"}
    assert failed["error"] == "the worker died (TerminatedWorkerError)"
    assert {(row["threads"], row["omp"]) for row in rows} == {(1, "1")}
    assert os.getpid() not in {row["process"] for row in rows}


@pytest.mark.process
def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    process = start(path, free=3)
    wait_for_rows(path, 3, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = rows_of(path)
    assert len(before) == 3
    with path.open("a") as file:
        file.write('{"run": {"number": 8, "sec')  # as if the kill had hit a write
    gate_of(path).touch()
    shown = start(path, free=3).communicate()[0]
    assert "line 4 is not a complete record" in " ".join(shown.split())
    assert "3 of 8 runs are already in" in shown
    notices: list[str] = []
    rows = records.read(path, notices.append)
    assert len(notices) == 1
    assert rows[:3] == before
    assert sorted(row["square"] for row in rows) == [n**2 for n in range(1, 9)]


@pytest.mark.process
def test_control_c_stops_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    process = start(path, free=2)
    wait_for_rows(path, 2, process)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes of the command
    shown = process.communicate()[0]
    assert process.returncode == 130
    assert len(rows_of(path)) == 2
    assert f"stopped; 2 of 8 runs are in {path}; rerun the command to resume" in shown
    assert not re.search("Traceback|still being processed", shown)


@pytest.mark.parametrize("torn", ['{"run": {"a', '{"[/a]', '{"run": {}, "text": "ą'[:-1] + "\udcc4", "7", "{}x"])
def test_a_torn_line_is_skipped_and_the_others_are_read(torn: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.append(path, {"run": {"number": 1}})
    with path.open("ab") as file:
        file.write(torn.encode(errors="surrogateescape"))
    records.append(path, {"run": {"number": 2}})
    records.append(path, {"run": {"number": 3}})
    notices: list[str] = []
    assert [row["run"]["number"] for row in records.read(path, notices.append)] == [1, 2, 3]
    (notice,) = notices
    assert f"{path}, line 2 is not a complete record" in notice
    console = Console(width=200)
    with console.capture() as shown:
        sweep([], square, path, console=console)
    assert repr(torn)[:10] in shown.get()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    records.append(path, {"run": {"number": 1}})
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    with pytest.raises(OSError, match="no space left for a record"):
        records.append(path, {"run": {"number": 2}})
    assert path.read_bytes() == before


def test_a_run_that_exits_in_this_process_leaves_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = sweep([Square(outcome="exits"), Square(2)], square, path, jobs=1, console=quiet())
    assert [row["square"] for row in rows] == [4]
    assert [row["error"] for row in rows_of(path) if "error" in row] == ["SystemExit: 3"]


def test_a_whole_number_is_the_same_run_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = sweep([Square(2)], lambda run: {"square": 4}, path, jobs=1, console=quiet())
    assert first == sweep([Square(2.0)], lambda run: {"square": 5}, path, jobs=1, console=quiet())
    assert key({"epochs": 5.5, "on": True, "hidden": [8.0]}) == '{"epochs": 5.5, "hidden": [8], "on": true}'


def test_a_run_that_is_asked_for_twice_is_done_once_and_is_no_failure(tmp_path: Path) -> None:
    Sweep(out=tmp_path, jobs=1).do("squares", [Square(3), Square(3)], square)
    assert [row["square"] for row in rows_of(tmp_path / "squares.jsonl")] == [9]


def test_a_name_that_is_not_utf8_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.append(path, {"run": {"dataset": "caf\udce9", "other": "naïve"}})
    path.read_text(encoding="utf-8")
    assert rows_of(path) == [{"run": {"dataset": "caf\udce9", "other": "naïve"}}]


@pytest.mark.parametrize("levels", [30, 980, 100_000])
def test_a_row_that_is_nested_deeply_is_skipped(levels: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.append(path, {"run": {"number": 1}})
    with path.open("a") as file:
        file.write('{"run": {"number": ' + "[" * levels + "]" * levels + "}}\n")
    notices: list[str] = []
    assert len(records.read(path, notices.append)) == 1
    assert len(notices) == 1


@pytest.mark.parametrize(("engine", "module"), [("ray", "ray"), ("dask", "dask.distributed")])
def test_a_missing_engine_says_what_to_install(
    engine: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {module}; run: pip install 'rsoftmax-lab\[{engine}\]'"):
        sweep([Square(1)], square, tmp_path / "rows.jsonl", engine=engine, console=quiet())


@pytest.mark.cluster
def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(ValueError, match=r"no dask cluster responds at 'tcp://127\.0\.0\.1:9'"),
    ):
        sweep(
            [Square(1)],
            square,
            tmp_path / "rows.jsonl",
            engine="dask",
            address="tcp://127.0.0.1:9",
            console=quiet(),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine must be one of local, ray, dask, got 'spark'"),
        ({"address": "tcp://here:1"}, "address='tcp://here:1' needs engine 'ray' or 'dask'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        sweep([Square(1)], square, tmp_path / "new" / "rows.jsonl", console=quiet(), **options)
    assert not (tmp_path / "new").exists()


def test_a_run_that_does_anything_in_a_process_leaves_a_record(tmp_path: Path) -> None:
    """The one test of processes in the short suite."""
    path = tmp_path / "rows.jsonl"
    process = start(path, "local", 8, "dies", "exits", "interrupts", "raises")
    shown = process.communicate()[0]
    assert process.returncode == 0, shown
    rows = [row for row in rows_of(path) if "error" not in row]
    errors = {row["run"]["outcome"]: row["error"] for row in rows_of(path) if "error" in row}
    assert sorted(row["square"] for row in rows) == [n**2 for n in range(1, 9)]
    assert len(rows_of(path)) == 12
    assert {row["threads"] for row in rows} == {1}
    assert process.pid not in {row["process"] for row in rows}
    assert errors.pop("dies").startswith("the worker died (")
    assert errors == {
        "exits": "SystemExit: 3",
        "interrupts": "KeyboardInterrupt: no key was pressed",
        "raises": "ArithmeticError: too square: [rows, 4] [/x]",
    }
    assert "4 of 12 runs failed" in shown


@pytest.mark.cluster
@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_cluster_gives_a_record_for_each_run(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    process = start(path, engine, 8, "raises")
    shown = process.communicate()[0]
    assert process.returncode == 0, shown
    assert sorted(row["square"] for row in rows_of(path) if "error" not in row) == [n**2 for n in range(1, 9)]
    assert [row["error"] for row in rows_of(path) if "error" in row] == ["ArithmeticError: too square: [rows, 4] [/x]"]
    assert "1 of 9 runs failed" in shown


@pytest.mark.process
def test_a_second_sweep_on_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = start(path, "local", 1)
    wait_for_rows(path, 1, first)
    with pytest.raises(OSError, match="another program is writing"):
        sweep([Square(9)], square, path, jobs=1, console=quiet())
    gate_of(path).touch()
    assert first.communicate()[0].endswith("\n")
    assert len(rows_of(path)) == 8
