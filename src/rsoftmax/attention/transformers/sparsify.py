r"""Thresholds for the attention of pretrained models, within an error certified on text.

Dropping the softmax weights below ``e^-t`` of the largest one changes a pretrained model little: most weights are that
small, and together they have little mass. :func:`sparsify` finds a small ``t`` whose effect on the model's output stays
within a given error. Half of the batches select candidates:

1. a dense pass predicts the error of every ``t``; see :mod:`rsoftmax.attention.transformers.thresholds`;
2. bisection finds the ``t`` of a predicted error, and runs of the sparse model correct the prediction;
3. the candidates are the ``t`` predicted to have 10, 30, 50, 65, 80 and 95 % of the error.

The other half, held out, certifies one of them by fixed-sequence testing: candidates are tested in this order, fixed in
advance, up to the first whose mean error cannot be shown to be within the limit. The last one before it is chosen. Each
test may use the same batches and the full level of 5 %: for any threshold that exceeds the limit, the first such one
has to pass. See Angelopoulos et al., Learn then test (2021). The test is
:func:`rsoftmax.attention.transformers.compare.is_certified`.

With ``per_head=True`` three families of thresholds compete, and the first half selects the one with the most zeros.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from rsoftmax.attention.transformers.api import HeadTable, head_parameters, pretrained_model, set_attention
from rsoftmax.attention.transformers.compare import (
    CONFIDENCE,
    Batch,
    Comparison,
    Tick,
    compare,
    dense_implementation,
    restored,
    samples_of,
    split_batches,
    step_of,
    texts_needed,
)
from rsoftmax.attention.transformers.measure import zeros_of
from rsoftmax.attention.transformers.saving import certify, register_attention
from rsoftmax.attention.transformers.thresholds import (
    Family,
    Thresholds,
    collect,
    distances,
    equal_distance,
    fewest_keys,
    gradient_covariance,
    mean_keys,
    one_for_all,
)
from rsoftmax.attention.transformers.timing import ROUNDS, ExpectedTime, longest_text, measure_time

SHARES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.95)  # of the error: the candidates, in the order in which they are tested
MIN_TEXTS, MIN_SAMPLES = 4, 30  # held out; samples are the tokens of a language model, or texts of any other model
CORRECTIONS = 2  # of the predicted error, by runs of the sparse model


@dataclass(frozen=True)
class SparsifyReport:
    """What :func:`sparsify` measured; ``print(report)`` shows it as tables.

    Attributes:
        t: the threshold, or a table ``[layers, heads]``.
        edge: the width of the edge in nats.
        max_error: the limit that is certified: the mean error is at most this, with 95 % confidence.
        error: the mean error of the sparse model on the held-out batches.
        standard_error: its standard error.
        metric: what the error is.
        zeros: the share of exact zeros per layer and head, on the held-out batches.
        total_variation: the distance from softmax per layer and head, predicted from the other batches.
        by_length: number of keys (from, to), error, standard error and number of samples.
        texts: the number of held-out texts.
        max_length: the largest number of keys that was measured.
        time: the time relative to torch's attention, on the longest held-out text.
        seconds: how long it took.
    """

    t: float | HeadTable
    edge: float
    max_error: float
    error: float
    standard_error: float
    metric: str
    zeros: HeadTable
    total_variation: HeadTable
    by_length: list[tuple[int, int, float, float, int]]
    texts: int
    max_length: int
    time: ExpectedTime
    seconds: float

    def __str__(self) -> str:
        t = f"{self.t:.3g}" if isinstance(self.t, float) else f"{self.t.mean():.3g} on average, one per head"
        lines = [
            f"t_softmax, t = {t}, edge = {self.edge:g}",
            f"{self.metric}: at most {self.max_error:g} with {CONFIDENCE:.0%} confidence;"
            f" {self.error:.2g} +- {self.standard_error:.1g} on {self.texts} held-out texts",
            f"zeros {self.zeros.mean():.1%}, total variation distance from softmax {self.total_variation.mean():.1%},"
            f" up to {self.max_length} keys",
            str(self.time),
            f"found in {self.seconds:.0f} s",
            f"{'keys':>12} {'error':>9} {'+-':>8} {'samples':>8}",
        ]
        for first, last, mean, deviation, count in self.by_length:
            lines.append(f"{f'{first + 1}-{last}':>12} {mean:9.5f} {deviation:8.5f} {count:8d}")
        return "\n".join([*lines, str(self.zeros), str(self.total_variation)])


def sparsify(
    model: nn.Module,
    batches: Iterable[Batch],
    max_error: float = 0.005,
    *,
    held_out: Iterable[Batch] | None = None,
    per_head: bool = False,
    edge: float = 0.0,
    verbose: bool = False,
) -> SparsifyReport:
    """Switch a pretrained model to ``t_softmax`` attention with a small threshold that stays within a given error.

    Args:
        model: as in :func:`set_attention`. It is modified in place, without training.
        batches: the model's inputs; it is called as ``model(**batch)``. Use texts as long as those of the application.
        max_error: the limit of the mean error, certified on held-out batches with 95 % confidence. For language models
            it is the Kullback-Leibler divergence of the next-token distribution from the dense model's, in nats per
            token; for classifiers that of the class distribution; for encoders one minus the cosine of the mean-pooled
            embeddings.
        held_out: batches used only to certify the error. Default: the second half of ``batches``.
        per_head: choose a threshold for each head by its distance from softmax or by its effect on the error, which
            takes a backward pass; a single threshold for all heads is used if that gives more zeros.
        edge: the width of the edge in nats. 0 gives the most zeros for a given error; use 1 if the model will be
            fine-tuned.
        verbose: show a progress bar.

    Returns:
        The threshold and what was measured; see :class:`SparsifyReport`. ``save_pretrained`` stores the threshold with
        the model. The model warns when it is called with more keys than were measured.

    Raises:
        ValueError: no batches, too few held-out samples, no threshold that they certify, or a model whose attention
            cannot be replaced. The model is left unchanged.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> _ = torch.manual_seed(0)
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        >>> model = BertModel(BertConfig(num_hidden_layers=2, **sizes))
        >>> batches = [{"input_ids": torch.randint(50, (40, 12))} for _ in range(2)]
        >>> report = sparsify(model, batches, max_error=0.01)
        >>> report.error < report.max_error
        True

    A text is a row of a batch. The certificate assumes that texts are independent draws from those of the application:
    several pieces of one document count as one text, so pass one of each. Their errors may be skewed, up to those of a
    lognormal distribution with a standard deviation of 1.5.
    """
    fit, test = split_batches(batches, held_out)
    if not 0 < max_error < math.inf:
        raise ValueError(
            f"sparsify: max_error must be positive, got {max_error!r}; 0.005 changes perplexity by about 0.5 %"
        )
    if not edge >= 0:
        raise ValueError(f"sparsify: edge must be at least 0, got {edge!r}")
    if not test:
        raise ValueError("sparsify: no held-out batches; pass held_out= or at least two batches")
    samples = [counts for batch in test if (counts := samples_of(model, batch)) is not None]
    if len(samples) == len(test):  # before the model runs
        _check_size(sum(map(sum, samples)), sum(map(len, samples)))
    register_attention()
    # twice: if an interrupt ends the first restoration, the second one is complete
    with restored(model, only_after_error=True), restored(model, only_after_error=True):
        return _sparsify(model, fit, test, max_error, per_head, edge, verbose)


def _check_size(samples: int, texts: int) -> None:
    """Raise if so few held-out samples certify no error, however small."""
    if samples < MIN_SAMPLES or texts < MIN_TEXTS:
        raise ValueError(
            f"sparsify: {samples} held-out samples of {texts} texts are too few to certify an error; give at least"
            f" {MIN_SAMPLES} samples (tokens of a language model, else texts) of {MIN_TEXTS} texts, held out from at"
            " least as many others"
        )


def _sparsify(
    model: nn.Module, fit: list[Batch], test: list[Batch], max_error: float, per_head: bool, edge: float, verbose: bool
) -> SparsifyReport:
    started = time.perf_counter()
    dense = dense_implementation(pretrained_model(model))
    passes = len(fit) * (1 + CORRECTIONS * (4 if per_head else 2)) + len(test) * (1 + len(SHARES)) + 2 * ROUNDS
    with tqdm(total=passes, unit="pass", disable=not verbose) as bar:
        with restored(model):
            set_attention(model, "t_softmax", t=math.inf, edge=edge)
            layers = collect(model, fit, edge, gradient_covariance(model, fit) if per_head else None, bar.update)
        families = [one_for_all(layers, edge)]
        families += [equal_distance(layers, edge), fewest_keys(layers)] if per_head else []
        sequences = _candidates(partial(_try, model, fit, edge, bar.update), families, max_error)
        candidates = min(sequences, key=lambda sequence: mean_keys(layers, sequence[-1]))
        results = _try(model, test, edge, bar.update, candidates)
        chosen, result = _choose(candidates, results, max_error)
        set_attention(model, "t_softmax", t=_simplest(chosen), edge=edge)
        with restored(model):
            expected = measure_time(model, longest_text(test), dense, bar.update)
    error, standard_error = result.mean()
    zeros, longest = zeros_of(model, test, step_of(test))
    certificate = {"max_error": max_error, "confidence": CONFIDENCE, "error": error, "standard_error": standard_error}
    certify(pretrained_model(model), {**certificate, "texts": result.texts, "max_length": longest})
    return SparsifyReport(
        t=head_parameters(model) if per_head else _simplest(chosen),
        edge=edge,
        max_error=max_error,
        error=error,
        standard_error=standard_error,
        metric=result.metric,
        zeros=zeros,
        total_variation=distances(layers, chosen, edge),
        by_length=result.by_length(),
        texts=result.texts,
        max_length=longest,
        time=expected,
        seconds=time.perf_counter() - started,
    )


def _try(
    model: nn.Module, batches: list[Batch], edge: float, tick: Tick, candidates: list[Thresholds]
) -> list[Comparison]:
    settings = [{"mapping": "t_softmax", "t": _simplest(t), "edge": edge} for t in candidates]
    return compare(model, batches, settings, tick)


def _simplest(t: Thresholds) -> Any:
    """The thresholds as one number if they are equal."""
    values = torch.cat(t)
    return float(f"{values[0]:.6g}") if (values == values[0]).all() else t


def _candidates(
    measure: Callable[[Any], list[Comparison]], families: list[Family], max_error: float
) -> list[list[Thresholds]]:
    """For each family the thresholds of shares of the error, where runs of the sparse model correct the predictions."""
    scales = [1.0] * len(families)
    for _ in range(CORRECTIONS):
        guesses = [family(max_error / scale) for family, scale in zip(families, scales, strict=True)]
        measured = [result.mean()[0] for result in measure([t for t, _ in guesses])]
        scales = [max(mean, 1e-12) / max(guess[1], 1e-12) for mean, guess in zip(measured, guesses, strict=True)]
    pairs = zip(families, scales, strict=True)
    return [[family(share * max_error / scale)[0] for share in SHARES] for family, scale in pairs]


def certified(passes: Iterable[bool]) -> int:
    """How many candidates pass before the first failure; that one and all after it are not certified."""
    return len(list(takewhile(bool, passes)))


def _choose(candidates: list[Thresholds], results: list[Comparison], max_error: float) -> tuple[Thresholds, Comparison]:
    """The last certified candidate; raises if there is none."""
    first = results[0]
    _check_size(first.samples, first.texts)
    if not (passed := certified(result.is_certified(max_error) for result in results)):
        mean, deviation = first.mean()
        needed = texts_needed(mean, deviation * math.sqrt(first.texts), max_error)
        remedy = (
            f"pass about {needed} of them, like those in batches" if needed else "they differ from those in batches"
        )
        raise ValueError(
            f"sparsify: no threshold is certified to have an error of at most {max_error:g}: the safest candidate has"
            f" {mean:.2g} +- {deviation:.1g} on {first.texts} held-out texts; {remedy}, or a larger max_error"
        )
    return candidates[passed - 1], results[passed - 1]
