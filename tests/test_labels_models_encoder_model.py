"""EncoderModel: trained, asked, saved and loaded; texts and images prepared; bad input refused."""

import json
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import LABELS, NAMES, TEXTS
from PIL import ExifTags, Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, BertModel, TrainerControl, TrainerState, TrainingArguments

from rsoftmax._transformers import load_pretrained
from rsoftmax.attention.transformers import head_parameters, set_attention
from rsoftmax.labels import Embedder, EncoderModel, EncoderModelConfig, ExpectedF1Classifier, TrainingOptions, indicator
from rsoftmax.labels.models.finetuning import ProgressBar, last_checkpoint

QUICK: dict[str, Any] = {
    "n_estimators": 2,
    "training": TrainingOptions(max_epochs=5, lr=1e-2),
    "hidden_layer_sizes": (8,),
    "verbose": False,
}
FINETUNE: dict[str, Any] = {"finetune": True, "verbose": False, "epochs": 4, "lr": 1e-3, "batch_size": 6}
MANY, OF_MANY = TEXTS * 6, LABELS * 6
COLOURS = {"red": (200, 0, 0), "blue": (0, 0, 200)}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def with_random_head(model: EncoderModel) -> EncoderModel:
    """The model with weights and biases that tell items apart."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_()
    return model


@pytest.fixture(scope="module")
def model(text_encoder: Path) -> EncoderModel:
    return with_random_head(EncoderModel.from_encoder(text_encoder, NAMES, "macro"))


@pytest.fixture(scope="module")
def seeing(image_encoder: Path) -> EncoderModel:
    return with_random_head(EncoderModel.from_encoder(image_encoder, ["blue", "red"]))


def images() -> tuple[list[Image.Image], list[list[str]]]:
    names = [["red"], ["blue"], ["red"], ["blue"]] * 5
    return [Image.new("RGB", (20 + i, 30), COLOURS[name[0]]) for i, name in enumerate(names)], names


@torch.no_grad()
def loss_of(model: EncoderModel, items: list[Any], labels: list[list[str]]) -> float:
    model.eval()  # type: ignore[no-untyped-call]
    return float(model(**model.inputs.batch(items), labels=indicator(labels, model.names)).loss)


def test_training_the_head_lowers_the_loss_and_evaluates_held_out_rows(text_encoder: Path) -> None:
    torch.manual_seed(0)
    model = EncoderModel.from_encoder(text_encoder, NAMES)
    before, encoder = loss_of(model, TEXTS, LABELS), model.encoder.state_dict()
    assert model.fit(MANY, OF_MANY, **QUICK) is model
    assert loss_of(model, TEXTS, LABELS) < before
    assert all(torch.equal(encoder[name], tensor) for name, tensor in model.encoder.state_dict().items())
    assert model.evaluation["num_samples"] == len(MANY)
    assert [one["label"] for one in model.evaluation["labels"]] == NAMES


@pytest.mark.train
def test_a_guarantee_holds_out_a_fifth_and_is_saved(text_encoder: Path, tmp_path: Path) -> None:
    model = EncoderModel.from_encoder(text_encoder, NAMES, "samples")
    model.fit(MANY * 3, OF_MANY * 3, guarantee={"recall": 0.8}, **QUICK)
    assert model.evaluation["guarantee"] == "recall of a sample at least 0.8, in expectation"
    assert model.evaluation["num_samples"] == round(0.2 * 3 * len(MANY))
    model.save_pretrained(tmp_path / "model")
    again = EncoderModel.from_pretrained(tmp_path / "model")
    assert again.config.head["average"] == "micro"
    assert again.predict(TEXTS) == model.predict(TEXTS)


@pytest.mark.train
def test_a_single_label_and_images_are_trained_too(text_encoder: Path, image_encoder: Path) -> None:
    has = [["joy"] if "joy" in labels else [] for labels in OF_MANY]
    items, names = images()
    for encoder, kinds, given, labels in (
        (text_encoder, ["joy"], MANY, has),
        (image_encoder, ["blue", "red"], items, names),
    ):
        torch.manual_seed(0)
        model = EncoderModel.from_encoder(encoder, kinds)
        before = loss_of(model, given, labels)
        assert loss_of(model.fit(given, labels, **QUICK), given, labels) < before, kinds
        assert model.evaluation["num_samples"] == len(given)


def test_predictions_are_marginals_the_most_probable_first(model: EncoderModel) -> None:
    every = model.predict(TEXTS, every_label=True)
    marginals = model.outputs(TEXTS).marginals
    for row, found in zip(marginals, every, strict=True):
        assert list(found.values()) == sorted(row.tolist(), reverse=True)
        assert all(found[name] == pytest.approx(float(row[NAMES.index(name)])) for name in NAMES)
    for chosen, found in zip(model.predict(TEXTS), every, strict=True):
        assert chosen.items() <= found.items()


def test_the_saved_folder_is_the_whole_model(model: EncoderModel, seeing: EncoderModel, tmp_path: Path) -> None:
    for one, items in ((model, TEXTS), (seeing, images()[0])):
        folder = tmp_path / one.modality
        one.save(folder)
        again, auto = EncoderModel.load(folder), AutoModel.from_pretrained(folder)
        assert type(auto) is EncoderModel
        assert again.predict(items) == auto.predict(items) == one.predict(items)
        assert isinstance(AutoConfig.from_pretrained(folder), EncoderModelConfig)
        assert f"# Multi-label classifier for {one.modality}s" in (folder / "README.md").read_text()
        assert not [path for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]
        _, report = EncoderModel.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]


def test_a_guarantee_and_an_evaluation_run_the_encoder_once(
    text_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = EncoderModel.from_encoder(text_encoder, NAMES)
    runs: list[int] = []
    encode = model.encode

    def counted(items: list[str], **options: bool) -> Any:
        runs.append(len(items))
        return encode(items, **options)

    monkeypatch.setattr(model, "encode", counted)
    model.guarantee(MANY, OF_MANY, recall=0.5)
    model.evaluate(TEXTS, LABELS)
    assert runs == [len(MANY), len(TEXTS)]


def test_the_card_holds_the_evaluation(model: EncoderModel, tmp_path: Path) -> None:
    model.config.evaluation = model.evaluate(TEXTS, LABELS).as_dict()
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "| macro F1 |" in card
    assert "| anger |" in card
    assert "Held-out predictions for 6 rows" in card
    assert EncoderModel.from_pretrained(tmp_path).evaluation == json.loads(json.dumps(model.evaluation))


def test_the_weights_are_one_file_whatever_shards_are_asked_for(model: EncoderModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="1KB")
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert EncoderModel.from_pretrained(tmp_path).predict(TEXTS) == model.predict(TEXTS)


@pytest.mark.process
def test_a_saved_model_predicts_where_only_transformers_is_installed(model: EncoderModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    code = """
import sys
for name in ("sklearn", "scipy", "pandas", "PIL", "matplotlib", "typer", "onnx"):
    sys.modules[name] = None
