r"""TF-IDF of words and pairs of neighbouring words: sparse features of texts of any length, in any language.

.. math:: x_{dt} \propto (1 + \log n_{dt}) \left(1 + \log \frac{1 + N}{1 + N_t}\right), \qquad |x_d| = 1

with n occurrences of term t in document d, and N_t of N documents that contain it. Documents are read one by one.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from rsoftmax.labels.models.streams import batches

__all__ = ["Occurrences", "TfIdf"]

MIN_TEXTS = 2  # that contain a term
MAX_TERMS = 2**18
MAX_PAIRS = 2**26  # counted at the same time; beyond that, the rare ones are dropped
TEXTS_AT_ONCE = 500
SECOND = 2**31  # more than the number of any word
# Scripts without spaces between words: every character is a word. Thai, Lao, Myanmar, Khmer, kana, Han.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
MARKS = "".join(char for char in map(chr, range(0x300, 0xFFFF)) if unicodedata.category(char) in ("Mn", "Mc"))
PAUSES = r",.;:'\"()\-"  # no terms, unlike ! ? % and emoji
ASCII_WORD = re.compile(rf"\w+|[^\w\s{PAUSES}]")
WORD = re.compile(rf"[{UNSPACED}]|(?![{UNSPACED}])\w(?:(?![{UNSPACED}])[\w{MARKS}])*|[^\w\s{PAUSES}{MARKS}]")


def words(text: str) -> list[str]:
    """The words of a text in lower case, and its symbols.

    Example:
        >>> words("Don't panic! पानी 漢字")
        ['don', 't', 'panic', '!', 'पानी', '漢', '字']
    """
    return _pattern(text).findall(text.lower())


def word_spans(text: str) -> NDArray[np.int64]:
    """The first character of each word of a text, and the one behind its last, [words, 2].

    Example:
        >>> [("İyi günler!")[start:end] for start, end in word_spans("İyi günler!")]
        ['İyi', 'günler', '!']
    """
    lower = text.lower()
    spans = np.array([match.span() for match in _pattern(text).finditer(lower)], dtype=np.int64).reshape(-1, 2)
    if len(lower) == len(text):
        return spans
    ends = np.cumsum([len(char.lower()) for char in text])  # a few characters have two in lower case
    last = np.array([0, 1])
    original: NDArray[np.int64] = np.searchsorted(ends, spans - last, "right") + last
    return original


def _pattern(text: str) -> re.Pattern[str]:
    return ASCII_WORD if text.isascii() else WORD


class Occurrences(NamedTuple):
    """Where the terms of a text occur.

    Attributes:
        spans: the first character of each word, and the one behind its last, [words, 2].
        terms: the number of the term, for each occurrence.
        first, last: the numbers of its first and last word; the same, unless the term is a pair.
    """

    spans: NDArray[np.int64]
    terms: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


class TfIdf:
    """Maps texts to sparse unit vectors, one feature for each term.

    Args:
        terms: words, and pairs of words with a space between them.
        idf: the weight of each term.

    Example:
        >>> vectorizer = TfIdf.fit(["red wine", "red wine", "white wine"])
        >>> vectorizer.terms
        ['red', 'wine', 'red wine']
        >>> vectorizer.transform(["Wine, white"]).toarray().round(1)
        array([[0., 1., 0.]], dtype=float32)

    A term occurs in at least two texts; of more than 262,144 the most frequent ones are taken.
    """

    def __init__(self, terms: Sequence[str], idf: NDArray[np.float32]) -> None:
        if len(terms) != len(idf):
            raise ValueError(f"TfIdf: got {len(terms)} terms and {len(idf)} weights; each term has one")
        self.terms, self.idf = list(terms), idf
        self._ids: dict[str, int] = {}
        split = [[self._ids.setdefault(word, len(self._ids)) for word in term.split(" ")] for term in self.terms]
        self._word_terms = np.full(len(self._ids) + 1, -1)  # the last one: unknown words
        pairs: list[tuple[int, int]] = []
        for index, parts in enumerate(split):
            if len(parts) == 1:
                self._word_terms[parts[0]] = index
            else:
                pairs.append((SECOND * parts[0] + parts[1], index))
        self._pairs, self._pair_terms = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T

    @classmethod
    def fit(cls, texts: Iterable[str]) -> Self:
        """Choose the terms, and weight them by their rarity.

        Raises:
            ValueError: no word occurs in two texts.
        """
        ids: dict[str, int] = {}
        word_counts, pairs, pair_counts = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        num_texts, least = 0, 1
        for batch in batches(texts, TEXTS_AT_ONCE):
            num_texts += len(batch)
            numbered = [
                np.array([ids.setdefault(word, len(ids)) for word in words(text)], dtype=np.int64) for text in batch
            ]
            word_counts = np.pad(word_counts, (0, len(ids) - len(word_counts)))
            word_counts += np.bincount(_distinct(numbered), minlength=len(ids))
            new, counts = np.unique(_distinct(_pairs(x) for x in numbered), return_counts=True)
            pairs, pair_counts = _add(pairs, pair_counts, new, counts)
            while len(pairs) > MAX_PAIRS:
                frequent = pair_counts > least
                pairs, pair_counts, least = pairs[frequent], pair_counts[frequent], least + 1
        names = np.array(list(ids), dtype=object)
        counts = np.concatenate([word_counts, pair_counts])
        chosen = np.flatnonzero(counts >= MIN_TEXTS)
        if not len(chosen):
            raise ValueError(f"no word occurs in two of the {num_texts} texts: there is nothing to learn labels from")
        chosen = np.sort(chosen[np.argsort(-counts[chosen], kind="stable")[:MAX_TERMS]])
        first, second = np.divmod(pairs[chosen[chosen >= len(ids)] - len(ids)], SECOND)
        terms = [*names[chosen[chosen < len(ids)]], *(names[first] + " " + names[second])]
        idf = 1 + np.log((1 + num_texts) / (1 + counts[chosen]))
        return cls(terms, idf.astype(np.float32))

    def transform(self, texts: Iterable[str]) -> sp.csr_array:
        """The features of texts, float32 [texts, terms]; zeros for a text without any term."""
        parts = [self._features(batch) for batch in batches(texts, TEXTS_AT_ONCE)]
        return sp.vstack(parts, "csr") if parts else sp.csr_array((0, len(self.terms)), dtype=np.float32)

    def locate(self, text: str) -> Occurrences:
        """Where the terms of a text occur."""
        terms, position = self._terms(text), np.arange(len(words(text)))
        first, last = np.concatenate([position, position[:-1]]), np.concatenate([position, position[1:]])
        known = terms >= 0
        return Occurrences(word_spans(text), terms[known], first[known], last[known])

    def _terms(self, text: str) -> NDArray[np.int64]:
        """The number of each word of a text and, behind these, of each pair of neighbours; -1: no term."""
        unknown = len(self._ids)
        x = np.array([self._ids.get(word, unknown) for word in words(text)], dtype=np.int64)
        pairs = _pairs(x)
        at = np.searchsorted(self._pairs, pairs).clip(max=max(len(self._pairs) - 1, 0))
        is_term = self._pairs[at] == pairs if len(self._pairs) else np.zeros(len(pairs), bool)
        pair_terms = np.full(len(pairs), -1)
        pair_terms[is_term] = self._pair_terms[at[is_term]]
        return np.concatenate([self._word_terms[x], pair_terms])

    def _features(self, texts: Sequence[str]) -> sp.csr_array:
        rows = [terms[terms >= 0] for terms in map(self._terms, texts)]
        indices, indptr = np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]).astype(np.int32)
        x = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), len(self.terms)))
        x.sum_duplicates()
        x.data = (1 + np.log(x.data)) * self.idf[x.indices]
        lengths = np.sqrt(x.power(2).sum(1))
        x.data /= np.repeat(lengths, np.diff(x.indptr))
        return x


def _pairs(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each pair of neighbouring words."""
    return SECOND * words[:-1] + words[1:]


def _distinct(rows: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The distinct numbers of each text, one text after the other."""
    return np.concatenate([np.unique(row) for row in rows])


def _add(
    keys: NDArray[np.int64], counts: NDArray[np.int64], new: NDArray[np.int64], more: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sum of two tables of counts, sorted by key; the large one comes first."""
    at = np.searchsorted(keys, new)
    known = keys.take(at, mode="clip") == new if len(keys) else np.zeros(len(new), bool)
    counts[at[known]] += more[known]
    return np.insert(keys, at[~known], new[~known]), np.insert(counts, at[~known], more[~known])
