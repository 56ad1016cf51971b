"""Models of labels for texts, pictures and tables: trained, asked, saved, loaded, exported; bad input refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from encoders import LABELS, NAMES, TEXTS
from PIL import ExifTags, Image
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import brier_score_loss, f1_score, precision_score, recall_score
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, BertModel

from rsoftmax.huggingface import LabelModel, LabelModelConfig, rates, set_attention
from rsoftmax.multilabel import LabelNetwork, evaluated, indicator
from rsoftmax.onnx_files import export
from rsoftmax.sklearn import SparseLabelClassifier, TableModel
from rsoftmax.sklearn.preparation import Preparation, normal_quantile

QUICK: dict[str, Any] = {"nets": 2, "epochs": 80, "patience": 80, "lr": 1e-2, "hidden": (16,), "progress": False}
MANY, OF_MANY = TEXTS * 6, LABELS * 6
COLOURS = {"red": (200, 0, 0), "blue": (0, 0, 200)}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="session")
def trained(text_encoder: Path) -> LabelModel:
    torch.manual_seed(0)
    return LabelModel.from_encoder(text_encoder, NAMES, "macro").fit(MANY, OF_MANY, **QUICK)


def pictures() -> tuple[list[Image.Image], list[list[str]]]:
    names = [["red"], ["blue"], ["red"], ["blue"]] * 5
    return [Image.new("RGB", (20 + i, 30), COLOURS[name[0]]) for i, name in enumerate(names)], names


def test_a_model_learns_the_labels_of_texts_and_says_how_well(trained: LabelModel) -> None:
    assert [set(found) for found in trained.predict_labels(TEXTS)] == [set(labels) for labels in LABELS]
    scores = trained.evaluate(TEXTS, LABELS)
    assert scores.micro == scores.macro == scores.samples == 1
    assert trained.scores["rows"] == len(MANY)
    assert trained.scores["micro"] > 0.9


def test_a_single_label_is_learned_too(text_encoder: Path) -> None:
    has = [["joy"] if "joy" in labels else [] for labels in OF_MANY]
    model = LabelModel.from_encoder(text_encoder, ["joy"]).fit(MANY, has, **QUICK)
    assert model.predict_labels(MANY) == has
    table = TableModel.fit([[0.0], [1.0]] * 9, [[], ["a"]] * 9, ["u"], nets=2, lr=1e-2, random_state=0)
    assert table.predict_labels([[0.0], [1.0]]) == [[], ["a"]]


def test_predictions_are_marginals_the_most_probable_first(trained: LabelModel) -> None:
    every = trained.predict(TEXTS, every_label=True)
    marginals = trained.outputs(TEXTS).marginals
    for row, found in zip(marginals, every, strict=True):
        assert list(found.values()) == sorted(row.tolist(), reverse=True)
        assert all(found[name] == pytest.approx(float(row[NAMES.index(name)])) for name in NAMES)
    for chosen, found in zip(trained.predict(TEXTS), every, strict=True):
        assert chosen.items() <= found.items()


def test_the_saved_folder_is_the_whole_model(trained: LabelModel, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path / "model")
    again = LabelModel.from_pretrained(tmp_path / "model")
    auto = AutoModel.from_pretrained(tmp_path / "model")
    assert type(auto) is LabelModel
    assert again.predict(TEXTS) == auto.predict(TEXTS) == trained.predict(TEXTS)
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "model"), LabelModelConfig)
    assert again.scores == json.loads(json.dumps(trained.scores))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| macro F1 |" in card
    assert "| anger |" in card
    assert not [path for path in (tmp_path / "model").iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_a_saved_model_predicts_where_only_transformers_is_installed(trained: LabelModel, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path / "model")
    code = """
import sys
for name in ("sklearn", "skorch", "scipy", "pandas", "PIL", "matplotlib", "typer", "onnx"):
    sys.modules[name] = None
from rsoftmax.huggingface import LabelModel
print(LabelModel.from_pretrained(sys.argv[1]).predict_labels(["I love it"]))
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model"], capture_output=True, text=True, check=False)
    assert sorted(done.stdout) == sorted(f"{trained.predict_labels(['I love it'])}\n"), done.stderr


def test_sparse_attention_is_saved_with_the_model(trained: LabelModel, text_encoder: Path, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path / "dense")
    model = LabelModel.from_pretrained(tmp_path / "dense")
    set_attention(model, "r_softmax", r=[0.2, 0.5])
    found = model.outputs(TEXTS).marginals
    assert not torch.allclose(found, trained.outputs(TEXTS).marginals)
    model.save_pretrained(tmp_path / "sparse")
    again = LabelModel.from_pretrained(tmp_path / "sparse")
    assert_close(again.outputs(TEXTS).marginals, found)
    assert_close(rates(again).values, torch.tensor([[0.2, 0.2], [0.5, 0.5]]))