from rsoftmax.labels import EncoderModel
print(EncoderModel.from_pretrained(sys.argv[1]).predict_labels(["I love it"]))
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model"], capture_output=True, text=True, check=False)
    assert sorted(done.stdout) == sorted(f"{model.predict_labels(['I love it'])}\n"), done.stderr


@pytest.mark.process
def test_a_sparse_model_is_loaded_in_a_new_process_once_its_attention_is_registered(
    model: EncoderModel, tmp_path: Path
) -> None:
    model.save(tmp_path / "dense")
    sparse = EncoderModel.load(tmp_path / "dense")
    set_attention(sparse, "r_softmax", r=0.4)
    sparse.save(tmp_path / "sparse")
    load = "import sys; from rsoftmax.labels import EncoderModel; EncoderModel.load(sys.argv[1])"
    register = "from rsoftmax.attention import register_attention; register_attention(); "
    for code, message in ((load, "register_attention() before loading it"), (register + load, "")):
        words = [sys.executable, "-c", code, str(tmp_path / "sparse")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert message in done.stderr
        assert (done.returncode == 0) == (not message), done.stderr


def test_sparse_attention_is_saved_with_the_model(model: EncoderModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "dense")
    sparse = EncoderModel.from_pretrained(tmp_path / "dense")
    set_attention(sparse, "r_softmax", r=[0.2, 0.5])
    found = sparse.outputs(TEXTS).marginals
    assert not torch.allclose(found, model.outputs(TEXTS).marginals)
    sparse.save_pretrained(tmp_path / "sparse")
    again = EncoderModel.from_pretrained(tmp_path / "sparse")
    assert_close(again.outputs(TEXTS).marginals, found)
    assert_close(head_parameters(again).values, torch.tensor([[0.2, 0.2], [0.5, 0.5]]))


def test_a_sparse_encoder_becomes_a_sparse_model(text_encoder: Path, tmp_path: Path) -> None:
    encoder = BertModel.from_pretrained(text_encoder)
    set_attention(encoder, "r_softmax", r=0.4)
    encoder.save_pretrained(tmp_path / "encoder")
    for path in text_encoder.glob("*token*"):
        (tmp_path / "encoder" / path.name).write_bytes(path.read_bytes())
    model = EncoderModel.from_encoder(tmp_path / "encoder", NAMES)
    assert_close(head_parameters(model).values, torch.full((2, 2), 0.4))
    model.save_pretrained(tmp_path / "model")
    assert_close(EncoderModel.from_pretrained(tmp_path / "model").embed(TEXTS), model.embed(TEXTS))


def test_padding_changes_no_prediction(model: EncoderModel) -> None:
    together = model.embed(TEXTS)
    alone = torch.cat([model.embed([text]) for text in TEXTS])
    assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert_close(model.embed(TEXTS, batch_size=2), together, atol=1e-5, rtol=1e-4)


def test_forward_takes_what_the_tokenizer_returns(model: EncoderModel) -> None:
    y = indicator(LABELS, NAMES)
    tensors = model.processor(TEXTS, padding=True, return_tensors="pt")
    assert "token_type_ids" in tensors
    output, expected = model(**tensors, labels=y), model.outputs(TEXTS)
    assert_close(output.marginals, expected.marginals, atol=1e-5, rtol=1e-4)
    assert_close(output.probs > 0, expected.probs > 0)
    assert output.loss.ndim == 0
    assert output.logits.shape == (6, 3)


def test_every_pooling_gives_features(text_encoder: Path) -> None:
    for pooling in ("mean", "cls", "max", "pooled"):
        model = EncoderModel.from_encoder(text_encoder, NAMES, pooling=pooling)
        assert model.embed(TEXTS).shape == (6, 16), pooling


def sentence_transformer(encoder: Path, folder: Path, pooling: dict[str, Any], *more: str, path: str = "") -> Path:
    """A folder as sentence-transformers saves it."""
    shutil.copytree(encoder, folder / path)
    kinds = ["Transformer", "Pooling", *more]
    places = [path, *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_a_sentence_transformer_keeps_its_pooling_normalisation_and_tokens(text_encoder: Path, tmp_path: Path) -> None:
    mean = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    largest = {"pooling_mode_max_tokens": True, "include_prompt": True}
    plain = {
        pooling: EncoderModel.from_encoder(text_encoder, NAMES, pooling=pooling) for pooling in ("mean", "cls", "max")
    }
    cases: list[tuple[str, dict[str, Any], tuple[str, ...], str]] = [
        ("mean", mean, ("Normalize",), ""),
        ("cls", {"pooling_mode": "cls"}, (), ""),
        ("max", largest, ("Normalize",), "0_Transformer"),
    ]
    for pooling, settings, more, path in cases:
        folder = sentence_transformer(text_encoder, tmp_path / pooling, settings, *more, path=path)
        model = EncoderModel.from_encoder(folder, NAMES)
        expected = plain[pooling].embed(TEXTS)
        expected = torch.nn.functional.normalize(expected, dim=-1) if more else expected
        assert_close(model.embed(TEXTS), expected, msg=pooling)
        assert model.config.windows["tokens"] == model.metadata()["max_tokens"] == 8, pooling
        model.save_pretrained(tmp_path / f"{pooling}-model")
        assert_close(EncoderModel.from_pretrained(tmp_path / f"{pooling}-model").embed(TEXTS), expected, msg=pooling)
    for name, settings, more, message in (
        ("dense", mean, ("Dense",), "label models do not support Dense"),
        ("both", mean | largest, (), r"unknown pooling 'mean\+max'"),
        ("last", {"pooling_mode": "lasttoken"}, (), "unknown pooling 'lasttoken'; choose one of 'mean'"),
    ):
        folder = sentence_transformer(text_encoder, tmp_path / name, settings, *more)
        with pytest.raises(ValueError, match=message):
            EncoderModel.from_encoder(folder, NAMES)


def test_an_embedder_feeds_scikit_learn_pipelines(text_encoder: Path) -> None:
    embedder = Embedder(text_encoder, normalize=True)
    expected = EncoderModel.from_encoder(text_encoder, NAMES, normalize=True).embed(TEXTS)
    assert_close(torch.from_numpy(embedder.transform(TEXTS)), expected)
    assert len(embedder.get_feature_names_out()) == 16
    assert len(pickle.dumps(embedder)) < 1000
    pipeline = make_pipeline(clone(embedder), ExpectedF1Classifier(LogisticRegression(), cv=2)).fit(MANY, OF_MANY)
    assert pipeline.predict_proba(TEXTS).shape == (6, 3)
    assert len(pipeline.predict(TEXTS)) == 6


class StopError(Exception):
    """Ends a training."""


@pytest.mark.train
def test_fine_tuning_lowers_the_loss_and_resumes_as_if_it_had_not_stopped(text_encoder: Path, tmp_path: Path) -> None:
    def new() -> EncoderModel:
        torch.manual_seed(0)
        return EncoderModel.from_encoder(text_encoder, NAMES)

    thesis, foreign = tmp_path / "checkpoint-7" / "thesis.docx", tmp_path / "checkpoint-99" / "trainer_state.json"
    for path, content in ((thesis, "mine"), (foreign, "{}")):
        path.parent.mkdir()
        path.write_text(content)
    before = loss_of(new(), TEXTS, LABELS)
    whole = new().fit(MANY, OF_MANY, patience=99, **FINETUNE)
    assert loss_of(whole, TEXTS, LABELS) < before
    old = BertModel.from_pretrained(text_encoder).state_dict()
    assert any(not torch.equal(old[name], tensor) for name, tensor in whole.encoder.state_dict().items())
    assert not torch.equal(whole.network.head.decoder.calibration.slope, torch.ones(3))

    stopped = new()
    forward, calls = stopped.forward, iter(range(10**6))

    def interrupted(*args: Any, **tensors: Any) -> Any:
        if next(calls) > 15:
            raise StopError
        return forward(*args, **tensors)

    stopped.forward = interrupted  # type: ignore[method-assign]
    with pytest.raises(StopError):
        stopped.fit(MANY, OF_MANY, patience=99, checkpoints=tmp_path, **FINETUNE)
    assert last_checkpoint(tmp_path) is not None
    resumed = new().fit(MANY, OF_MANY, patience=99, checkpoints=tmp_path, **FINETUNE)
    assert_close(resumed.outputs(TEXTS).marginals, whole.outputs(TEXTS).marginals, atol=1e-3, rtol=1e-2)
    assert [path.read_text() for path in (thesis, foreign)] == ["mine", "{}"]
    assert len(list(tmp_path.glob("checkpoint-*"))) <= 5  # two of others, the last two and the best


def test_the_bar_of_fine_tuning_that_stops_early_ends_at_100_percent(capsys: pytest.CaptureFixture[str]) -> None:
    bar: Any = ProgressBar()
    now = (TrainingArguments(), TrainerState(max_steps=40), TrainerControl())
    bar.on_train_begin(*now)
    now[1].global_step = 3
    bar.on_step_end(*now)
    bar.on_train_end(*now)
    assert "100%" in capsys.readouterr().err.splitlines()[-1].rpartition("\r")[2]


def test_fine_tuning_moves_the_encoder_and_leaves_checkpoints_of_others(text_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "thesis.docx").write_text("mine")
    model = EncoderModel.from_encoder(text_encoder, NAMES)
    before = {name: tensor.clone() for name, tensor in model.encoder.state_dict().items()}
    model.fit(TEXTS * 2, LABELS * 2, checkpoints=tmp_path, **{**FINETUNE, "epochs": 1})
    assert any(not torch.equal(before[name], tensor) for name, tensor in model.encoder.state_dict().items())
    assert (tmp_path / "checkpoint-2" / "thesis.docx").read_text() == "mine"
    foreign = tmp_path / "other" / "checkpoint-2" / "optimizer.pt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(FileExistsError, match="checkpoint-2 was not written by rsoftmax"):
        model.fit(TEXTS * 2, LABELS * 2, checkpoints=tmp_path / "other", **{**FINETUNE, "epochs": 1})
    assert foreign.read_text() == "mine"


def test_the_last_checkpoint_is_complete_and_incomplete_ones_lose_only_their_own_files(
    model: EncoderModel, tmp_path: Path
) -> None:
    for step in (2, 4, 6, 8):
        model.save_pretrained(tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / "notes.txt").write_text("mine")
    for step, state in ((2, '{"global_step": 2}'), (4, "{}"), (6, "[")):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "checkpoint-11" / "thesis.docx").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    left = {path.name: sorted(one.name for one in path.iterdir()) for path in tmp_path.iterdir()}
    assert left.pop("checkpoint-2") != ["notes.txt"]
    assert left == {
        **{key: ["notes.txt"] for key in ("checkpoint-4", "checkpoint-6", "checkpoint-8")},
        "checkpoint-11": ["thesis.docx"],
    }


def test_weights_that_are_nan_are_an_error_and_not_no_label(text_encoder: Path) -> None:
    broken = EncoderModel.from_encoder(text_encoder, NAMES)
    with torch.no_grad():
        broken.network.head.get_parameter("logits.bias").fill_(torch.nan)
    for ask in (broken.predict, broken.predict_labels, lambda texts: broken.evaluate(texts, LABELS)):
        with pytest.raises(ValueError, match="NaN for 6 of 6 items"):
            ask(TEXTS)


def test_a_long_text_is_truncated_if_asked_and_an_empty_one_is_read(model: EncoderModel, text_encoder: Path) -> None:
    long = "love " * 20_000
    truncating = EncoderModel.from_encoder(text_encoder, NAMES, max_tokens=24)
    assert truncating.truncated([*TEXTS, long]) == [6]
    assert truncating.truncated(["?" * 2, "?" * 24]) == [1]  # each a token, and two special ones
    assert len(model.predict([long, ""])) == 2
    assert model.predict([]) == []


def test_bad_items_and_labels_are_refused_with_their_row(model: EncoderModel, text_encoder: Path) -> None:
    asked: list[tuple[type[Exception], str, Any]] = [
        (TypeError, r"expected a list of texts, got one text; write \['I love it'\]", "I love it"),
        (TypeError, "item 2: expected a text, got None", ["a", None]),
        (ValueError, r"item 1: '\\ud800' is not valid Unicode", ["\ud800"]),
    ]
    for error, message, items in asked:
        with pytest.raises(error, match=message):
            model.predict(items)
    known: list[tuple[str, list[str], Any]] = [
        ("item 2: unknown label 'jo'", ["a", "b"], [["joy"], ["jo"]]),
        (r"item 1: labels must be a list of names, got 'joy'; use \['joy'\]", ["a"], ["joy"]),
        ("got 2 and 1", ["a", "b"], [["joy"]]),
        ("item 2: labels must be a list of names, got None", ["a", "b"], [["joy"], None]),
        ("labels must be 0 or 1", ["a"], torch.tensor([[0.0, 1.0, 2.0]])),
    ]
    for message, items, labels in known:
        with pytest.raises(ValueError, match=message):
            model.evaluate(items, labels)
    for names in ([], ["a", "a"], [1, 2], "ab", [""]):
        with pytest.raises(ValueError, match="labels must be distinct names"):
            EncoderModel.from_encoder(text_encoder, names)  # type: ignore[arg-type]


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


@pytest.mark.train
def test_columns_of_pandas_are_taken_as_lists_are(text_encoder: Path) -> None:
    texts: Any = Column(MANY)
    labels: Any = Column(OF_MANY)
    for settings, rows in ((QUICK, len(MANY)), ({**FINETUNE, "epochs": 1}, 4)):
        model = EncoderModel.from_encoder(text_encoder, NAMES).fit(texts, labels, **settings)
        assert model.evaluation["num_samples"] == rows
        assert model.predict(texts) == model.predict(MANY)
        assert model.evaluate(texts, labels).as_dict() == model.evaluate(MANY, OF_MANY).as_dict()


def test_a_path_and_the_image_itself_are_predicted_alike_and_others_refused(
    seeing: EncoderModel, tmp_path: Path
) -> None:
    items, _ = images()
    with pytest.raises(TypeError, match=r"expected a list of images, got one image; write \['a.png'\]"):
        seeing.predict("a.png")
    for wrong in (None, b"bytes", [[0, 0, 0]]):
        with pytest.raises(TypeError, match="item 2: expected an image, got"):
            seeing.predict([items[0], wrong])
    exif, half = Image.Exif(), Image.new("RGB", (40, 20), (200, 0, 0))
    exif[ExifTags.Base.Orientation] = 6
    half.paste((0, 0, 200), (0, 0, 20, 20))
    half.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        assert seeing.predict([opened], every_label=True) == seeing.predict([tmp_path / "turned.png"], every_label=True)


def test_damaged_folders_are_refused(model: EncoderModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for wrong, message in (
        ({"max_tokens": -1}, "max_tokens must be an integer of at least 4, got -1"),
        ({"max_tokens": "many"}, "max_tokens must be an integer of at least 4, got 'many'"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "labels must be distinct names"),
        ({"id2label": {"0": "a", "1": "b", "2": None}}, "labels must be distinct names"),
        ({"rsoftmax_version": "99.0"}, "saved by rsoftmax 99.0"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**settings, **wrong}))
        with pytest.raises(ValueError, match=message):
            EncoderModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-1])
    with pytest.raises(ValueError, match="is damaged: "):
        EncoderModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"is damaged: tokenizer\.json is missing"):
        EncoderModel.from_pretrained(tmp_path)


