"""One run of the text experiment: logits of dev and test rows, scored with each decision rule."""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor

from rsoftmax._transformers import quiet
from rsoftmax.labels import LabelModel
from rsoftmax.labels.estimators.ensemble import fit_features
from rsoftmax.labels.estimators.expected_f1 import logit
from rsoftmax.labels.models.folders import replacing
from rsoftmax_lab.experiments.goemotions import Part, Texts, read, tfidf
from rsoftmax_lab.experiments.text.grid import Run
from rsoftmax_lab.experiments.text.rules import scored
from rsoftmax_lab.running.runs import Row, differences, key

EVALUATIONS = 8  # per epoch of fine-tuning


def run(model: str, data: Path, out: Path, run: Run) -> Row:
    """Train, and score every decision rule; returns the row of a run.

    Args:
        model: the encoder's folder or hub id.
        data: the folder of the dataset.
        out: the folder of results, with cached features and checkpoints.
        run: the settings.
    """
    texts = read(data)
    parts = [part.first(run.rows) for part in (texts.train, texts.dev, texts.test)]
    dev, test = {"tfidf": _words, "frozen": _frozen, "finetuned": _finetuned}[run.way](model, out, run, texts, *parts)
    return {"rules": scored(dev, parts[1].truth, test, parts[2].truth)}


def _words(model: str, out: Path, run: Run, texts: Texts, train: Part, dev: Part, test: Part) -> tuple[Tensor, Tensor]:
    """Logistic regression on TF-IDF of uni- and bigrams."""
    vectors = tfidf().fit(train.texts)
    classifier = OneVsRestClassifier(LogisticRegression(C=10, max_iter=1000))
    classifier.fit(vectors.transform(train.texts), train.truth.numpy())

    def scores(part: Part) -> Tensor:
        return torch.from_numpy(logit(classifier.predict_proba(vectors.transform(part.texts)))).clamp(-30, 30)

    return scores(dev), scores(test)


def _frozen(model: str, out: Path, run: Run, texts: Texts, train: Part, dev: Part, test: Part) -> tuple[Tensor, Tensor]:
    """The recipe of :meth:`LabelModel.fit`, with the dev rows as held-out rows."""
    x, aside, asked = (_features(model, out, run, texts, part) for part in (train, dev, test))
    network, _ = fit_features(x, train.truth, (aside, dev.truth), texts.names, {}, random_state=run.seed)
    with torch.no_grad():
        return network.scores(aside).margins, network.scores(asked).margins


def _finetuned(
    model: str, out: Path, run: Run, texts: Texts, train: Part, dev: Part, test: Part
) -> tuple[Tensor, Tensor]:
    """:meth:`LabelModel.fit` with ``finetune``, from the last checkpoint of a run that was stopped."""
    tuned = LabelModel.from_encoder(model, texts.names, max_tokens=run.max_tokens)
    name = hashlib.sha256(key(differences(run)).encode()).hexdigest()[:12]
    tuned.fit(
        train.texts,
        train.truth,
        validation=dev,
        finetune=True,
        progress=False,
        seed=run.seed,
        epochs=run.epochs,
        lr=run.lr,
        batch_size=run.batch_size,
        evaluations_per_epoch=EVALUATIONS,
        patience=EVALUATIONS,
        checkpoints=out / "text-checkpoints" / name,
    )
    with torch.no_grad():
        return (
            tuned.network.scores(tuned.embed(dev.texts)).margins,
            tuned.network.scores(tuned.embed(test.texts)).margins,
        )


def _features(model: str, out: Path, run: Run, texts: Texts, part: Part) -> Tensor:
    """The encoder's features of texts, cached in a file."""
    digest = hashlib.sha256(repr((run.model, run.max_tokens, part.texts)).encode()).hexdigest()[:16]
    path = out / "text-features" / f"{digest}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with quiet():
            encoder = LabelModel.from_encoder(model, texts.names, max_tokens=run.max_tokens)
        with replacing(path) as unfinished:  # other processes may compute the same features
            save_file({"x": encoder.embed(part.texts).clone()}, unfinished)
    return load_file(path)["x"]