def test_a_sparse_encoder_becomes_a_sparse_model(text_encoder: Path, tmp_path: Path) -> None:
    encoder = BertModel.from_pretrained(text_encoder)
    set_attention(encoder, "r_softmax", r=0.4)
    encoder.save_pretrained(tmp_path / "encoder")
    for path in text_encoder.glob("*token*"):
        (tmp_path / "encoder" / path.name).write_bytes(path.read_bytes())
    model = LabelModel.from_encoder(tmp_path / "encoder", NAMES)
    assert_close(rates(model).values, torch.full((2, 2), 0.4))
    model.save_pretrained(tmp_path / "model")
    assert_close(LabelModel.from_pretrained(tmp_path / "model").embed(TEXTS), model.embed(TEXTS))


def test_padding_changes_no_answer(trained: LabelModel) -> None:
    together = trained.embed(TEXTS)
    alone = torch.cat([trained.embed([text]) for text in TEXTS])
    assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert_close(trained.embed(TEXTS, batch_size=2), together, atol=1e-5, rtol=1e-4)


def test_the_trainer_of_transformers_sees_loss_logits_and_marginals(trained: LabelModel) -> None:
    tensors = trained.inputs.batch(TEXTS)
    y = indicator(LABELS, NAMES)
    output = trained(**tensors, labels=y)
    assert_close(output.marginals, trained.outputs(TEXTS).marginals, atol=1e-5, rtol=1e-4)
    assert_close(output.p > 0, y.bool())
    assert output.loss is not None
    assert output.loss.ndim == 0
    assert output.logits is not None
    assert output.logits.shape == (6, 3)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooled"])
def test_every_pooling_gives_features(pooling: str, text_encoder: Path) -> None:
    model = LabelModel.from_encoder(text_encoder, NAMES, pooling=pooling)
    assert model.embed(TEXTS).shape == (6, 16)


def test_one_network_says_what_the_mean_of_several_says() -> None:
    X, Y = make_multilabel_classification(120, n_classes=4, random_state=0)
    for hidden in ((8,), ()):
        several = SparseLabelClassifier(nets=3, epochs=3, hidden=hidden, average="macro", random_state=0).fit(X, Y)
        one = TableModel.of(several, [f"x{i}" for i in range(20)], list("abcd"))
        assert isinstance(one.network, LabelNetwork)
        assert_close(one.outputs(X).marginals.numpy(), several.predict_proba(X), atol=1e-5, rtol=1e-4)
        assert ((one.outputs(X).p > 0).numpy() == several.predict(X)).all()


def test_features_are_prepared_as_scikit_learn_prepares_them() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=400), rng.integers(0, 4, 400), np.full(400, 7), rng.lognormal(size=400)], 1)
    Y = np.stack([X[:, 0] > 0, X[:, 1] > 1], 1)
    model = SparseLabelClassifier(nets=1, epochs=1, random_state=0).fit(X[:300], Y[:300])
    asked = np.concatenate([X, 3 * X - 5]).astype(np.float32)
    prepared = Preparation.of(model._preparation)(torch.from_numpy(asked))
    assert_close(prepared.numpy(), model._prepared(asked), atol=1e-4, rtol=0, check_dtype=False)
    p = torch.linspace(0.0006, 0.9994, 999)
    assert_close(normal_quantile(p), torch.special.ndtri(p), atol=3e-5, rtol=0)


def test_scores_are_those_of_scikit_learn() -> None:
    torch.manual_seed(1)
    marginals, truth = torch.rand(50, 6), (torch.rand(50, 6) < 0.3).float()
    found = marginals > 0.6
    truth[:5], found[:5], truth[:, 5], found[:, 5] = 0, False, 0, False
    scores = evaluated(marginals, found, truth, list("abcdef"))
    for average in ("micro", "macro", "samples"):
        assert getattr(scores, average) == pytest.approx(f1_score(truth, found, average=average, zero_division=1.0))
    columns = [[getattr(one, name) for one in scores.labels] for name in ("precision", "recall")]
    for column, score in zip(columns, (precision_score, recall_score), strict=True):
        assert column == pytest.approx(score(truth, found, average=None, zero_division=np.nan), nan_ok=True)
    assert scores.as_dict()["labels"][5] == {"label": "f", "precision": None, "recall": None, "f1": 1.0, "rows": 0}
    assert scores.brier == pytest.approx(brier_score_loss(truth.ravel(), marginals.ravel()))
    best = marginals.argmax(1)
    assert scores.precision_at[1] == pytest.approx(float(truth[range(50), best].mean()))
    assert scores.curve.entries.sum() == 300