def test_settings_of_fine_tuning_that_train_nothing_are_refused(text_encoder: Path) -> None:
    for wrong in ({"epochs": 0}, {"epochs": -1}, {"epochs": float("nan")}, {"batch_size": 0}, {"lr": 0}):
        with pytest.raises(
            ValueError, match="fine-tuning: epochs and lr must be positive and batch_size at least 1, got"
        ):
            EncoderModel.from_encoder(text_encoder, NAMES).fit(MANY, OF_MANY, finetune=True, verbose=False, **wrong)


def test_encoders_that_cannot_be_used_are_refused(text_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder, and not a hub id OWNER/NAME"):
        EncoderModel.from_encoder("nowhere", NAMES)
    with pytest.raises(ValueError, match="cannot load a model from"):
        EncoderModel.from_encoder(tmp_path, NAMES)
    with pytest.raises(ValueError, match="unknown pooling 'last'; choose one of 'mean', 'cls', 'max', 'pooled'"):
        EncoderModel.from_encoder(text_encoder, NAMES, pooling="last")
    for max_tokens in (0, 3, -1):
        with pytest.raises(ValueError, match=f"max_tokens must be an integer of at least 4, got {max_tokens}"):
            EncoderModel.from_encoder(text_encoder, NAMES, max_tokens=max_tokens)


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("the hub is asked again"))
    for load in (EncoderModel.from_pretrained, partial(EncoderModel.from_encoder, labels=NAMES), load_pretrained):
        with pytest.raises(ValueError, match="no such folder, not in the cache, and the hub cannot be reached"):
            load("me/nowhere")
