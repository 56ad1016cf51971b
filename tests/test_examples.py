"""Every example runs, in a process and an empty folder of its own; the services are asked as users ask them."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from encoders import LABELS, TEXTS
from servers import served
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax.labels import EncoderModel

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))
TAKES_AN_ENCODER = "03_sparse_encoder_fine_tuned_and_timed.py"  # MiniLM's size takes half a minute
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def run(folder: Path, script: Path, *arguments: object) -> str:
    words = [sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_example_runs_and_prints_what_it_found(script: str, text_encoder: Path, tmp_path: Path) -> None:
    assert run(tmp_path, EXAMPLES / script, *[text_encoder] * (script == TAKES_AN_ENCODER))


@pytest.fixture(scope="module")
def model(text_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `rsoftmax train` wrote."""
    folder = tmp_path_factory.mktemp("served")
    rows = [f"{text},{';'.join(labels)}" for text, labels in zip(TEXTS, LABELS, strict=True)]
    (folder / "texts.csv").write_text("\n".join(["text,tags", *rows * 6]))
    words = f"train {folder}/texts.csv --text text --labels tags --out {folder}/model --encoder {text_encoder}"
    words += " --max-tokens 24"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    return folder / "model"


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[httpx.Client]:
    words = [sys.executable, "-m", "uvicorn", "labels_by_http:app", "--app-dir", str(EXAMPLES / "serving")]
    with served(words, MODEL=str(model)) as address, httpx.Client(base_url=address, timeout=600) as client:
        yield client


@pytest.mark.process
def test_the_service_answers_what_the_model_says(client: httpx.Client, model: Path) -> None:
    loaded = EncoderModel.from_pretrained(model)
    assert client.get("/labels").json() == loaded.names
    answers = client.post("/predict", json={"texts": TEXTS}).json()
    for answer, chosen, every in zip(
        answers, loaded.predict(TEXTS), loaded.predict(TEXTS, every_label=True), strict=True
    ):
        assert set(answer["labels"]) == set(chosen)
        assert answer["marginals"] == pytest.approx(every, abs=1e-6)


@pytest.mark.process
def test_the_service_answers_no_texts_with_no_labels_and_refuses_what_is_no_list_of_texts(client: httpx.Client) -> None:
    assert client.post("/predict", json={"texts": []}).json() == []
    for wrong in ("I love it", [1, 2], ["so"] * 33, "\ud800", ["\ud800"]):
        body, as_json = json.dumps({"texts": wrong}), {"content-type": "application/json"}
        assert client.post("/predict", content=body, headers=as_json).status_code == 422, body[:40]


@pytest.mark.process
def test_the_service_refuses_a_body_that_is_large_or_of_unknown_size(client: httpx.Client) -> None:
    as_json = {"content-type": "application/json"}
    for size, status in ((1 << 17, 200), ((1 << 17) + 1, 413), (20 << 20, 413)):
        body = json.dumps({"texts": ["so"]}).ljust(size).encode()
        assert client.post("/predict", content=body, headers=as_json).status_code == status, size
    assert client.post("/predict", content=iter([body]), headers=as_json).status_code == 411


@pytest.mark.process
def test_the_service_says_which_texts_are_truncated(client: httpx.Client) -> None:
    answers = client.post("/predict", json={"texts": ["so", "so " * 1000]}).json()
    assert [answer["truncated"] for answer in answers] == [False, True]


@pytest.mark.process
def test_the_exported_file_answers_without_torch(model: Path, tmp_path: Path) -> None:
    exported = CliRunner().invoke(app, ["export", str(model), "--onnx", str(tmp_path / "labels.onnx")])
    assert exported.exit_code == 0, exported.output
    said = run(tmp_path, EXAMPLES / "serving" / "onnx_in_ten_lines.py", "labels.onnx", model, *TEXTS).splitlines()
    for text, line, found in zip(TEXTS, said, EncoderModel.from_pretrained(model).predict(TEXTS), strict=True):
        assert ast.literal_eval(line.removeprefix(f"{text} ")) == pytest.approx(found, abs=2e-3)