def test_labels_that_are_not_known_count_nowhere() -> None:
    truth = torch.tensor([[1.0, torch.nan], [0.0, 1.0]])
    marginals = torch.tensor([[0.9, 0.9], [0.1, 0.9]])
    assert evaluated(marginals, marginals > 0.5, truth, ["a", "b"]).micro == 1


def test_a_model_learns_the_labels_of_pictures_and_of_paths(picture_encoder: Path, tmp_path: Path) -> None:
    items, names = pictures()
    model = LabelModel.from_encoder(picture_encoder, ["blue", "red"]).fit(items, names, **QUICK)
    assert model.predict_labels(items) == names
    items[0].save(tmp_path / "red.png")
    assert model.predict([tmp_path / "red.png"]) == model.predict(items[:1])
    model.save_pretrained(tmp_path / "model")
    assert LabelModel.from_pretrained(tmp_path / "model").predict(items) == model.predict(items)


def test_fine_tuning_learns_calibrates_and_goes_on_after_a_stop(text_encoder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"finetune": True, "progress": False, "epochs": 20, "lr": 1e-2, "batch_size": 6}

    def new() -> LabelModel:
        torch.manual_seed(0)
        return LabelModel.from_encoder(text_encoder, NAMES)

    whole = new().fit(MANY, OF_MANY, patience=99, **settings)
    before = BertModel.from_pretrained(text_encoder).state_dict()
    assert any(not torch.equal(before[name], tensor) for name, tensor in whole.encoder.state_dict().items())
    assert whole.evaluate(TEXTS, LABELS).micro > 0.8
    assert not torch.equal(whole.network.head.decoder.calibration.slope, torch.ones(3))

    class StopError(Exception):
        pass

    stopped = new()
    forward, calls = stopped.forward, iter(range(10**6))

    def interrupted(*args: Any, **tensors: Any) -> Any:
        if next(calls) > 40:
            raise StopError
        return forward(*args, **tensors)

    stopped.forward = interrupted  # type: ignore[method-assign]
    place: dict[str, Any] = {"checkpoints": tmp_path / "checkpoints"}
    with pytest.raises(StopError):
        stopped.fit(MANY, OF_MANY, patience=99, **settings, **place)
    assert list((tmp_path / "checkpoints").glob("checkpoint-*"))
    resumed = new().fit(MANY, OF_MANY, patience=99, **settings, **place)
    assert_close(resumed.outputs(TEXTS).marginals, whole.outputs(TEXTS).marginals, atol=1e-3, rtol=1e-2)


