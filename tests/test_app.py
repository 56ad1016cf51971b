"""The functions behind the widgets of ``rsoftmax app``: values in, figures and tables out."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders import LABELS, NAMES, TEXTS
from PIL import Image
from torch.testing import assert_close
from typer.testing import CliRunner

from rsoftmax import MAPPINGS, softmax
from rsoftmax.cli import app
from rsoftmax.labels import EncoderModel, LabelModel, TrainingOptions
from rsoftmax.plots import compare_mappings, labels_figure, mapping_gradients

pytest.importorskip("gradio", reason="the page needs gradio; `make browser` installs it")
import fastapi
import gradio
from fastapi.testclient import TestClient

from rsoftmax.app import (
    LOGITS,
    MIDDLEWARE,
    YES,
    _shows_errors,
    attend,
    compare,
    gradients,
    half_f1,
    labels_for,
    other_averages,
    page,
    show_evidence,
    show_labels,
    thresholds,
)

SLIDERS = (*LOGITS, 1.0, 0.4, 2.0, 3.0, 8.0, 1.25)  # with temperature, r, t, k, edge and alpha
QUICK: dict[str, Any] = {
    "n_estimators": 2,
    "training": TrainingOptions(max_epochs=40, lr=1e-2),
    "hidden_layer_sizes": (16,),
    "verbose": False,
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of gradio and what it imports
]


@pytest.fixture(scope="module")
def model(text_encoder: Path) -> EncoderModel:
    torch.manual_seed(0)
    return EncoderModel.from_encoder(text_encoder, NAMES, "macro").fit(TEXTS * 6, LABELS * 6, **QUICK)


def test_every_mapping_of_a_row_has_a_panel_and_a_line() -> None:
    figure, table = compare(*SLIDERS)
    assert [line[0].split(",")[0] for line in table] == list(MAPPINGS)
    titles = [axis.get_title() for axis in figure.axes if axis.axison]
    assert [title.split("\n")[0] for title in titles] == [line[0] for line in table]
    assert [title.split("\n")[1] for title in titles] == [f"{line[-1]} of {len(LOGITS)} zero" for line in table]


def test_the_sliders_reach_their_mappings_and_the_temperature_divides_the_logits() -> None:
    lines = {line[0]: line for line in compare(*LOGITS, 2.0, 0.8, 3.0, 2.0, 8.0, 1.5)[1]}
    assert lines["r_softmax, r = 0.8"][-1] == "4"
    assert "t_softmax, t = 3" in lines
    assert "entmax, alpha = 1.5" in lines
    expected = softmax(torch.tensor(LOGITS) / 2)
    assert_close(torch.tensor([float(p) for p in lines["softmax"][1:-1]]), expected, atol=6e-4, rtol=0)


def test_an_edge_of_zero_cuts_softmax_off() -> None:
    lines = {line[0]: line for line in compare(*LOGITS, 1.0, 0.4, 2.0, 2.0, 0.0, 1.5)[1]}
    found = torch.tensor([float(p) for p in lines["k_softmax, k = 2, edge = 0"][1:-1]]).topk(2).values
    assert_close(found, softmax(torch.tensor(LOGITS).topk(2).values), atol=6e-4, rtol=0)


def test_every_mapping_of_a_row_has_a_panel_of_gradients() -> None:
    figure = gradients(*SLIDERS)
    assert len([axis for axis in figure.axes if axis.axison]) == len(MAPPINGS)


def test_gradients_are_differences_of_the_highest_probability() -> None:
    step, logits = 1e-6, [0.3, 2.0, 1.6]  # no logit where a mapping has a kink
    found = mapping_gradients(logits, {"r": 0.4})
    for place in range(len(logits)):
        up, down = ([x + sign * step * (i == place) for i, x in enumerate(logits)] for sign in (1, -1))
        above, below = compare_mappings(up, {"r": 0.4}), compare_mappings(down, {"r": 0.4})
        for title, gradient in found.items():
            difference = (above[title][1] - below[title][1]) / (2 * step)
            assert_close(gradient[place], difference, atol=1e-6, rtol=1e-5, msg=title)
    assert len(found) == len(MAPPINGS)


def test_labels_come_with_marginals_and_the_labels_for_every_f1(model: EncoderModel) -> None:
    assert other_averages(model) == ["micro", "samples"]
    for text in TEXTS:
        lines = show_labels(model, text)[1]
        every = model.predict([text], every_label=True)[0]
        assert [line[0] for line in lines] == list(every)
        assert [line[0] for line in lines if line[2] == YES] == model.predict_labels([text])[0]


def test_the_passages_behind_each_predicted_label_are_highlighted(model: EncoderModel) -> None:
    for one in (model, LabelModel().fit(TEXTS * 6, LABELS * 6)):
        html = show_evidence(one, "I love it <so> happy")
        assert re.findall("<h3>(.*)</h3>", html) == one.predict_labels(["I love it <so> happy"])[0] != []
        assert "<mark" in html
        assert "<so>" not in html
    assert show_evidence(model, "nothing at all") == ""


def test_an_image_gets_its_labels(image_encoder: Path) -> None:
    model = EncoderModel.from_encoder(image_encoder, NAMES)
    image = Image.new("RGB", (20, 30), (200, 0, 0))
    assert [line[0] for line in show_labels(model, image)[1]] == list(model.predict([image], every_label=True)[0])


def test_a_model_with_another_rule_is_compared_with_all_three_averages(text_encoder: Path) -> None:
    model = EncoderModel.from_encoder(text_encoder, NAMES, rule="threshold")
    assert other_averages(model) == ["micro", "macro", "samples"]
    assert {len(line) for line in show_labels(model, TEXTS[0])[1]} == {6}


def test_the_labels_for_samples_are_those_of_a_model_trained_for_it(model: EncoderModel, text_encoder: Path) -> None:
    other = EncoderModel.from_encoder(text_encoder, NAMES, "samples")
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("decoder.threshold")}
    other.network = type(model.network)(16, len(NAMES), model.network.width, average="samples")
    other.load_state_dict(state, strict=False)
    output = model.outputs(TEXTS)
    assert torch.equal(labels_for("samples", model, output), other.outputs(TEXTS).labels)


def test_the_threshold_for_another_average_is_half_the_held_out_f1(model: EncoderModel) -> None:
    assert_close(half_f1("micro", model), torch.tensor([model.evaluation["micro"] / 2]))
    assert_close(half_f1("macro", model), torch.tensor([one["f1"] / 2 for one in model.evaluation["labels"]]))
    output = model.outputs(TEXTS)
    assert torch.equal(labels_for("micro", model, output), output.marginals > model.evaluation["micro"] / 2)


def test_the_bars_of_labels_show_their_thresholds(model: EncoderModel) -> None:
    cuts = thresholds(model)
    assert list(cuts) == NAMES
    every, predicted = model.predict([TEXTS[0]], every_label=True)[0], model.predict_labels([TEXTS[0]])[0]
    assert [name for name, p in every.items() if p > cuts[name]] == predicted
    (axes,) = show_labels(model, TEXTS[0])[0].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == list(every)
    (marks,) = axes.get_lines()
    assert_close(torch.tensor(marks.get_xdata()), torch.tensor([cuts[name] for name in every]), check_dtype=False)


def test_the_threshold_does_not_cross_the_number_beside_a_bar() -> None:
    marginals, cut = {"sure": 0.9, "near": 0.03, "far": 0.01}, {"sure": 0.2, "near": 0.05, "far": 0.5}
    (axes,) = labels_figure(marginals, ["sure"], cut).axes
    places = {text.get_text(): text.get_position()[0] for text in axes.texts}
    assert_close(places, {"0.900": 0.91, "0.030": 0.06, "0.010": 0.02})


def test_an_error_is_text_and_not_html() -> None:
    def fails() -> None:
        raise ValueError("no model <img src=x onerror=alert(1)>")

    with pytest.raises(gradio.Error) as error:
        _shows_errors(fails)()
    assert error.value.message == "no model &lt;img src=x onerror=alert(1)&gt;"


def test_a_foreign_host_is_refused() -> None:
    app = fastapi.FastAPI(middleware=MIDDLEWARE)
    for host, status in (("127.0.0.1:7860", 404), ("localhost", 404), ("evil.example", 400)):
        assert TestClient(app, base_url=f"http://{host}").get("/").status_code == status, host


def test_a_mistyped_folder_is_not_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: pytest.fail("asked the hub"))
    for source in (tmp_path / "nowhere", "./nowhere", "a/b/c"):
        with pytest.raises(ValueError, match="no such folder"):
            attend(str(source), "I love it so", 0.5, -1, 0)


def test_a_head_is_plotted_with_its_fraction_of_zeros(text_encoder: Path) -> None:
    figure, said = attend(str(text_encoder), "I love it so", 0.5, -1, 1)
    assert figure.axes[0].get_title() == "head 1: 50% zero"
    assert said == "Head 1: 50.0% of the weights are exactly zero."
    with pytest.raises(ValueError, match="there is no head 7; the model has 2"):
        attend(str(text_encoder), "I love it so", 0.5, -1, 7)
    with pytest.raises(ValueError, match=r"enter a model .a folder or hub id. and a sentence"):
        attend("", "I love it so", 0.5, -1, 0)


def test_the_page_sends_no_analytics() -> None:
    async def built() -> Any:  # in a loop that is closed afterwards; Gradio would make one and leave it open
        return page()

    assert asyncio.run(built()).analytics_enabled is False


def test_a_folder_without_a_model_is_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["app", "--model", str(tmp_path)])
    assert done.exit_code == 2
    assert "--model" in done.output or "MODEL" in done.output
