"""What README and pages of docs/ show about labels and calibration, run with small models in place of real ones."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from encoders import LABELS, TEXTS
from transformers_models import WORDS, built
from typer.testing import CliRunner

from rsoftmax.cli import app

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(pytest.param(page, marks=pytest.mark.train) for page in ("docs/labels.md", "docs/serving.md"))]
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def blocks(path: Path) -> list[tuple[str, str]]:
    """The language and the text of each block of code; not those that doctest runs."""
    found = re.findall(r"```(python|sh)\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [(language, text) for language, text in found if not text.startswith(">>>")]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(
    page: str, text_encoder: Path, image_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    lines = [f"{text},{';'.join(labels)}" for text, labels in zip(TEXTS, LABELS, strict=True)]
    Path("texts.csv").write_text("\n".join(["text,tags", *lines * 6]) + "\n")
    decoder = tmp_path / "decoder"
    built("llama").save_pretrained(decoder)
    small = {
        "sentence-transformers/all-MiniLM-L6-v2": text_encoder,
        "microsoft/resnet-50": image_encoder,
        "HuggingFaceTB/SmolLM2-135M": decoder,
    }
    batches = [{"input_ids": torch.randint(5, WORDS, (4, 16))} for _ in range(32)]
    names: dict[str, object] = {"batches": batches, "ids": batches[0]["input_ids"][:, :4]}  # README: a reader's own
    commands = 0
    for language, text in blocks(ROOT / page):
        for encoder, folder in small.items():
            text = text.replace(encoder, str(folder))
        if language == "python":
            exec(compile(text, page, "exec"), names)
            continue
        for command in re.findall("^rsoftmax .*", text, flags=re.MULTILINE):
            done = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
            assert done.exit_code == 0, f"{command}\n{done.output}"
            commands += 1
    assert capsys.readouterr().out
    assert commands >= 2