def test_a_table_model_is_saved_without_pickle_and_predicts_the_same(tmp_path: Path) -> None:
    rows, labels = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
    model = TableModel.fit(rows, labels, ["u", "v"], "samples", nets=2, lr=1e-2, random_state=0)
    assert model.predict_labels(rows[:2]) == [["b"], ["a"]]
    model.save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    again = TableModel.load(tmp_path / "model")
    assert again.predict(rows) == model.predict(rows)
    assert again.scores["rows"] == 27
    with pytest.raises(ValueError, match=r"a row has 2 features, \['u', 'v'\]; got 3"):
        again.predict([[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match=r"holds a rsoftmax-table; rsoftmax.sklearn.TableModel.load reads it"):
        LabelModel.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("average", ["micro", "macro", "samples"])
def test_onnx_runtime_answers_as_torch_does(average: Any, text_encoder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LabelModel.from_encoder(text_encoder, NAMES, average).fit(MANY, OF_MANY, **QUICK)
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == NAMES
    tensors = model.inputs.batch(TEXTS)
    marginals, labels = session.run(["marginals", "labels"], {name: part.numpy() for name, part in tensors.items()})
    output = model.outputs(TEXTS)
    assert_close(torch.from_numpy(marginals), output.marginals, atol=1e-4, rtol=1e-4)
    assert (labels == (output.p > 0).numpy()).all()
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_pictures_and_tables_are_exported_too(picture_encoder: Path, tmp_path: Path) -> None:
    items, names = pictures()
    seeing = LabelModel.from_encoder(picture_encoder, ["blue", "red"]).fit(items, names, **QUICK)
    table = TableModel.fit([[0.0, 1.0], [1.0, 0.5]] * 9, [["b"], ["a"]] * 9, ["u", "v"], nets=2, epochs=5)
    tensors = {"pixel_values": seeing.inputs.batch(items)["pixel_values"]}
    rows = torch.tensor([[0.3, 0.7], [0.0, 1.0], [2.0, 0.5]])
    cases: list[tuple[Any, dict[str, torch.Tensor], list[Any]]] = [
        (seeing, tensors, items),
        (table, {"features": rows}, rows.tolist()),
    ]
    for model, given, asked in cases:
        export(model, tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        marginals, _ = session.run(None, {name: part.numpy() for name, part in given.items()})
        assert_close(torch.from_numpy(marginals), model.outputs(asked).marginals, atol=1e-4, rtol=1e-4)


def test_weights_that_are_nan_are_an_error_and_not_no_label(trained: LabelModel, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path / "model")
    broken = LabelModel.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        broken.network.head.logits.bias.fill_(torch.nan)
    for ask in (broken.predict, broken.predict_labels):
        with pytest.raises(ValueError, match="its answer is NaN for 6 of 6 items, which is not 'no label'"):
            ask(TEXTS)
    with pytest.raises(ValueError, match="look for NaN in its weights"):
        broken.evaluate(TEXTS, LABELS)


def test_a_long_text_is_cut_and_an_empty_one_is_read(trained: LabelModel) -> None:
    long = "love " * 20_000
    assert trained.inputs.cut([*TEXTS, long]) == [6]
    assert len(trained.predict([long, ""])) == 2
    assert trained.predict([]) == []


def test_bad_items_and_labels_are_refused_with_their_row(trained: LabelModel, text_encoder: Path) -> None:
    with pytest.raises(TypeError, match=r"one text was given in place of a list of texts; write \['I love it'\]"):
        trained.predict("I love it")
    with pytest.raises(TypeError, match="row 2: a text is wanted, got None"):
        trained.predict(["a", None])
    with pytest.raises(ValueError, match="row 2: the label 'jo' is none of the model's: anger, joy, love"):
        trained.evaluate(["a", "b"], [["joy"], ["jo"]])
    with pytest.raises(ValueError, match=r"row 1: its labels are the text 'joy'; write a list of names, \['joy'\]"):
        trained.evaluate(["a"], ["joy"])
    with pytest.raises(ValueError, match="there must be labels for each item, and an item at least; got 2 and 1"):
        trained.evaluate(["a", "b"], [["joy"]])
    for labels in ([], ["a", "a"], [1, 2], "ab", [""]):
        with pytest.raises(ValueError, match="labels must be names, each once"):
            LabelModel.from_encoder(text_encoder, labels)  # type: ignore[arg-type]


def test_labels_that_are_none_or_no_numbers_of_0_and_1_are_refused(trained: LabelModel) -> None:
    with pytest.raises(ValueError, match=r"row 2: its labels are None; write a list of names, \[\] for none"):
        trained.evaluate(["a", "b"], [["joy"], None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"labels must be 0 or 1, or NaN where a label is not known; got 2.0"):
        trained.evaluate(["a"], torch.tensor([[0.0, 1.0, 2.0]]))


class Column:
    """Like a column of pandas after rows were chosen: its own numbers are the index, and lists are objects."""

    dtype = np.dtype(object)

    def __init__(self, cells: list[Any]) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Any:
        return iter(self.cells)

    def __getitem__(self, index: int) -> Any:
        return dict(enumerate(self.cells, 100))[index]


@pytest.mark.parametrize("settings", [QUICK, {"finetune": True, "epochs": 1, "progress": False}])
def test_columns_of_pandas_are_taken_as_lists_are(settings: dict[str, Any], text_encoder: Path) -> None:
    texts: Any = Column(MANY)
    labels: Any = Column(OF_MANY)
    model = LabelModel.from_encoder(text_encoder, NAMES).fit(texts, labels, **settings)
    assert model.scores["rows"] == (4 if "finetune" in settings else len(MANY))
    assert model.predict(texts) == model.predict(MANY)
    assert model.evaluate(texts, labels).as_dict() == model.evaluate(MANY, OF_MANY).as_dict()


def test_what_is_no_picture_is_refused_and_a_turned_one_turned(picture_encoder: Path, tmp_path: Path) -> None:
    items, names = pictures()
    model = LabelModel.from_encoder(picture_encoder, ["blue", "red"]).fit(items, names, **QUICK)
    with pytest.raises(TypeError, match=r"one picture was given in place of a list of pictures; write \['a.png'\]"):
        model.predict("a.png")
    for wrong in (None, b"bytes", [[0, 0, 0]]):
        with pytest.raises(TypeError, match="row 2: a picture is wanted, got"):
            model.predict([items[0], wrong])
    exif, half = Image.Exif(), Image.new("RGB", (40, 20), (200, 0, 0))
    exif[ExifTags.Base.Orientation] = 6
    half.paste((0, 0, 200), (0, 0, 20, 20))
    half.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        assert model.predict([opened], every_label=True) == model.predict([tmp_path / "turned.png"], every_label=True)


def test_rows_of_a_table_must_be_finite_numbers_of_every_feature() -> None:
    rows, labels = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
    model = TableModel.fit(rows, labels, ["u", "v"], nets=2, epochs=2)
    assert model.predict([]) == []
    for number in (float("nan"), float("inf"), 1e39):
        with pytest.raises(ValueError, match=r"row 2: 'v' is (nan|inf); a finite float32 is wanted"):
            model.predict([[1.0, 0.0], [1.0, number]])
        with pytest.raises(ValueError, match=r"row 28: 'v' is (nan|inf); a finite float32 is wanted"):
            TableModel.fit([*rows, [1.0, number]], [*labels, ["a"]], ["u", "v"])
    for wrong in ([["a", "b"]], [[None, 1.0]], [[1.0, 2.0], [1.0]]):
        with pytest.raises(ValueError, match="TableModel: rows must be lists of 2 numbers"):
            model.predict(wrong)
    with pytest.raises(ValueError, match=r"a row has 1 features, \['u'\]; got 2"):
        TableModel.fit(rows, labels, ["u"])
    with pytest.raises(ValueError, match="no row has a label"):
        TableModel.fit(rows, [[]] * 27, ["u", "v"])


def test_a_file_that_is_gone_is_named(trained: LabelModel, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path / "model")
    (tmp_path / "model/tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"is damaged: tokenizer\.json is gone, which config\.json was saved with"):
        LabelModel.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be a whole number from 4 on, got -1"),
        ({"max_tokens": "many"}, "max_tokens must be a whole number from 4 on, got 'many'"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "labels must be names, each once"),
        ({"id2label": {"0": "a", "1": "b", "2": None}}, "labels must be names, each once"),
    ],
)
def test_settings_that_were_changed_for_wrong_ones_are_refused(
    wrong: dict[str, Any], message: str, trained: LabelModel, tmp_path: Path
) -> None:
    trained.save_pretrained(tmp_path / "model")
    settings = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**settings, **wrong}))
    with pytest.raises(ValueError, match=f"is damaged: LabelModel: {message}"):
        LabelModel.from_pretrained(tmp_path / "model")


def test_settings_of_fine_tuning_that_train_nothing_are_refused(text_encoder: Path) -> None:
    for wrong in ({"epochs": 0}, {"epochs": -1}, {"epochs": float("nan")}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="fine-tuning: epochs must be above 0 and batch_size from 1 on"):
            LabelModel.from_encoder(text_encoder, NAMES).fit(MANY, OF_MANY, finetune=True, progress=False, **wrong)


def test_encoders_that_cannot_be_used_are_refused(text_encoder: Path, picture_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is no folder, and a hub id is OWNER/NAME"):
        LabelModel.from_encoder("nowhere", NAMES)
    with pytest.raises(ValueError, match="no model can be loaded from"):
        LabelModel.from_encoder(tmp_path, NAMES)
    with pytest.raises(ValueError, match="no pooling is called 'max'; there are 'mean', 'cls', 'pooled'"):
        LabelModel.from_encoder(text_encoder, NAMES, pooling="max")
    for max_tokens in (0, 3, -1):
        with pytest.raises(ValueError, match=f"max_tokens must be a whole number from 4 on, got {max_tokens}"):
            LabelModel.from_encoder(text_encoder, NAMES, max_tokens=max_tokens)


def test_a_folder_of_two_models_or_of_another_one_is_refused(
    trained: LabelModel, text_encoder: Path, tmp_path: Path
) -> None:
    trained.save_pretrained(tmp_path / "model")
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    (tmp_path / "model" / "model.safetensors").write_bytes(weights[:-1] + b"\0" + weights[-1:])
    with pytest.raises(ValueError, match=r"model.safetensors is not the file that config.json was saved with"):
        LabelModel.from_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="that of a model of another kind"):
        LabelModel.from_pretrained(text_encoder)
