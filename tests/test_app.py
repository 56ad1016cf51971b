"""What stands behind the widgets of ``rsoftmax app``: values in, pictures and tables out."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders import LABELS, NAMES, TEXTS
from PIL import Image
from torch.testing import assert_close
from typer.testing import CliRunner

from rsoftmax import MAPPINGS, softmax
from rsoftmax.cli.application import app
from rsoftmax.huggingface import LabelModel
from rsoftmax.plots import compare_mappings, mapping_gradients
from rsoftmax.table import ROW_MAPPINGS

pytest.importorskip("gradio", reason="the page needs gradio; `make browser` installs it")

from rsoftmax.app import page
from rsoftmax.app.attention_tab import looked
from rsoftmax.app.labels_tab import YES, answer_for, decided, half_of_f1, other_averages
from rsoftmax.app.mappings_tab import SCORES, compared, gradients

SLIDERS = (*SCORES, 1.0, 0.4, 2.0, 1.25)  # with temperature, r, t and alpha
QUICK: dict[str, Any] = {"nets": 2, "epochs": 40, "lr": 1e-2, "hidden": (16,), "progress": False}
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of gradio and what it imports
]


@pytest.fixture(scope="module")
def model(text_encoder: Path) -> LabelModel:
    torch.manual_seed(0)
    return LabelModel.from_encoder(text_encoder, NAMES, "macro").fit(TEXTS * 6, LABELS * 6, **QUICK)


def test_every_mapping_of_a_row_has_a_panel_and_a_line() -> None:
    figure, table = compared(*SLIDERS)
    assert [line[0].split(",")[0] for line in table] == list(ROW_MAPPINGS)
    titles = [axis.get_title() for axis in figure.axes if axis.axison]
    assert [title.split("\n")[0] for title in titles] == [line[0] for line in table]
    assert [title.split("\n")[1] for title in titles] == [f"{line[-1]} of {len(SCORES)} zero" for line in table]


def test_the_sliders_reach_their_mappings_and_the_temperature_divides_the_scores() -> None:
    lines = {line[0]: line for line in compared(*SCORES, 2.0, 0.8, 3.0, 1.5)[1]}
    assert lines["r_softmax, r = 0.8"][-1] == "4"
    assert "t_softmax, t = 3" in lines
    assert "entmax, alpha = 1.5" in lines
    expected = softmax(torch.tensor(SCORES) / 2)
    assert_close(torch.tensor([float(p) for p in lines["softmax"][1:-1]]), expected, atol=6e-4, rtol=0)


def test_gradients_are_drawn_on_request_only() -> None:
    assert gradients(False, *SLIDERS) is None
    figure = gradients(True, *SLIDERS)
    assert figure is not None
    assert len([axis for axis in figure.axes if axis.axison]) == len(ROW_MAPPINGS)


def test_gradients_are_differences_of_the_highest_probability() -> None:
    step, scores = 1e-6, [0.3, 2.0, 1.6]  # no score where a mapping has a kink
    found = mapping_gradients(scores, {"r": 0.4})
    for place in range(len(scores)):
        up, down = ([x + sign * step * (i == place) for i, x in enumerate(scores)] for sign in (1, -1))
        above, below = compare_mappings(up, {"r": 0.4}), compare_mappings(down, {"r": 0.4})
        for title, gradient in found.items():
            difference = (above[title][1] - below[title][1]) / (2 * step)
            assert_close(gradient[place], difference, atol=1e-6, rtol=1e-5, msg=title)
    assert len(found) == len(MAPPINGS) - 1  # weighted_softmax has a weight for each entry


def test_labels_come_with_marginals_the_answer_and_those_for_the_other_f1(model: LabelModel) -> None:
    assert other_averages(model) == ["micro", "samples"]
    for text in TEXTS:
        lines = decided(model, text)
        every = model.predict([text], every_label=True)[0]
        assert [line[0] for line in lines] == list(every)
        assert [line[0] for line in lines if line[2] == YES] == model.predict_labels([text])[0]


def test_a_picture_gets_its_labels_too(picture_encoder: Path) -> None:
    model = LabelModel.from_encoder(picture_encoder, NAMES)
    picture = Image.new("RGB", (20, 30), (200, 0, 0))
    assert [line[0] for line in decided(model, picture)] == list(model.predict([picture], every_label=True)[0])


def test_a_model_that_decides_by_no_f1_is_shown_all_three(text_encoder: Path) -> None:
    model = LabelModel.from_encoder(text_encoder, NAMES, rate="threshold")
    assert other_averages(model) == ["micro", "macro", "samples"]
    assert {len(line) for line in decided(model, TEXTS[0])} == {6}


def test_the_answer_for_samples_is_that_of_a_model_made_for_it(model: LabelModel, text_encoder: Path) -> None:
    other = LabelModel.from_encoder(text_encoder, NAMES, "samples")
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("decoder.cut")}
    other.network = type(model.network)(16, len(NAMES), model.network.width, average="samples")
    other.load_state_dict(state, strict=False)
    output = model.outputs(TEXTS)
    assert torch.equal(answer_for("samples", model, output), other.outputs(TEXTS).labels)


def test_the_cut_for_another_average_is_half_the_f1_on_rows_held_out(model: LabelModel) -> None:
    assert_close(half_of_f1("micro", model), torch.tensor([model.scores["micro"] / 2]))
    assert_close(half_of_f1("macro", model), torch.tensor([one["f1"] / 2 for one in model.scores["labels"]]))
    output = model.outputs(TEXTS)
    assert torch.equal(answer_for("micro", model, output), output.marginals > model.scores["micro"] / 2)


def test_a_head_is_drawn_with_its_share_of_zeros(text_encoder: Path) -> None:
    figure, said = looked(str(text_encoder), "I love it so", 0.5, -1, 1)
    assert figure.axes[0].get_title() == "head 1: 50% zero"
    assert said == "Head 1: 50.0% of the weights are exactly zero."
    with pytest.raises(ValueError, match="there is no head 7; the model has 2"):
        looked(str(text_encoder), "I love it so", 0.5, -1, 7)
    with pytest.raises(ValueError, match="name a model, as a folder or a hub id, and type a sentence"):
        looked("", "I love it so", 0.5, -1, 0)


def test_the_page_asks_nothing_of_other_machines() -> None:
    async def built() -> Any:  # in a loop that is closed afterwards; Gradio would make one and leave it open
        return page()

    assert asyncio.run(built()).analytics_enabled is False


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["app", "--model", str(tmp_path)])
    assert done.exit_code == 2
    assert "--model" in done.output or "MODEL" in done.output
