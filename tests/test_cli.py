"""The command line, run as a user runs it."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rsoftmax import MAPPINGS, __version__
from rsoftmax.cli.application import LAB, app


def shown_by(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_list_shows_every_mapping() -> None:
    shown = shown_by("list")
    for name, mapping in MAPPINGS.items():
        assert name in shown
        assert mapping.formula in shown


def test_plot_writes_what_the_ending_says(tmp_path: Path) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "b.svg"
    shown = shown_by("plot", "--logits", "2", "1.5", ".3", "-1", "--r", "0.5", "--out", str(png))
    assert "r_softmax, r = 0.5" in shown
    assert "0.7514" in shown
    with Image.open(png) as picture:
        assert picture.format == "PNG"
        assert picture.size[0] > 1000
    shown_by("plot", "--logits", "3,2,1", "--t", "1.5", "--out", str(svg))
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def save_predictions(path: Path, power: float) -> str:
    random = np.random.default_rng(0)
    marginals = random.random((500, 4))
    np.savez(path, marginals=marginals**power, targets=random.random((500, 4)) < marginals)
    return str(path)


def test_plot_calibration_draws_files_of_predictions_side_by_side(tmp_path: Path) -> None:
    files = [save_predictions(tmp_path / f"{name}.npz", power) for name, power in (("right", 1), ("a $hy_1$ one", 3))]
    shown = shown_by("plot", "calibration", *files, "--out", str(tmp_path / "a.png"))
    right, shy = (float(line.split("error ")[1].split(",")[0]) for line in shown.splitlines()[:2])
    assert right < 0.05 < 0.2 < shy
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[1] > 800


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"marginals": [0.5]}, "targets is not a file in the archive"),
        ({"marginals": [0.5], "targets": [1, 0]}, "marginals [1] and labels [2] must have one shape"),
        ({"marginals": [3.5], "targets": [1]}, "marginals must be from 0 to 1"),
        ({"marginals": [0.5], "targets": ["yes"]}, "could not convert string to float"),
        ({"marginals": np.array([None]), "targets": [1]}, "Object arrays cannot be loaded"),
    ],
    ids=str,
)
def test_a_file_that_holds_no_predictions_is_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    said = refusal("plot", "calibration", str(tmp_path / "a.npz"), "--out", str(tmp_path / "a.png"))
    assert message in said
    assert "np.savez(FILE, marginals=..., targets=...) writes such a file" in said
    assert not (tmp_path / "a.png").exists()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name, content in (("text.npz", b"marginals"), ("torn.npz", b"PK\x03\x04"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        assert "np.savez(FILE, " in refusal("plot", "calibration", str(tmp_path / name))
    np.save(tmp_path / "one.npy", np.ones(3))
    assert "np.savez(FILE, " in refusal("plot", "calibration", str(tmp_path / "one.npy"))
    assert "No such file" in refusal("plot", "calibration", str(tmp_path / "nowhere.npz"))


def test_plot_lists_what_can_be_drawn_and_draws_mappings_by_itself(tmp_path: Path) -> None:
    assert "calibration" in shown_by("plot", "--help")
    assert "--logits" in shown_by("plot", "mappings", "--help")
    same = [shown_by("plot", *words, "--out", str(tmp_path / "a.png")) for words in ([], ["mappings"])]
    assert same[0] == same[1]


@pytest.mark.parametrize("logits", [["-1", "-2e-3", ".5"], ["-1,-2e-3,.5"], ["-1", "-2e-3,.5"]], ids=str)
def test_logits_may_be_written_as_people_write_them(logits: list[str], tmp_path: Path) -> None:
    assert "-0.002" in shown_by("plot", "--logits", *logits, "--out", str(tmp_path / "a.png"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--logits", "2", "x"], "Got unexpected extra argument(s) (x)"),
        (["--logits", "2,x"], "'2,x' is not a list of numbers"),
        (["--logits", "nan", "1"], "'nan,1' is not a list of numbers"),
        (["--logits", *map(str, range(41))], "room for 40 scores, got 41"),
        (["--r", "1.5"], "r must be in [0, 1], got 1.5"),
        (["--t", "0"], "t must be > 0, got 0.0"),
        (["--out", "a.jpeg"], "'a.jpeg' must end in .png, .svg or .pdf"),
        (["--out", "nowhere/a.png"], "the folder 'nowhere' does not exist"),
    ],
)
def test_bad_words_are_refused_and_nothing_is_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refusal("plot", *words)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    assert "Is a directory" in refusal("plot", "--out", str(tmp_path / "folder.png"))


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['typer'] = None; from rsoftmax.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "rsoftmax: the command line needs typer; run: pip install 'rsoftmax[cli]'\n"


def test_a_warning_is_shown_without_the_place_in_the_code() -> None:
    lines = ["import sys, warnings", "from rsoftmax.__main__ import main", "sys.argv[1:] = ['--version']"]
    code = "\n".join([*lines, "try: main()", "except SystemExit: warnings.warn('a word')"])
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: a word\n"


def test_the_version_is_that_of_the_package() -> None:
    assert shown_by("--version") == f"rsoftmax {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [["--help"], ["plot", "--help"], ["plot", "calibration", "--help"], ["predict", "--help"], ["--version"]],
    ids=" ".join,
)
def test_help_does_not_wait_for_torch(words: list[str]) -> None:
    program = f"""
import sys
from rsoftmax.cli.application import app
try:
    app({words!r})
except SystemExit as end:
    assert end.code == 0
heavy = {{"torch", "numpy", "matplotlib", "transformers", "sklearn", "rsoftmax_lab"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", LAB)
def test_without_the_laboratory_its_commands_say_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())  # as if nothing were installed beside
    assert f"`rsoftmax {name}` comes with the laboratory; run: pip install rsoftmax-lab" in refusal(name, "--quick")


def test_a_parameter_that_no_mapping_has_is_refused() -> None:
    said = refusal("plot", "--x", "1")
    assert "there is no option --x; the parameters are --t of t_softmax, > 0; --r of r_softmax, in [0, 1]" in said
    assert "'half' is not a number" in refusal("plot", "--r=half")
