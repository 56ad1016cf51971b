"""Why a text has a label: its words, sentences or windows with their weights; as lines of text and as HTML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rsoftmax.labels.models.card import count_of, printable, readable

if TYPE_CHECKING:
    from rsoftmax.labels.models.tfidf import Occurrences

__all__ = ["Explanation", "Passage"]

# A sentence ends at a stop, with the quotation marks and brackets behind it, and at the end of a line.
STOPS, WIDE_STOPS = ".!?…؟।", "\u3002\uff01\uff1f"  # those in Chinese and Japanese need no space behind them
CLOSING = "\"'\u201d\u2019»)\\]"
SENTENCE = re.compile(
    rf"\S[^\n]*?(?:(?<![{STOPS}])[{STOPS}]++[{CLOSING}]*+(?=\s|$)|[{WIDE_STOPS}]++[{CLOSING}]*+|(?=\n)|$)"
)
FAINTEST = 0.03  # of the greatest weight, that is highlighted
MOST = 5  # sentences or windows that are listed
MOST_TERMS = 10
MOST_CHARACTERS = 100  # of a passage that is listed


class Passage(NamedTuple):
    """A part of a text, ``text[start:end]``, and its weight for a label."""

    start: int
    end: int
    weight: float


class Explanation(NamedTuple):
    """Why a text has a label.

    Attributes:
        marginal: the probability of the label.
        passages: with words as features, the words with their contributions to the log-odds of the label: positive for
            it, negative against it. With an encoder, the windows whose scores are pooled, with their shares, which sum
            to one: all other windows have no influence.
        sentences: the sums of the contributions of their words; empty with an encoder.
        terms: the contributions of words and pairs of words, wherever they occur, the largest first; empty with an
            encoder.
        base: the log-odds of the label in a text without any known word; None with an encoder.
    """

    marginal: float
    passages: list[Passage]
    sentences: list[Passage]
    terms: Mapping[str, float]
    base: float | None

    @property
    def log_odds(self) -> float | None:
        """The log-odds of the label: the base and all contributions, before a rule makes a parent more probable."""
        return None if self.base is None else self.base + sum(self.terms.values())

    def as_dict(self) -> dict[str, Any]:
        """The explanation as JSON can hold it."""
        passages = {name: [one._asdict() for one in getattr(self, name)] for name in ("passages", "sentences")}
        return {**self._asdict(), **passages}


# ---------------------------------------------------------------------------------------------- from contributions


def explain_words(
    text: str,
    occurrences: "Occurrences",
    vocabulary: Sequence[str],
    marginals: Mapping[str, float],
    contributions: NDArray[np.float64],
    base: NDArray[np.float64],
) -> dict[str, Explanation]:
    """Divide the contributions of terms among the words of a text.

    A term that occurs several times counts as much each time, and a pair of words as much for both of them.

    Args:
        text: the text.
        occurrences: of its terms.
        vocabulary: the terms by their numbers.
        marginals: of the labels to explain.
        contributions: of each distinct term to each label, [terms, labels].
        base: the log-odds without any term, [labels].
    """
    spans, terms, first, last = occurrences
    distinct, which, counts = np.unique(terms, return_inverse=True, return_counts=True)
    half = (contributions / counts[:, None])[which] / 2
    words = np.zeros((len(spans), len(marginals)))
    for place in (first, last):
        np.add.at(words, place, half)
    bounds = np.array([match.span() for match in SENTENCE.finditer(text)]).reshape(-1, 2)
    sentences = np.zeros((len(bounds), len(marginals)))
    np.add.at(sentences, np.searchsorted(bounds[:, 0], spans[:, 0], "right") - 1, words)
    explained = {}
    for label, (name, marginal) in enumerate(marginals.items()):
        order = np.argsort(-contributions[:, label], kind="stable")
        by_term = {vocabulary[distinct[i]]: float(contributions[i, label]) for i in order if contributions[i, label]}
        parts = _passages(spans, words[:, label]), _passages(bounds, sentences[:, label])
        explained[name] = Explanation(marginal, *parts, by_term, float(base[label]))
    return explained


def _passages(spans: NDArray[np.int64], weights: NDArray[np.float64]) -> list[Passage]:
    """The passages with a weight."""
    rows = zip(spans.tolist(), weights.tolist(), strict=True)
    return [Passage(start, end, weight) for (start, end), weight in rows if weight]


# ---------------------------------------------------------------------------------------------- for people


def explanation_lines(text: str, explanation: Explanation) -> Iterator[str]:
    """The passages that count most, one a line, so that all weights add up."""
    base = explanation.base
    listed, unit = (explanation.passages, "window") if base is None else (explanation.sentences, "sentence")
    most = sorted(listed, key=lambda passage: -abs(passage.weight))
    for passage in most[:MOST]:
        yield f"{_weight(passage.weight, base)}  {_quoted(text[passage.start : passage.end])}"
    if rest := most[MOST:]:
        yield f"{_weight(sum(passage.weight for passage in rest), base)}  {count_of(len(rest), f'other {unit}')}"
    if base is None:
        return
    yield f"{_weight(base, base)}  without any word"
    yield f"{_weight(explanation.log_odds or 0.0, base)}  log-odds"
    terms = sorted(explanation.terms.items(), key=lambda term: -abs(term[1]))[:MOST_TERMS]
    if terms:
        yield f"words: {', '.join(f'{printable(term)} {weight:+.2f}' for term, weight in terms)}"


def _weight(weight: float, base: float | None) -> str:
    """A share as per cent, a contribution with its sign."""
    return f"{weight:>6.0%}" if base is None else f"{weight:>+6.2f}"


def _quoted(passage: str) -> str:
    """A passage in one line, without its middle if it is long."""
    line = printable(" ".join(passage.split()))
    half = MOST_CHARACTERS // 2
    return line if len(line) <= MOST_CHARACTERS else f"{line[:half].rstrip()} … {line[-half:].lstrip()}"


STYLE = """
.rs-text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; line-height: 1.7 }
.rs-text mark { color: inherit; border-radius: .2em; padding: .1em 0 }
.rs-text .rs-for { background: rgb(50 120 255 / calc(var(--strength) * .5)) }
.rs-text .rs-against { background: rgb(240 130 20 / calc(var(--strength) * .5)) }
.rs-lines { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85em; opacity: .8 }
"""
"""The style of :func:`highlighted`."""


def highlighted(text: str, explanation: Explanation) -> str:
    """HTML of a text with its passages highlighted, blue for the label and orange against it, and their list."""
    weights = [abs(passage.weight) for passage in explanation.passages]
    most, parts = max(weights, default=1.0), []
    for start, end, weight in _segments(len(text), explanation.passages):
        shown = escape(text[start:end])
        if abs(weight) >= FAINTEST * most:
            kind, strength = "for" if weight > 0 else "against", min(abs(weight) / most, 1)
            title = _weight(weight, explanation.base).strip()
            shown = f'<mark class="rs-{kind}" style="--strength: {strength:.2f}" title="{title}">{shown}</mark>'
        parts.append(shown)
    lines = "\n".join(map(escape, explanation_lines(text, explanation)))
    return f'<div class="rs-text" dir="auto">{"".join(parts)}</div>\n<pre class="rs-lines">{lines}</pre>'


def _segments(length: int, passages: Sequence[Passage]) -> Iterator[Passage]:
    """Consecutive parts of a text, with the sum of the weights of the passages that cover them."""
    changes = dict.fromkeys((0, length), 0.0)
    for start, end, weight in passages:
        changes[start] = changes.get(start, 0.0) + weight
        changes[end] = changes.get(end, 0.0) - weight
    weight = 0.0
    for start, end in pairwise(sorted(changes)):
        weight += changes[start]
        yield Passage(start, end, weight)


def explanations_page(items: Sequence[tuple[str, str, Mapping[str, Explanation]]]) -> str:
    """A page of HTML without scripts and requests.

    Args:
        items: name, text, and explanations by label.
    """
    return PAGE.replace("STYLE", STYLE).replace("BODY", "\n".join(_section(*item) for item in items))


def _section(name: str, text: str, explanations: Mapping[str, Explanation]) -> str:
    labels = [
        f"<h3>{escape(printable(label))} <small>{readable(one.marginal)}</small></h3>\n{highlighted(text, one)}"
        for label, one in explanations.items()
    ]
    shown = labels or [f"<p>no label</p>\n{highlighted(text, Explanation(0.0, [], [], {}, None))}"]
    return "\n".join(["<section>", f"<h2>{escape(_quoted(name))}</h2>", *shown, "</section>"])


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rsoftmax: why these labels</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8886; margin-top: 2rem }
h2 { font-size: 1rem; opacity: .7 }
h3 { margin: 1.5rem 0 .3rem }
small { font-weight: normal; font-variant-numeric: tabular-nums }
STYLE</style>
</head>
<body>
<h1>Why these labels</h1>
<p>Blue speaks for the label, orange against it.</p>
BODY
</body>
</html>
"""
