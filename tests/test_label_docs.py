"""What README and docs/labels.md show about labels, run as it stands there, with a small encoder in place of MiniLM."""

import re
import shlex
from pathlib import Path

import pytest
from encoders import LABELS, TEXTS
from typer.testing import CliRunner

from rsoftmax.cli.application import app

ROOT = Path(__file__).parents[1]
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def blocks(path: Path, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in found if not block.startswith((">>>", "make"))]


@pytest.mark.parametrize("page", ["README.md", "docs/labels.md"])
def test_the_page_runs(
    page: str, text_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{text},{';'.join(labels)}" for text, labels in zip(TEXTS, LABELS, strict=True)]
    Path("texts.csv").write_text("\n".join(["text,tags", *lines * 6]) + "\n")
    code = "\n".join(blocks(ROOT / page, "python")).replace(ENCODER, str(text_encoder))
    exec(compile(code, page, "exec"), {})
    assert "[" in capsys.readouterr().out
    commands = [
        line for block in blocks(ROOT / page, "sh") for line in block.splitlines() if line.startswith("rsoftmax")
    ]
    assert len(commands) >= 2
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command.replace(ENCODER, str(text_encoder)))[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}"
