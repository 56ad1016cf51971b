"""Features: embeddings from an encoder, and preprocessing for networks, with scikit-learn or as a torch module."""

import math
import operator
import warnings
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler
from torch import Tensor, nn

from rsoftmax.labels.estimators.targets import Matrix

__all__ = ["Embedder"]

PREPROCESSING = ("auto", None)
QUANTILES = 1000
CLIP = 3.0  # standard deviations
UNEVEN = 1000.0  # ratio of standard deviations from which a network learns from few columns only
TOLERANCE = 1e-7  # as in scikit-learn: values this close to the extremes count as extremes
NEAREST = 0.0005  # to 0 and 1: every quantile beyond is clipped


class Embedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns texts, or images, into the features of a pre-trained encoder; a scikit-learn transformer.

    Args:
        source: a folder or hub id of a transformers encoder or a SentenceTransformer.
        pooling, normalize, max_tokens: as in :meth:`rsoftmax.labels.LabelModel.from_encoder`. Default: those of
            the SentenceTransformer, or the mean. A long text gets the mean of the features of its windows.
        batch_size: items per batch.
        verbose: 1 shows a progress bar.

    ``make_pipeline(Embedder(folder), ExpectedF1Classifier(LogisticRegression()))`` classifies texts. Copies of an
    embedder share the encoder, which is neither fitted nor pickled. Needs ``pip install 'rsoftmax[labels]'``.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_tokens: int | None = None,
        batch_size: int = 32,
        verbose: int = 0,
    ) -> None:
        self.source, self.pooling, self.normalize, self.max_tokens = source, pooling, normalize, max_tokens
        self.batch_size, self.verbose = batch_size, verbose

    def fit(self, X: Any = None, y: Any = None) -> "Embedder":
        """Load the encoder; nothing is fitted."""
        self._encoder()
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embed texts or images as an array [items, features]."""
        features: Tensor = self._encoder().embed(X, batch_size=self.batch_size, verbose=self.verbose > 0)
        return features.numpy()

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the features: embedding0, embedding1, ..."""
        return np.array([f"embedding{i}" for i in range(self._encoder().config.features)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def _encoder(self) -> Any:
        return _load_encoder(str(self.source), self.pooling, self.normalize, self.max_tokens)


@lru_cache(maxsize=2)  # clones in a search or a cross-validation share it
def _load_encoder(source: str, pooling: str | None, normalize: bool | None, max_tokens: int | None) -> Any:
    """An encoder with a head that is not used; by name, as the estimators do not depend on transformers."""
    label_model = import_module("rsoftmax.labels").LabelModel
    options = {"pooling": pooling, "normalize": normalize, "max_tokens": max_tokens}
    return label_model.from_encoder(source, ["unused"], **options)


def fit_preprocessing(X: Matrix, preprocessing: str | None, random: np.random.RandomState) -> Any:
    """Return a transformer fitted to features [samples, d], or None if they are left unchanged.

    Args:
        X: features, dense or sparse.
        preprocessing: "auto": dense columns are mapped to a normal distribution by their quantiles, clipped at 3 and
            standardised; sparse counts are weighted by TF-IDF and rows scaled to length ``sqrt(d)``; sparse rows with
            negative values are scaled by one number. None: no preprocessing.
        random: draws the samples from which quantiles are computed, if there are very many.
    """
    if preprocessing is None or X.ndim != 2:
        _warn_if_uneven(X)
        return None
    if not sp.issparse(X):
        quantiles = QuantileTransformer(
            n_quantiles=min(QUANTILES, len(X)), output_distribution="normal", random_state=random.randint(2**31)
        )
        clip = FunctionTransformer(np.clip, kw_args={"a_min": -CLIP, "a_max": CLIP})
        return make_pipeline(quantiles, clip, StandardScaler()).fit(X)
    if (X.data < 0).any():
        size = float(np.sqrt((X.data**2).sum() / max(X.shape[0] * X.shape[1], 1))) or 1.0
        return _scaling(1 / size).fit(X)
    return make_pipeline(TfidfTransformer(), _scaling(float(np.sqrt(X.shape[1])))).fit(X)


def _scaling(factor: float) -> FunctionTransformer:
    return FunctionTransformer(partial(operator.mul, factor), accept_sparse=True)


def _warn_if_uneven(X: Matrix) -> None:
    if sp.issparse(X) or X.ndim != 2:
        return
    spread = X.std(0, dtype=np.float64)
    spread = spread[spread > 0]
    if len(spread) and spread.max() > UNEVEN * spread.min():
        warnings.warn(
            f"SparseLabelClassifier: the standard deviations of the features range from {spread.min():.2g} to"
            f" {spread.max():.2g}; scale the features, or use preprocessing='auto'",
            stacklevel=5,
        )


class Preprocessing(nn.Module):
    r"""The preprocessing of dense features as a torch module, which ONNX can express.

    .. math:: y = (\mathrm{clip}(\Phi^{-1}(p(x)), -3, 3) - \mathrm{mean}) / \mathrm{scale}

    from [samples, features] to [samples, features], where p(x) is the fraction of training samples below x, linear
    between quantiles, and the middle of equal ones. It is computed in float64, in which scikit-learn's
    QuantileTransformer decides whether a float32 value equals a quantile.

    Args:
        features: the number of features.
        quantiles: the number of quantiles per feature.
    """

    quantiles: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, quantiles: int) -> None:
        super().__init__()
        self.register_buffer("quantiles", torch.zeros(features, quantiles, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    @classmethod
    def of(cls, pipeline: Any) -> "Preprocessing":
        """Copy what :func:`fit_preprocessing` fitted to dense features."""
        quantiles, _, scaler = (step for _, step in pipeline.steps)
        module = cls(*quantiles.quantiles_.T.shape)
        module.quantiles.copy_(torch.from_numpy(quantiles.quantiles_.T.copy()))
        module.mean.copy_(torch.from_numpy(scaler.mean_))
        module.scale.copy_(torch.from_numpy(scaler.scale_))
        return module

    def forward(self, x: Tensor) -> Tensor:
        """Transform features."""
        q, values = self.quantiles, x.double().unsqueeze(-1)
        last = q.shape[1] - 1
        below, upto = (q < values).sum(-1), (q <= values).sum(-1)
        left = (upto - 1).clamp(0, max(last - 1, 0))
        low, high = self._at(left), self._at((left + 1).clamp(max=last))
        between = left + (x - low) / (high - low).where(high > low, 1)
        p = torch.where(upto > below, (below + upto - 1) / 2, between) / max(last, 1)
        p = p.where((x + TOLERANCE).double() <= q[:, -1], 1)
        p = p.where((x - TOLERANCE).double() >= q[:, 0], 0)
        return (normal_quantile(p.float()).clamp(-CLIP, CLIP) - self.mean) / self.scale

    def _at(self, index: Tensor) -> Tensor:
        return self.quantiles.expand(index.shape[0], -1, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def normal_quantile(p: Tensor) -> Tensor:
    r"""Compute the inverse of the normal distribution function, for p clamped to [0.0005, 0.9995].

    Uses operators that ONNX has: an initial approximation with an error below 0.005, then three Newton steps.

    Example:
        >>> normal_quantile(torch.tensor([0.0, 0.5, 0.975])).round(decimals=3)
        tensor([-3.2910,  0.0000,  1.9600])

    Reference: Winitzki, A handy approximation for the error function and its inverse (2008).
    """
    p = p.clamp(NEAREST, 1 - NEAREST)
    log = torch.log(4 * p * (1 - p))
    half = 2 / (math.pi * 0.147) + log / 2
    z = math.sqrt(2) * (p - 0.5).sign() * ((half.square() - log / 0.147).clamp(min=0).sqrt() - half).clamp(min=0).sqrt()
    for _ in range(3):
        z = z - (0.5 * (1 + torch.erf(z / math.sqrt(2))) - p) * math.sqrt(2 * math.pi) * (z.square() / 2).exp()
    return z
