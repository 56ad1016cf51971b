"""``rsoftmax app`` in a browser: start the command, move sliders, type texts, read the results."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browsers import PATIENCE, page_of, playwright
from encoders import LABELS, NAMES, TEXTS
from servers import served

from rsoftmax.labels import EncoderModel, TrainingOptions

pytest.importorskip("gradio", reason="the page needs gradio; `make browser` installs it")
QUICK: dict[str, Any] = {
    "n_estimators": 2,
    "training": TrainingOptions(max_epochs=40, lr=1e-2),
    "hidden_layer_sizes": (16,),
    "verbose": False,
}
pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
expect = playwright.expect


@pytest.fixture(scope="module")
def model(text_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("page") / "model"
    EncoderModel.from_encoder(text_encoder, NAMES, "macro").fit(TEXTS * 6, LABELS * 6, **QUICK).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    with served([sys.executable, "-m", "rsoftmax", "app", "--model", str(model)]) as at:
        yield at


@pytest.fixture
def opened(address: str) -> Iterator[Any]:
    with page_of(address) as page:
        yield page


def test_a_port_in_use_is_rejected(address: str) -> None:
    words = [sys.executable, "-m", "rsoftmax", "app", "--port", address.split(":")[-1]]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is in use; choose another one" in done.stderr


def line(view: Any, start: str) -> Any:
    """The line of a table that starts so."""
    return view.get_by_role("row", name=re.compile(rf"^{re.escape(start)} "))


def zeros(view: Any, mapping: str) -> Any:
    return line(view, mapping).get_by_role("gridcell").last


def test_moving_a_slider_changes_the_zeros(opened: Any) -> None:
    expect(zeros(opened, "r_softmax, r = 0.4")).to_have_text("2", timeout=PATIENCE)
    slider = opened.get_by_role("slider", name=re.compile(r"\br$")).first
    for _ in range(8):
        slider.press("ArrowRight")
    expect(zeros(opened, "r_softmax, r = 0.8")).to_have_text("4", timeout=PATIENCE)
    before = opened.locator("img:visible").count()
    opened.get_by_label("Show the gradient").check()
    expect(opened.locator("img:visible")).to_have_count(before + 1, timeout=PATIENCE)


def test_on_a_phone_the_panels_keep_their_size_and_the_page_is_no_wider_than_the_screen(address: str) -> None:
    with page_of(address, width=390, height=844) as page:
        panels = page.locator("img:visible").first
        expect(panels).to_be_visible(timeout=PATIENCE)
        assert panels.bounding_box()["width"] > 700
        assert panels.bounding_box()["x"] >= 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator(".wide-figure:visible").first.evaluate("box => { box.scrollLeft = 1000 }")
        assert panels.bounding_box()["x"] < -300  # the panels on the right can be reached


def test_a_typed_text_gets_its_labels(opened: Any, model: Path) -> None:
    opened.get_by_role("tab", name="Labels").click()
    opened.get_by_label("Text").fill(TEXTS[0])
    for name, marginal in EncoderModel.from_pretrained(model).predict([TEXTS[0]])[0].items():
        expect(line(opened, name).get_by_role("gridcell").nth(1)).to_have_text(f"{marginal:.3f}", timeout=PATIENCE)
        expect(line(opened, name).get_by_role("gridcell").nth(2)).to_have_text("✓", timeout=PATIENCE)


def test_a_head_is_shown_with_its_zeros_and_errors_as_messages(opened: Any, text_encoder: Path) -> None:
    opened.get_by_role("tab", name="Attention").click()
    opened.get_by_label("Model").clear()  # it starts with the model of the command
    opened.get_by_role("button", name="Show attention").click()
    expect(opened.get_by_text("enter a model (a folder or hub id)")).to_be_visible(timeout=PATIENCE)
    opened.get_by_label("Model").fill(str(text_encoder))
    opened.get_by_label("Sentence").fill("I love it so")
    opened.get_by_role("button", name="Show attention").click()
    expect(opened.get_by_text("Head 0: 50.0% of the weights are exactly zero.")).to_be_visible(timeout=PATIENCE)
