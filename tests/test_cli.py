"""The command line, run as a user runs it."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

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


def test_the_version_is_that_of_the_package() -> None:
    assert shown_by("--version") == f"rsoftmax {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["plot", "--help"], ["predict", "--help"], ["--version"]], ids=" ".join)
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
