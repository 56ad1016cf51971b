"""Labels for texts from their words: TF-IDF and a linear classifier for each label, with nothing to download."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.sparse as sp
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm.auto import tqdm

from rsoftmax import __version__
from rsoftmax._transformers import check_unicode
from rsoftmax.labels.constraints import options_by_index
from rsoftmax.labels.decoding import Average, Decoder
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.base import (
    BaseLabelModel,
    Labels,
    check_names,
    holds_names,
    indicator,
    label_columns,
    unknown_labels,
)
from rsoftmax.labels.models.explanation import Explanation, explain_words
from rsoftmax.labels.models.folders import SETTINGS, WEIGHTS, WORDS, kind_of, read_settings, write
from rsoftmax.labels.models.linear import OneVsRest, SparseOutput, score
from rsoftmax.labels.models.stages import Stages
from rsoftmax.labels.models.streams import Stream
from rsoftmax.labels.models.tfidf import TfIdf
from rsoftmax.labels.models.tree import LabelTrees
from rsoftmax.labels.rules import Output
from rsoftmax.labels.sparse import Entries

if TYPE_CHECKING:
    from rsoftmax.labels.models.encoder_model import EncoderModel

__all__ = ["LabelModel"]

VOCABULARY = "vocabulary.json"
RULES = ("implies", "exclusive")
CSR = ("data", "indices", "indptr")
MANY = 1000  # labels: more of them are learned by label trees


@dataclass
class WordsConfig:
    """The settings of a :class:`LabelModel`, as ``config.json`` holds them.

    Attributes:
        labels: the names of the labels.
        head: the options of the decoder; implies and exclusive by index.
        columns: the columns of the training table by role, as the command line uses them.
        evaluation: :meth:`rsoftmax.labels.Evaluation.as_dict` on held-out texts.
        review: levels and thresholds of :meth:`rsoftmax.labels.BaseLabelModel.review`.
    """

    labels: list[str]
    head: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    review: dict[str, Any] | None = None

    @property
    def names(self) -> list[str]:
        """The labels in the order of the columns."""
        return self.labels


class LabelModel(BaseLabelModel):
    """Labels for texts of any length and language, from their words and pairs of words.

    TF-IDF features, a linear classifier for each label, and calibrated marginals from which the labels with the best
    expected F1 are predicted. Training takes seconds to minutes on a processor. For images, and for texts whose meaning
    counts more than their words, :meth:`from_encoder` returns an :class:`EncoderModel`.

    Args:
        labels: the names of the labels; None: those that occur in training.
        average: the F1 to maximise, "micro", "macro" or "samples".
        options: further options of the decoder, see :class:`rsoftmax.labels.DecoderOptions`: beta, min_labels,
            max_labels, zero_division; implies and exclusive by name, as in :class:`ExpectedF1Classifier`.

    Attributes:
        vectorizer: maps texts to features.
        classifier: maps features to marginals and labels.

    Example:
        >>> texts, y = ["red wine", "white wine", "red car", "white car"] * 9, [["drink"], ["drink"], [], []] * 9
        >>> model = LabelModel().fit(texts, y)
        >>> model.predict_labels(["a glass of wine", "a new car"])
        [['drink'], []]

    A text without any word of the vocabulary has the marginals of a text about which nothing is known.
    """

    config: WordsConfig
    vectorizer: TfIdf
    classifier: OneVsRest | LabelTrees

    def __init__(self, labels: Sequence[str] | None = None, average: Average = "micro", **options: Any) -> None:
        self.labels = None if labels is None else check_names(labels)
        self.options = {"average": average, **options}
        self.config = WordsConfig(self.labels or [])
        if self.labels is not None:
            Decoder(len(self.labels), **options_by_index(self.labels, self.options))

    @staticmethod
    def from_encoder(
        source: str | Path, labels: Sequence[str], average: Average = "micro", **options: Any
    ) -> "EncoderModel":
        """A model for texts or images on a pre-trained encoder: see :meth:`EncoderModel.from_encoder`."""
        from rsoftmax.labels.models.encoder_model import EncoderModel

        return EncoderModel.from_encoder(source, labels, average, **options)

    def fit(self, items: Sequence[str], y: Labels, **settings: Any) -> Self:
        """Train on texts, as in :meth:`BaseLabelModel.fit`.

        Args:
            items: texts.
            y: the names for each text, or a matrix of 0 and 1.
            settings: validation, guarantee, review, added, random_state, verbose; ``checkpoints``, a folder: if the
                training is interrupted, the same call resumes after the last finished stage there.
        """
        if self.labels is None and not holds_names(y):
            raise ValueError("LabelModel: labels are a matrix; name its columns: LabelModel(labels=['anger', 'joy'])")
        self.config.labels = self.labels or unknown_labels(y, [])
        self.config.head = options_by_index(self.names, self.options)
        return super().fit(items, y, **settings)

    def train_on(  # type: ignore[override]  # one further setting
        self,
        items: Sequence[str],
        y: sp.csr_array,
        validation: Any,
        *,
        random_state: int,
        verbose: bool,
        checkpoints: str | Path | None = None,
    ) -> Evaluation:
        """Fit vectorizer and classifier."""
        parts = [items] if validation is None else [items, validation[0]]
        stages = Stages()
        if checkpoints is not None:
            targets = [y] if validation is None else [y, validation[1]]
            stages = Stages(Path(checkpoints), _digest(parts, targets, self.names, self.config.head, random_state))
        tensors = stages("features", lambda: self._features(parts, verbose))
        self.vectorizer = TfIdf(json.loads(tensors["terms"].numpy().tobytes()), tensors["idf"].numpy())
        x, *held_out = (
            sp.csr_array(
                tuple(tensors[f"{number}.{name}"].numpy() for name in CSR), shape=(len(part), len(tensors["idf"]))
            )
            for number, part in enumerate(parts)
        )
        self.classifier = _kind(self.names)(len(self.names), self.config.head)
        calibrating = None if validation is None else (*held_out, validation[1])
        return self.classifier.fit(
            x, y, calibrating, names=self.names, random_state=random_state, verbose=verbose, stages=stages
        )

    def _features(self, parts: list[Sequence[str]], verbose: bool) -> dict[str, Tensor]:
        """The vocabulary of the first part, and the features of all, as tensors."""
        bar = tqdm(parts[0], desc="reading words", unit="texts", disable=not verbose)
        self.vectorizer = TfIdf.fit(bar)
        terms = bytearray(json.dumps(self.vectorizer.terms).encode())
        tensors = {"terms": torch.frombuffer(terms, dtype=torch.uint8), "idf": torch.from_numpy(self.vectorizer.idf)}
        for number, part in enumerate(parts):
            x = self.embed(part, verbose=verbose)
            tensors |= {f"{number}.{name}": torch.from_numpy(getattr(x, name)) for name in CSR}
        return tensors

    @property
    def modality(self) -> Literal["text"]:
        """Texts."""
        return "text"

    @property
    def decoder(self) -> Decoder:
        """Calibration, thresholds and constraints."""
        return self.classifier.decoder

    def check(self, items: Iterable[str]) -> Sequence[str]:
        """The texts as a list, unless they are a stream; raises unless all are texts."""
        if isinstance(items, str | Path):
            raise TypeError(f"expected a list of texts, got one text; write [{str(items)[:20]!r}]")
        texts = items if isinstance(items, Stream) else list(items)
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str):
                raise TypeError(f"item {number}: expected a text, got {text!r:.80}, a {type(text).__name__}")
            check_unicode(text, f"item {number}: ")
        return texts

    def embed(self, items: Sequence[str], *, verbose: bool = False) -> sp.csr_array:
        """The TF-IDF features of texts, [texts, terms]."""
        self._check_fitted()
        texts = self.check(items)
        return self.vectorizer.transform(tqdm(texts, desc="counting words", unit="texts", disable=not verbose))

    def sparse_outputs(self, items: Sequence[str], *, verbose: bool = False) -> SparseOutput:
        """The marginals of texts as a sparse matrix, and which of its entries are predicted."""
        return self._sparse_decode(self.embed(items, verbose=verbose))

    def adapt(self, items: Sequence[str], *, verbose: bool = False) -> Self:
        """Set the thresholds by the probabilities of many texts without labels, usually those to predict.

        This is worth it with ``average="macro"`` and thousands of labels, most of which held-out texts hardly have. The
        labels of a text then depend on the others. :attr:`evaluation` stays that of training.

        Args:
            items: texts.
            verbose: show progress bars.

        Raises:
            ValueError: the model has no thresholds (``average="samples"``), or guaranteed ones.
        """
        self._check_fitted()
        decoder = self.decoder
        if decoder.average == "samples" or "guarantee" in self.evaluation:
            what = "no thresholds" if decoder.average == "samples" else "guaranteed thresholds"
            raise ValueError(
                f"LabelModel: a model with {what} cannot be adapted; train with average='macro' or 'micro'"
            )
        marginals, t = self.sparse_outputs(items, verbose=verbose).marginals.tocoo(), torch.from_numpy
        if not marginals.shape[0]:
            raise ValueError("LabelModel: there are no texts to adapt to")
        u, sample, label = t(marginals.data).double().logit(), t(marginals.row).long(), t(marginals.col).long()
        thresholds = Entries(u, sample, label, *marginals.shape).thresholds(decoder.average, decoder.beta)
        decoder.threshold.copy_(thresholds.nan_to_num(neginf=0.0))
        return self

    def predict(
        self, items: Sequence[str], *, every_label: bool = False, verbose: bool = False
    ) -> list[dict[str, float]]:
        """Predict the labels of each text with their marginals, the most probable first.

        Args:
            items: texts.
            every_label: return all marginals that are not zero, not only those of predicted labels.
            verbose: show a progress bar.
        """
        return self._named(self.sparse_outputs(items, verbose=verbose), every_label)

    def explain(
        self, items: Sequence[str], *, every_label: bool = False, verbose: bool = False
    ) -> list[dict[str, Explanation]]:
        """Predict as :meth:`predict`, with what each word and sentence contributes to each label.

        Args:
            items: texts.
            every_label: explain all labels whose marginal is not zero, not only the predicted ones.
            verbose: show a progress bar.

        Example:
            >>> texts, y = ["red wine", "white wine", "red car", "white car"] * 9, [["drink"], ["drink"], [], []] * 9
            >>> text = "This wine is red."
            >>> (explained,) = LabelModel().fit(texts, y).explain([text])
            >>> word = explained["drink"].passages[0]
            >>> text[word.start : word.end], word.weight > 0
            ('wine', True)
        """
        texts = self.check(items)
        x = self.embed(texts, verbose=verbose)
        predicted = self._named(self._sparse_decode(x), every_label)
        number = {name: index for index, name in enumerate(self.names)}
        labels = [[number[name] for name in one] for one in predicted]
        parts = zip(texts, predicted, self.classifier.contributions(x, labels), strict=True)
        vocabulary, locate = self.vectorizer.terms, self.vectorizer.locate
        return [explain_words(text, locate(text), vocabulary, one, *part) for text, one, part in parts]

    def _named(self, output: SparseOutput, every_label: bool) -> list[dict[str, float]]:
        """The predicted labels of each text, or all with a marginal, by name, the most probable first."""
        marginals, predicted = output
        predictions = []
        for start, end in zip(marginals.indptr[:-1], marginals.indptr[1:], strict=True):
            pi, labels = marginals.data[start:end], marginals.indices[start:end]
            shown = pi > 0 if every_label else predicted[start:end]
            order = np.argsort(-pi[shown], kind="stable")
            names = (self.names[i] for i in labels[shown][order])
            predictions.append(dict(zip(names, pi[shown][order].tolist(), strict=True)))
        return predictions

    def save(self, folder: str | Path) -> None:
        """Save weights, vocabulary, settings and a model card as one folder, in a single step.

        Other files in the folder stay untouched, and so does an edited model card.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
            OSError: if the files cannot be written; an existing model stays intact.
        """
        self._check_fitted()
        with write(Path(folder)) as staged:
            tensors = {"idf": torch.from_numpy(self.vectorizer.idf), **self.classifier.state_dict()}
            (staged / WEIGHTS).write_bytes(save(tensors))
            terms = json.dumps(self.vectorizer.terms, ensure_ascii=False, indent=0)
            (staged / VOCABULARY).write_text(terms, encoding="utf-8")
            (staged / SETTINGS).write_text(json.dumps({"model_type": WORDS, **asdict(self.config)}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "LabelModel | EncoderModel":
        """Load a saved model of texts or images; one with an encoder may come from the hub.

        Raises:
            FileNotFoundError: if there is no model in the folder.
            ValueError: if it is damaged, of another kind, or of a newer version.
        """
        if kind_of(Path(folder)) != WORDS:
            from rsoftmax.labels.models.encoder_model import EncoderModel

            return EncoderModel.load(folder)
        settings = read_settings(Path(folder), WORDS)
        try:
            config = WordsConfig(
                **{part.name: settings[part.name] for part in fields(WordsConfig) if part.name in settings}
            )
            model, tensors = cls(config.labels), load_file(Path(folder, WEIGHTS))
            rules = {rule: [[config.labels[i] for i in group] for group in config.head.get(rule, ())] for rule in RULES}
            model.config, model.options = config, config.head | rules
            terms = json.loads(Path(folder, VOCABULARY).read_bytes())
            model.vectorizer = TfIdf(terms, tensors.pop("idf").numpy())
            model.classifier = _kind(config.labels).from_tensors(len(config.labels), config.head, tensors)
            model.outputs([""])  # do the parts fit together?
        except Exception as error:  # for files edited by hand there are many kinds
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "vectorizer"):
            raise ValueError("LabelModel: not trained yet; call fit")

    def _indicator(self, y: Any, names: Sequence[str]) -> sp.csr_array:
        """Labels as a sparse matrix of 1."""
        if sp.issparse(y) and y.shape[1] == len(names):
            y = sp.csr_array(y, dtype=np.float32, copy=True)
            y.sum_duplicates()
            if (y.data == 1).all():
                return y
        if holds_names(y):
            rows = label_columns(y, names)
            check_names(names)
            indices, indptr = np.array([*chain(*rows)], dtype=np.int64), np.cumsum([0, *map(len, rows)])
            return sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), len(names)))
        matrix = indicator(y.toarray() if sp.issparse(y) else y, names)
        if matrix.isnan().any():
            raise ValueError(
                "LabelModel: labels contain NaN; to learn from unknown labels use an encoder, or ExpectedF1Classifier"
                " with a TfidfVectorizer"
            )
        return sp.csr_array(matrix.numpy())

    def _sparse_decode(self, x: sp.csr_array) -> SparseOutput:
        output = self.classifier.predict(x)
        if np.isnan(output.marginals.data).any():
            raise ValueError("LabelModel: the output is NaN, which is not 'no label'; check the weights for NaN")
        return output

    def _decode(self, x: sp.csr_array) -> Output:
        """Labels from features, as dense tensors."""
        marginals, predicted = self._sparse_decode(x)
        log_odds = torch.from_numpy(marginals.toarray()).logit()
        labels = sp.csr_array((predicted, marginals.indices, marginals.indptr), shape=marginals.shape).toarray()
        probs = torch.softmax(log_odds.where(torch.from_numpy(labels), -torch.inf), -1).nan_to_num(0)
        return Output(log_odds, None, None, None, None, probs, log_odds)

    def _set_threshold(self, threshold: Tensor) -> None:
        self.classifier.set_threshold(threshold)

    def _score(self, x: sp.csr_array, y: sp.csr_array, names: Sequence[str]) -> Evaluation:
        return score(self._sparse_decode(x), y, names)


def _digest(parts: Sequence[Iterable[str]], targets: Sequence[sp.csr_array], *settings: Any) -> str:
    """What identifies a training: its texts, labels and settings, in this version."""
    digest = hashlib.sha256(repr((__version__, settings)).encode())
    for text in chain(*parts):
        digest.update(hashlib.sha256(text.encode()).digest())
    for y in targets:
        digest.update(y.indices.tobytes() + y.indptr.tobytes())
    return f"-{digest.hexdigest()[:12]}"


def _kind(names: Sequence[str]) -> type[OneVsRest | LabelTrees]:
    """The kind of classifier for so many labels."""
    return LabelTrees if len(names) > MANY else OneVsRest
