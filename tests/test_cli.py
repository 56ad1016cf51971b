"""The command line, run as a user runs it."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from commands import rsoftmax
from PIL import Image

from rsoftmax import MAPPINGS, __version__
from rsoftmax.cli import LAB


def rejection(*words: str) -> str:
    return rsoftmax(*words, code=2)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, but not rendered, which takes most of the time."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **options: None)


def test_list_shows_every_mapping() -> None:
    shown = rsoftmax("list")
    for name, mapping in MAPPINGS.items():
        assert name in shown
        assert mapping.formula in shown


def test_plot_writes_the_format_of_the_extension(tmp_path: Path) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "b.svg"
    shown = rsoftmax("plot", "--logits", "2,1.5,.3,-1", "--r", "0.5", "--out", str(png))
    assert "r_softmax, r = 0.5" in shown
    assert "0.7514" in shown
    with Image.open(png) as image:
        assert image.format == "PNG"
        assert image.size[0] > 1000
    rsoftmax("plot", "--logits", "3,2,1", "--t", "1.5", "--out", str(svg))
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


@pytest.mark.usefixtures("unrendered")
def test_an_option_of_several_mappings_reaches_all_of_them(tmp_path: Path) -> None:
    shown = rsoftmax("plot", "--logits", "2,1,0,-1", "--k", "2", "--edge", "0", "--out", str(tmp_path / "a.png"))
    for title in ("t_softmax, t = 2, edge = 0", "r_softmax, r = 0.5, edge = 0", "k_softmax, k = 2, edge = 0"):
        assert title in shown
    assert "edge must be >= 0" in rejection("plot", "--edge", "-1")


@pytest.mark.usefixtures("unrendered")
def test_logits_may_start_with_a_minus_sign(tmp_path: Path) -> None:
    for words in (["--logits", "-1,-2e-3,.5"], ["--logits=-1,-2e-3,.5"], ["--logits", "-1, -2e-3, .5"]):
        assert "-0.002" in rsoftmax("plot", *words, "--out", str(tmp_path / "a.png")), words


BAD_WORDS = {
    "--logits 2 x": "Got unexpected extra argument(s) (x)",
    "--logits 2,x": "'2,x' is not a list of finite numbers",
    "--logits nan,1": "'nan,1' is not a list of finite numbers",
    f"--logits {','.join(map(str, range(41)))}": "room for 40 logits, got 41",
    "--r 1.5": "r must be in [0, 1], got 1.5",
    "--t 0": "t must be > 0, got 0.0",
    "--out a.jpeg": "'a.jpeg' must end in .png, .svg or .pdf",
    "--out nowhere/a.png": "the folder 'nowhere' does not exist",
}


def test_bad_options_are_rejected_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, message in BAD_WORDS.items():
        assert message in rejection("plot", *words.split()), words
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    assert "is a folder or cannot be written" in rejection("plot", "--out", str(tmp_path / "folder.png"))


@pytest.mark.process
def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['typer'] = None; from rsoftmax.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "rsoftmax: the command line needs typer; run: pip install 'rsoftmax[cli]'\n"


@pytest.mark.process
def test_a_warning_is_shown_without_its_location() -> None:
    lines = ["import sys, warnings", "from rsoftmax.__main__ import main", "sys.argv[1:] = ['--version']"]
    code = "\n".join([*lines, "try: main()", "except SystemExit: warnings.warn('a word')"])
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: a word\n"


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_output_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() -> None:
    for words in ("list", "list --markdown", "--help"):
        for redirect, message in (
            ("> /dev/full", "rsoftmax: input or output failed: [Errno 28] No space left on device\n"),
            (">&-", "rsoftmax: stdout is closed; redirect it to a file or to /dev/null\n"),
            ("| true", ""),
        ):
            done = subprocess.run(
                f"{sys.executable} -m rsoftmax {words} {redirect}", shell=True, capture_output=True, text=True
            )
            assert (done.stderr, done.returncode) == (message, int(bool(message))), (words, redirect)


def test_the_version_is_that_of_the_package() -> None:
    assert rsoftmax("--version") == f"rsoftmax {__version__}\n"


def test_help_does_not_import_torch() -> None:
    program = """
import sys
from rsoftmax.cli import app
for words in ("--help", "plot --help", "train --help", "predict --help", "--version"):
    try:
        app(words.split())
    except SystemExit as end:
        assert end.code == 0, words
    heavy = {"torch", "numpy", "matplotlib", "transformers", "sklearn", "rsoftmax_lab"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_without_the_lab_its_commands_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())  # as if it were not installed
    for name in LAB:
        message = f"`rsoftmax {name}` is part of rsoftmax-lab; run: pip install rsoftmax-lab"
        assert message in rejection(name, "--quick")


def test_a_parameter_that_no_mapping_has_is_rejected() -> None:
    error = rejection("plot", "--x", "1")
    assert "there is no option --x; the parameters are --t of t_softmax, > 0; --r of r_softmax, in [0, 1]" in error
    assert "'half' is not a number" in rejection("plot", "--r=half")
