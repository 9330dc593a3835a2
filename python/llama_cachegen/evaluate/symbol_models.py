"""Cost of symbols under probability models, counted in numpy: contexts, channels that share models, rounded tables.

`clustered`, `choose_classes` and `make_frequencies` do what the encoder of LCG3 does (native/codec/lcg3_models.cpp), so
that what is left out of the format can be measured on the same terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Cost",
    "by_class",
    "by_model",
    "choose_classes",
    "clustered",
    "coded_bits",
    "count",
    "distance_counts",
    "ideal_bits",
    "make_frequencies",
    "model_cost",
    "sampled_chunks",
    "table_bytes",
]

Ints = NDArray[np.int64]

PROB_BITS = 10
N_ITERATIONS = 12
CHUNK_TOKENS = 32


class Cost(NamedTuple):
    """Bits of symbols and of the tables they need.

    Attributes:
        ideal: with exact probabilities, those of the data itself; NaN where that has no meaning.
        coded: with probabilities rounded to a table of whole numbers.
        tables: size of those tables and of each channel's model number, in bits.
    """

    ideal: float
    coded: float
    tables: float

    def plus(self, other: Cost) -> Cost:
        """The sum of both."""
        return Cost(self.ideal + other.ideal, self.coded + other.coded, self.tables + other.tables)


# counting


def count(contexts: Iterable[NDArray[Any]], symbols: Iterable[NDArray[Any]], n_contexts: int, n_symbols: int) -> Ints:
    """How often each symbol occurs in each context, channel by channel.

    Args:
        contexts: of each plane, [n_tokens, n_channels], each below n_contexts.
        symbols: of each plane, integers [n_tokens, n_channels], each below n_symbols.
        n_contexts, n_symbols: see above.

    Returns:
        int64 [channels of all planes, n_contexts, n_symbols].
    """
    parts = []
    for context, symbol in zip(contexts, symbols, strict=True):
        n_channels = symbol.shape[1]
        index = np.arange(n_channels, dtype=np.int64) * n_contexts + context
        index *= n_symbols
        index += symbol
        counts = np.bincount(index.ravel(), minlength=n_channels * n_contexts * n_symbols)
        parts.append(counts.reshape(n_channels, n_contexts, n_symbols))
    return np.concatenate(parts)


def distance_counts(pairs: Ints) -> Ints:
    """How often each distance between a symbol and its context occurs.

    Args:
        pairs: int64 [n_channels, n_symbols, n_symbols].

    Returns:
        int64 [n_channels, 1, n_symbols].
    """
    n_symbols = pairs.shape[1]
    distance = np.abs(np.arange(n_symbols)[:, np.newaxis] - np.arange(n_symbols))
    counts = np.zeros((len(pairs), 1, n_symbols), dtype=np.int64)
    for d in range(n_symbols):
        counts[:, 0, d] = pairs[:, distance == d].sum(axis=1)
    return counts


def by_class(counts: Ints, class_of: Ints) -> Ints:
    """Counts with the contexts of each class put together: [n_channels, contexts, A] to [n_channels, classes, A]."""
    out = np.zeros((len(counts), int(class_of.max()) + 1, counts.shape[2]), dtype=np.int64)
    for context, of_class in enumerate(class_of):
        out[:, of_class] += counts[:, context]
    return out


def by_model(counts: Ints, model_of: Ints) -> Ints:
    """Counts with the channels of each model put together: [n_channels, K, A] to [n_models, K, A]."""
    order = np.argsort(model_of, kind="stable")
    begins = np.searchsorted(model_of[order], np.arange(int(model_of.max()) + 1))
    return np.asarray(np.add.reduceat(counts[order], begins, axis=0), dtype=np.int64)


def sampled_chunks(n_tokens: int, n_sampled: int) -> list[slice]:
    """The stretches of tokens that the encoder makes its models from."""
    n_chunks = -(-min(n_tokens, n_sampled) // CHUNK_TOKENS)
    begins = [i * CHUNK_TOKENS if n_sampled >= n_tokens else i * n_tokens // n_chunks for i in range(n_chunks)]
    return [slice(begin, min(begin + CHUNK_TOKENS, n_tokens)) for begin in begins]


# choices of the encoder


def choose_classes(counts: Ints, n_classes: int) -> Ints:
    """Class of each symbol: neighbours in order, those in the middle more frequent.

    Args:
        counts: int64 [n_symbols].
        n_classes: at most as many.

    Returns:
        int64 [n_symbols], from 0 on without gaps.
    """
    total = float(counts.sum()) + 1e-9
    x = 2 * (np.cumsum(counts) - 0.5 * counts) / total - 1
    shaped = np.sign(x) * np.abs(x) ** 1.5
    wanted = np.clip(np.floor((shaped + 1) / 2 * n_classes), 0, n_classes - 1)
    return np.asarray(np.cumsum(np.diff(wanted, prepend=wanted[0]) != 0), dtype=np.int64)


def _start(histogram: Ints, n_models: int) -> Ints:
    """Models by the spread of symbols in bands, and in each band by their mean."""
    n_channels, n_symbols = histogram.shape
    symbol = np.arange(n_symbols)
    total = np.maximum(histogram.sum(axis=1), 1)
    mean = histogram @ symbol / total
    spread = histogram @ symbol**2 / total - mean**2
    order = np.argsort(spread, kind="stable")
    n_bands = max(1, int(np.sqrt(n_models)))
    for band in range(n_bands):
        part = slice(n_channels * band // n_bands, n_channels * (band + 1) // n_bands)
        order[part] = order[part][np.argsort(mean[order[part]], kind="stable")]
    model_of = np.empty(n_channels, dtype=np.int64)
    model_of[order] = np.arange(n_channels) * n_models // n_channels
    return model_of


def clustered(histogram: Ints, features: Sequence[Ints], n_models: int) -> Ints:
    """Share models among channels: Lloyd's algorithm with the coding cost of counted features as the distance.

    Args:
        histogram: int64 [n_channels, n_symbols], for the start.
        features: what the distance is made of, int64 [n_channels, K, A] each: K distributions of A symbols.
        n_models: at most as many.

    Returns:
        int64 [n_channels]: model of each channel; every number below the largest is used.
    """
    n_channels = len(histogram)
    n_models = min(n_models, n_channels)
    model_of = _start(histogram, n_models)
    flat = [feature.reshape(n_channels, -1).astype(np.float32) for feature in features]
    for _ in range(N_ITERATIONS if n_models > 1 else 0):
        is_of = (model_of == np.arange(n_models)[:, np.newaxis]).astype(np.float32)
        distance = np.zeros((n_channels, n_models), dtype=np.float32)
        for feature, counts in zip(features, flat, strict=True):
            sums = (is_of @ counts).astype(np.float64).reshape(n_models, *feature.shape[1:]) + 0.5
            costs = np.log2(sums.sum(axis=2, keepdims=True) / sums)
            distance += counts @ costs.reshape(n_models, -1).T.astype(np.float32)
        nearest = distance.argmin(axis=1)
        if (nearest == model_of).all():
            break
        model_of = nearest
    return np.asarray(np.unique(model_of, return_inverse=True)[1], dtype=np.int64)


def make_frequencies(counts: Ints, prob_bits: int = PROB_BITS) -> Ints:
    """Frequencies that sum to 2**prob_bits, none of them zero.

    Args:
        counts: int64 [..., n_symbols]; a distribution without counts becomes uniform.
        prob_bits: see above; 2**prob_bits is larger than n_symbols.

    Returns:
        int64, as counts.
    """
    rows = counts.reshape(-1, counts.shape[-1]).astype(np.float64)
    total = rows.sum(axis=1, keepdims=True)
    share = np.where(total > 0, rows / np.maximum(total, 1), 1 / rows.shape[1])
    frequencies = np.maximum(1, np.floor(share * (1 << prob_bits) + 0.5))
    left = (1 << prob_bits) - frequencies.sum(axis=1)
    while (uneven := np.flatnonzero(left)).size:
        f, n, sign = frequencies[uneven], rows[uneven] + 1e-6, np.sign(left[uneven])[:, np.newaxis]
        with np.errstate(divide="ignore"):
            gain = n * np.log2((f + sign) / f)  # minus infinity where it would become zero
        best = gain.argmax(axis=1)
        frequencies[uneven, best] += sign[:, 0]
        left[uneven] -= sign[:, 0]
    return frequencies.astype(np.int64).reshape(counts.shape)


# costs


def ideal_bits(counts: Ints) -> float:
    """Bits of all symbols with the probabilities that they have in their own distribution, the last axis."""
    total = counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(counts > 0, counts * np.log2(total / counts), 0.0)
    return float(bits.sum())


def coded_bits(counts: Ints, frequencies: Ints) -> float:
    """Bits of all symbols with given frequencies, none zero."""
    total = frequencies.sum(axis=-1, keepdims=True)
    return float((counts * np.log2(total / frequencies)).sum())


def table_bytes(frequencies: Ints) -> int:
    """Size of frequencies as LCG3 keeps them: one byte below 255, else three."""
    return int(np.where(frequencies < 255, 1, 3).sum())


def model_cost(counts: Ints, model_of: Ints | None, *, prob_bits: int = PROB_BITS, sample: Ints | None = None) -> Cost:
    """Cost of counted symbols.

    Args:
        counts: int64 [n_channels, K, A].
        model_of: of each channel, int64 [n_channels]; None: each channel has its own.
        prob_bits: of the rounded probabilities.
        sample: counts that the models are made from, as counts; None: the same.
    """
    n_channels = len(counts)
    of_models = counts if model_of is None else by_model(counts, model_of)
    made_from = of_models
    if sample is not None:
        made_from = sample if model_of is None else by_model(sample, model_of)
    overall = np.broadcast_to(made_from.sum(axis=1, keepdims=True), made_from.shape)
    is_empty = made_from.sum(axis=2, keepdims=True) == 0
    frequencies = make_frequencies(np.where(is_empty, overall, made_from), prob_bits)
    n_bytes = table_bytes(frequencies) + (0 if model_of is None else n_channels)
    ideal = ideal_bits(of_models) if sample is None else float("nan")
    return Cost(ideal, coded_bits(of_models, frequencies), 8.0 * n_bytes)
