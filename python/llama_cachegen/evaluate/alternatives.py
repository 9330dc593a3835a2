"""What the alternatives to LCG3's choices would cost, in bits a value, on the cache of a real prompt.

Probabilities are counted, not coded: the cost of a symbol is minus the logarithm of its probability. Where whole
archives are named, they are encoded. docs/lcg3-design.md holds the figures and what was concluded from them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._binding import llama
from ..codec import EXACT, LMCACHE, Archive, Kind, Plane, encode
from ..codec.reference.quantizer import ValueType, narrow
from ..codec.sizes import archive_sizes
from ..engine import Engine
from ..errors import CachegenError
from ..ggml_types import GgmlType
from ..models import resolve_model
from ..page_identity import RopeIdentity
from .caches import copy_cache, n_values, native_rows, values_of
from .report import ModelFile, Setting, markdown_table, setting_lines
from .rivals import ckg1_bytes, compressed_bytes
from .size import N_TOKENS
from .symbol_models import (
    Cost,
    Ints,
    by_class,
    by_model,
    choose_classes,
    clustered,
    count,
    distance_counts,
    ideal_bits,
    model_cost,
    sampled_chunks,
)
from .texts import Text

__all__ = [
    "MARKER_BEGIN",
    "MARKER_END",
    "AlternativesReport",
    "Rope",
    "Row",
    "Section",
    "alternatives_of",
    "measure_alternatives",
    "put_between_markers",
]

MARKER_BEGIN = "<!-- alternatives: begin -->"
MARKER_END = "<!-- alternatives: end -->"

_N_MODELS = LMCACHE.n_models
_N_CLASSES = LMCACHE.n_classes
_BLOCK_TOKENS = LMCACHE.block_tokens
_TILE_TOKENS = 256
_ANCHOR_TOKENS = 10
_N_SKIPPED_LAYERS = 6
_LEVELS = (3, 5, 7, 9, 11, 15, 21, 31, 43, 63, 87, 127, 181, 255, 361, 511, 1023, 2047)

Floats = NDArray[np.float32]
Symbols = NDArray[np.uint8]
Progress = Callable[[str], None]


# the report


@dataclasses.dataclass(frozen=True)
class Row:
    """One alternative. `figures` has one number a column of its section, None where it has no meaning."""

    name: str
    figures: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """Alternatives that answer one question.

    Attributes:
        key: a name for programs.
        title: a name for people.
        note: what was counted.
        columns: names of the figures, in bits a value if they do not say otherwise.
        rows: the alternatives; what LCG3 does is marked.
    """

    key: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def figure(self, name: str, column: str) -> float:
        """One figure.

        Raises:
            KeyError: no such row or column, or no figure.
        """
        for row in self.rows:
            if row.name == name and column in self.columns:
                value = row.figures[self.columns.index(column)]
                if value is not None:
                    return value
        raise KeyError((name, column))

    def markdown_lines(self) -> list[str]:
        """A heading, the note, a table."""
        rows = [(row.name, *map(_cell, self.columns, row.figures)) for row in self.rows]
        return [f"### {self.title}", "", self.note, "", *markdown_table(("alternative", *self.columns), rows)]


def _cell(column: str, figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.{0 if column.endswith('levels') else 1 if column.endswith('KiB') else 3}f}"


@dataclasses.dataclass(frozen=True)
class AlternativesReport:
    """Alternatives, and what they were measured with."""

    setting: Setting
    model: ModelFile
    text: Text
    n_tokens: int
    sections: tuple[Section, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the text without its words."""
        result = dataclasses.asdict(self)
        del result["text"]["text"]
        return result

    def markdown(self) -> str:
        """All tables."""
        lines = [
            "Made by `llama-cachegen codec alternatives`. Figures are bits a value if nothing else is said.",
            "",
            f"- model: {self.model.name}, SHA-256 `{self.model.sha256}`, {self.n_tokens:,} tokens, F16 cache",
            f"- text {self.text.name}: {self.text.description}, SHA-256 `{self.text.sha256}`",
            *setting_lines(self.setting),
        ]
        for section in self.sections:
            lines += ["", *section.markdown_lines()]
        return "\n".join(lines) + "\n"


def put_between_markers(page: str, text: str) -> str:
    """A page with what is between the two markers replaced by a text.

    Raises:
        CachegenError: the page lacks a marker, or has them in the wrong order.
    """
    before, begin, rest = page.partition(MARKER_BEGIN)
    _, end, after = rest.partition(MARKER_END)
    if not begin or not end:
        raise CachegenError(f"the page needs the lines {MARKER_BEGIN} and {MARKER_END}, in this order")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


# the data


@dataclasses.dataclass(frozen=True)
class Rope:
    """How K was rotated.

    Attributes:
        angles: of each token and pair, [n_tokens, n_pairs].
        head_size: channels of a head.
        is_interleaved: pairs are channels 2i and 2i + 1, else i and i + n_pairs.
    """

    angles: NDArray[np.float64]
    head_size: int
    is_interleaved: bool

    @classmethod
    def of(cls, identity: RopeIdentity, positions: NDArray[Any], head_size: int, n_rotated: int) -> Rope | None:
        """Of a page; None for what is not undone here: other pairings, YaRN.

        Args:
            identity: of the page.
            positions: of its tokens. Frequency factors, which some models have as a tensor, are not known here.
            head_size: channels of a head.
            n_rotated: the first channels of a head, those that are rotated.
        """
        if identity.rope_type not in (0, 2) or identity.yarn_ext_factor != 0:
            return None
        rates = identity.freq_scale * identity.freq_base ** (-np.arange(0, n_rotated, 2) / n_rotated)
        return cls(positions[:, np.newaxis] * rates, head_size, identity.rope_type == 0)

    def rotated(self, values: Floats, *, undo: bool = False) -> Floats:
        """Values [n_tokens, n_channels] rotated, or with the rotation undone."""
        n_pairs = self.angles.shape[1]
        heads = values.reshape(len(values), -1, self.head_size)
        step = slice(0, 2 * n_pairs, 2) if self.is_interleaved else slice(0, n_pairs)
        other = slice(1, 2 * n_pairs, 2) if self.is_interleaved else slice(n_pairs, 2 * n_pairs)
        cos = np.cos(self.angles).astype(np.float32)[:, np.newaxis]
        sin = np.sin(self.angles).astype(np.float32)[:, np.newaxis] * np.float32(-1 if undo else 1)
        out = heads.copy()
        out[..., step] = heads[..., step] * cos - heads[..., other] * sin
        out[..., other] = heads[..., step] * sin + heads[..., other] * cos
        return np.asarray(out.reshape(values.shape), dtype=np.float32)


def _quantised(values: Floats, n_symbols: int, scale: Floats) -> NDArray[np.int64]:
    """Symbols of values whose magnitudes are at most their scale; a scale of 0 gives the middle."""
    c = np.float32(n_symbols // 2)
    with np.errstate(divide="ignore"):
        factor = np.where(scale > 0, c / scale, np.float32(0))
    return np.asarray(np.rint(values * factor + c), dtype=np.int64)


def _maxima(values: Floats) -> Floats:
    return np.asarray(np.abs(values).max(axis=1, keepdims=True), dtype=np.float32)


def _bf16_up(values: Floats) -> Floats:
    """The smallest BF16 numbers that are not below."""
    bits = (values.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
    return np.asarray(bits.view(np.float32), dtype=np.float32)


@dataclasses.dataclass(eq=False)
class _Set:
    """Planes with the same number of levels, as symbols [n_tokens, n_channels]."""

    n_symbols: int
    planes: list[Symbols]
    shared: dict[int, Ints] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def pairs(self) -> Ints:
        """How often each symbol follows each other: [n_channels, before, now]."""
        return self._pairs(slice(None))

    def _pairs(self, part: slice) -> Ints:
        cut = [plane[part] for plane in self.planes]
        return count([p[:-1] for p in cut], [p[1:] for p in cut], self.n_symbols, self.n_symbols)

    @functools.cached_property
    def distances(self) -> Ints:
        """[n_channels, 1, distance]"""
        return distance_counts(self.pairs)

    @functools.cached_property
    def symbols(self) -> Ints:
        """[n_channels, 1, symbol], without the first token."""
        return np.asarray(self.pairs.sum(axis=1, keepdims=True), dtype=np.int64)

    def sampled_pairs(self, n_sampled: int) -> Ints:
        """`pairs` of the stretches that the encoder would look at."""
        chunks = sampled_chunks(len(self.planes[0]), n_sampled)
        return np.asarray(sum(self._pairs(chunk) for chunk in chunks), dtype=np.int64)

    def models(self, n_models: int) -> Ints:
        """Models as LCG3 shares them."""
        if n_models not in self.shared:
            self.shared[n_models] = clustered(self.symbols[:, 0], [self.symbols, self.distances], n_models)
        return self.shared[n_models]

    def classes(self, n_classes: int) -> Ints:
        """Classes as LCG3 chooses them."""
        return choose_classes(self.symbols.sum(axis=(0, 1)), n_classes)


@dataclasses.dataclass(eq=False)
class _Data:
    """The planes of a cache and their symbols under LMCache's schedule."""

    planes: Sequence[Plane]
    n_layers: int
    rope: Rope | None

    def __post_init__(self) -> None:
        self.n_tokens = len(native_rows(self.planes[0]))
        self.n_channels = sum(plane.n_channels for plane in self.planes)
        self.n_values = self.n_tokens * self.n_channels

    def n_symbols(self, plane: Plane) -> int:
        return LMCACHE.n_levels("K" if plane.kind is Kind.K else "V", plane.layer, self.n_layers)

    @functools.cached_property
    def sets(self) -> list[_Set]:
        return self.quantised(self.planes, _maxima)

    def quantised(self, planes: Iterable[Plane], scale: Callable[[Floats], Floats]) -> list[_Set]:
        sets: dict[int, _Set] = {}
        for plane in planes:
            values, n_symbols = values_of(plane), self.n_symbols(plane)
            symbols = _quantised(values, n_symbols, scale(values)).astype(np.uint8)
            sets.setdefault(n_symbols, _Set(n_symbols, [])).planes.append(symbols)
        return list(sets.values())

    def sampled_layers(self) -> list[int]:
        return sorted({plane.layer for plane in self.planes})[::_N_SKIPPED_LAYERS]

    def sampled_planes(self) -> list[Plane]:
        layers = self.sampled_layers()
        return [plane for plane in self.planes if plane.layer in layers]


def _total(costs: Iterable[Cost]) -> Cost:
    return functools.reduce(Cost.plus, costs)


_COST_COLUMNS = ("exact probabilities", "10 bits", "tables", "10 bits and tables")


def _cost_row(name: str, cost: Cost, n_counted: int, n_values: int) -> Row:
    """n_counted values of n_values were counted."""
    ideal, coded, tables = cost.ideal / n_counted, cost.coded / n_counted, cost.tables / n_values
    return Row(name, (None if math.isnan(ideal) else ideal, coded, tables, coded + tables))


# contexts and number of models


def _contexts(data: _Data) -> Section:
    n_counted = (data.n_tokens - 1) * data.n_channels
    rows: list[Row] = []

    def add(name: str, costs: Iterable[Cost], n_tokens_before: int = 1) -> None:
        n = (data.n_tokens - n_tokens_before) * data.n_channels
        rows.append(_cost_row(name, _total(costs), n, data.n_values))

    add("order 0, one model a channel", (model_cost(s.symbols, None) for s in data.sets))
    for n in (16, 64, 256):
        add(
            f"order 0, {n} models",
            (model_cost(s.symbols, clustered(s.symbols[:, 0], [s.symbols], n)) for s in data.sets),
        )
    for n_classes in (5, 9):
        for n in (16, 32, 64):
            mark = " (LCG3)" if (n_classes, n) == (_N_CLASSES, _N_MODELS) else ""
            add(
                f"token before in {n_classes} classes, {n} models{mark}",
                (model_cost(by_class(s.pairs, s.classes(n_classes)), s.models(n)) for s in data.sets),
            )
    for n in (16, 32, 64):
        add(f"token before, every symbol a class, {n} models", (model_cost(s.pairs, s.models(n)) for s in data.sets))
    weighted = [(s, _weighted(s)) for s in data.sets]
    for n in (16, 32, 64):
        name = f"two tokens before, 2:1 in 15 classes, {n} models"
        add(name, (model_cost(counts, s.models(n)) for s, counts in weighted), 2)
    add(
        f"two tokens before, 9 classes each, {_N_MODELS} models",
        (model_cost(_two_before(s), s.models(_N_MODELS)) for s in data.sets),
        2,
    )
    add(
        f"channel before in 9 classes, {_N_MODELS} models",
        (model_cost(_channel_before(s), s.models(_N_MODELS)) for s in data.sets),
    )
    costs = [_anchors(s) for s in data.sets]
    rows.append(
        Row(
            f"distance from the first of {_ANCHOR_TOKENS} tokens, order 0, one model a channel",
            (sum(costs) / data.n_values, None, None, None),
        )
    )
    return Section(
        "contexts",
        "Contexts and shared models",
        "K and V, all tokens and channels. Probabilities from all tokens; models are shared by histogram and distances,"
        f" those of order 0 by histogram. {n_counted:,} values; the first tokens, which lack their context, are left"
        " out. Tables as LCG3 keeps them: a byte a frequency below 255, else three, and a byte a channel.",
        _COST_COLUMNS,
        tuple(rows),
    )


def _weighted(one: _Set) -> Ints:
    n_contexts = 3 * (one.n_symbols - 1) + 1
    contexts = (2 * p[1:-1].astype(np.int64) + p[:-2] for p in one.planes)
    counts = count(contexts, (p[2:] for p in one.planes), n_contexts, one.n_symbols)
    return by_class(counts, choose_classes(counts.sum(axis=(0, 2)), 15))


def _two_before(one: _Set) -> Ints:
    class_of = one.classes(_N_CLASSES)
    n_classes = int(class_of.max()) + 1
    contexts = (class_of[p[1:-1]] * n_classes + class_of[p[:-2]] for p in one.planes)
    return count(contexts, (p[2:] for p in one.planes), n_classes**2, one.n_symbols)


def _channel_before(one: _Set) -> Ints:
    class_of = one.classes(_N_CLASSES)
    contexts = []
    for plane in one.planes:
        before = np.roll(plane[1:], 1, axis=1)
        before[:, 0] = one.n_symbols // 2
        contexts.append(class_of[before])
    return count(contexts, (p[1:] for p in one.planes), int(class_of.max()) + 1, one.n_symbols)


def _anchors(one: _Set) -> float:
    """Bits of anchors and of all other symbols as distances from their anchors."""
    total = 0.0
    for plane in one.planes:
        symbols = plane.astype(np.int64)
        is_anchor = np.arange(len(symbols)) % _ANCHOR_TOKENS == 0
        anchors = symbols[is_anchor]
        distances = (symbols - np.repeat(anchors, _ANCHOR_TOKENS, axis=0)[: len(symbols)])[~is_anchor]
        total += _order_0(anchors) + _order_0(distances)
    return total


# how models are made


def _training(data: _Data) -> Section:
    n_counted = (data.n_tokens - 1) * data.n_channels
    rows: list[Row] = []

    def add(name: str, costs: Iterable[Cost]) -> None:
        rows.append(_cost_row(name, _total(costs), n_counted, data.n_values))

    def cost(one: _Set, features: Sequence[Ints]) -> Cost:
        models = clustered(one.symbols[:, 0], features, _N_MODELS)
        return model_cost(by_class(one.pairs, one.classes(_N_CLASSES)), models)

    add("shared by histogram", (cost(s, [s.symbols]) for s in data.sets))
    add("shared by histogram and distances (LCG3)", (cost(s, [s.symbols, s.distances]) for s in data.sets))
    add("shared by all counts of order 1", (cost(s, [s.pairs]) for s in data.sets))
    for divisor in (4, 8):
        add(f"models from 1/{divisor} of the tokens", (_sampled_cost(s, data.n_tokens // divisor) for s in data.sets))
    n_sampled = LMCACHE.n_sample_tokens
    add(f"models from {n_sampled:,} tokens (LCG3)", (_sampled_cost(s, n_sampled) for s in data.sets))
    return Section(
        "training",
        "How channels share models, and from how many tokens",
        f"{_N_MODELS} models, {_N_CLASSES} classes of the token before, 10 probability bits. The sample is spread over"
        f" the page in stretches of 32 tokens; models are shared and made from it, and all tokens are counted.",
        _COST_COLUMNS,
        tuple(rows),
    )


def _sampled_cost(one: _Set, n_sampled: int) -> Cost:
    pairs = one.sampled_pairs(n_sampled)
    symbols = np.asarray(pairs.sum(axis=1, keepdims=True), dtype=np.int64)
    models = clustered(symbols[:, 0], [symbols, distance_counts(pairs)], _N_MODELS)
    class_of = choose_classes(symbols.sum(axis=(0, 1)), _N_CLASSES)
    return model_cost(by_class(one.pairs, class_of), models, sample=by_class(pairs, class_of))


def _probability_bits(data: _Data) -> Section:
    n_counted = (data.n_tokens - 1) * data.n_channels
    counted = [(by_class(s.pairs, s.classes(_N_CLASSES)), s.models(_N_MODELS)) for s in data.sets]
    rows = []
    for bits in (8, 9, 10, 11, 12):
        cost = _total(model_cost(counts, models, prob_bits=bits) for counts, models in counted)
        figures = (
            cost.coded / n_counted,
            (cost.coded - cost.ideal) / n_counted,
            cost.tables / data.n_values,
        )
        rows.append(Row(f"{bits} bits{' (LCG3)' if bits == 10 else ''}", figures))
    return Section(
        "probability_bits",
        "Probability bits",
        f"{_N_MODELS} models, {_N_CLASSES} classes of the token before; every symbol has a frequency of 1 at least.",
        ("symbols", "of them, lost by rounding", "tables"),
        tuple(rows),
    )


def _look_up(data: _Data) -> Section:
    rows = []
    bytes_of: dict[str, Callable[[int], int]] = {
        "alias buckets of 8 bytes (LCG3)": lambda n_symbols: 8 * max(16, 1 << (n_symbols - 1).bit_length()),
        "1,024 slots of 4 bytes": lambda n_symbols: 4 * 1024,
        "sorted bounds of 2 bytes, to be searched": lambda n_symbols: 2 * n_symbols,
    }
    sets = sorted(data.sets, key=lambda one: one.n_symbols)
    for name, bytes_of_one in bytes_of.items():
        figures = []
        for one in sets:
            kib = (int(one.classes(_N_CLASSES).max()) + 1) * bytes_of_one(one.n_symbols) / 1024
            models = one.models(_N_MODELS)
            n_used = [len(np.unique(models[begin : begin + 64])) for begin in range(0, len(models), 64)]
            figures += [(int(models.max()) + 1) * kib, float(np.mean(n_used)) * kib]
        rows.append(Row(name, tuple(figures)))
    classes = ", ".join(f"{one.n_symbols} levels get {int(one.classes(_N_CLASSES).max()) + 1}" for one in sets)
    columns = []
    for one in sets:
        columns += [f"{one.n_symbols} levels: all models, KiB", f"{one.n_symbols} levels: 64 channels, KiB"]
    return Section(
        "look_up",
        "Tables of the decoder",
        f"What {_N_MODELS} models take in memory, and on average those of the models that 64 adjacent channels, two"
        f" groups, have. KiB, not bits a value. {_N_CLASSES} classes are asked for; {classes}.",
        tuple(columns),
        tuple(rows),
    )


# blocks, scales


def _blocks(data: _Data) -> Section:
    rows = []
    for block_tokens in (256, 512, 1024, 2048):
        profile = dataclasses.replace(LMCACHE, block_tokens=block_tokens)
        archive_bytes = encode(data.planes, profile, n_layers=data.n_layers)
        with Archive(archive_bytes) as archive:
            sections = archive_sizes(archive_bytes, archive).sections()
        sections["whole"] = len(archive_bytes)
        mark = " (LCG3)" if block_tokens == LMCACHE.block_tokens else ""
        names = ("words", "states", "scales", "overhead", "metadata", "tables", "whole")
        rows.append(Row(f"{block_tokens:,} tokens{mark}", tuple(8 * sections[name] / data.n_values for name in names)))
    return Section(
        "blocks",
        "Tokens of a block",
        "Archives of profile `lmcache`, encoded. Each block has a first state of 32 bits a channel, of which about 8"
        " hold symbols, and begins without a token before.",
        ("words", "first states", "scales", "unit headers", "metadata", "tables", "whole archive"),
        tuple(rows),
    )


def _packed_bits(numbers: Ints) -> int:
    return len(numbers) * int(numbers.max() - numbers.min()).bit_length() + 64


def _delta_bits(numbers: Ints) -> int:
    return 16 + _packed_bits(np.diff(numbers))


def _rice_bits(numbers: Ints) -> int:
    """Distances from the number before as Rice codes with the best parameter."""
    distance = np.diff(numbers)
    folded = np.where(distance < 0, -2 * distance - 1, 2 * distance)
    return 16 + 8 + min(int((folded >> k).sum()) + len(folded) * (k + 1) for k in range(17))


def _scales(data: _Data) -> Section:
    coders: dict[str, Callable[[Ints], int]] = {
        "packed": _packed_bits,
        "distances from the token before, packed": _delta_bits,
        "distances from the token before, Rice codes": _rice_bits,
    }
    totals: dict[tuple[str, str], int] = {}
    for plane in data.planes:
        maxima = _maxima(values_of(plane))
        bits = {
            "F16": narrow(maxima[:, 0], ValueType.FLOAT16).view(np.uint16).astype(np.int64),
            "BF16": (_bf16_up(maxima)[:, 0].view(np.uint32) >> 16).astype(np.int64),
        }
        for type_, numbers in bits.items():
            for begin in range(0, data.n_tokens, _BLOCK_TOKENS):
                for coder, size_of in coders.items():
                    n_bits = size_of(numbers[begin : begin + _BLOCK_TOKENS])
                    totals[type_, coder] = totals.get((type_, coder), 0) + n_bits
    n_counted = (data.n_tokens - 1) * data.n_channels
    symbols = {}
    for type_, sets in (("F16", data.sets), ("BF16", data.quantised(data.planes, lambda v: _bf16_up(_maxima(v))))):
        costs = (model_cost(by_class(s.pairs, s.classes(_N_CLASSES)), s.models(_N_MODELS)) for s in sets)
        symbols[type_] = _total(costs).coded / n_counted
    n_scales = data.n_tokens * len(data.planes)
    rows = [Row("F32", (32 * n_scales / data.n_values, symbols["F16"]))]
    for type_ in ("F16", "BF16"):
        rows.append(Row(type_, (16 * n_scales / data.n_values, symbols[type_])))
        for coder in coders:
            name = f"{type_}, {coder}"
            if coder == "packed":
                name += f" (LCG3, {'`lmcache`' if type_ == 'F16' else '`balanced` and `fine`'})"
            rows.append(Row(name, (totals[type_, coder] / data.n_values, symbols[type_])))
    return Section(
        "scales",
        "Scales",
        "One scale a token and plane. Packed: differences from the least of a block, all with the same number of bits."
        " BF16 scales are rounded up; steps and errors become about 0.3 % larger.",
        ("scales", "symbols"),
        tuple(rows),
    )


# scaling


def _order_0(symbols: Ints) -> float:
    """Bits of symbols [n_tokens, n_channels] with a distribution for each channel."""
    low = int(symbols.min())
    n_symbols = int(symbols.max()) - low + 1
    index = np.arange(symbols.shape[1]) * n_symbols + (symbols - low)
    counts = np.bincount(index.ravel(), minlength=symbols.shape[1] * n_symbols)
    return ideal_bits(counts.reshape(-1, n_symbols))


def _block_maxima(values: Floats) -> Floats:
    """The largest magnitude of each channel in each block, for every token."""
    out = np.empty_like(values)
    for begin in range(0, len(values), _BLOCK_TOKENS):
        part = slice(begin, begin + _BLOCK_TOKENS)
        out[part] = np.abs(values[part]).max(axis=0, keepdims=True)
    return out


class _Rate(NamedTuple):
    """Bits of a plane of order 0 and after the token before, mean square error, number of levels."""

    order_0: float
    order_1: float
    error: float
    n_levels: float


def _order_1(symbols: Ints) -> float:
    """Bits of symbols [n_tokens, n_channels] after the token before in 9 classes, with 32 models for the plane."""
    symbols = symbols - symbols.min()
    n_symbols = int(symbols.max()) + 1
    class_of = choose_classes(np.bincount(symbols.ravel(), minlength=n_symbols), _N_CLASSES)
    counts = count([class_of[symbols[:-1]]], [symbols[1:]], int(class_of.max()) + 1, n_symbols)
    models = clustered(counts.sum(axis=1), [counts], _N_MODELS)
    return ideal_bits(by_model(counts, models)) * len(symbols) / (len(symbols) - 1)


def _rate(values: Floats, scale: Floats, n_symbols: int) -> _Rate:
    """What values cost with n_symbols levels."""
    symbols = _quantised(values, n_symbols, scale)
    c = np.float32(n_symbols // 2)
    decoded = (symbols - c).astype(np.float32) * (scale / c)
    error = float(np.square(values - decoded, dtype=np.float64).mean())
    return _Rate(_order_0(symbols), _order_1(symbols), error, n_symbols)


def _rate_at(values: Floats, scale: Floats, wanted: float) -> _Rate:
    """What values cost at a mean square error, between two numbers of levels."""
    before: _Rate | None = None
    for n_symbols in _LEVELS:
        rate = _rate(values, scale, n_symbols)
        if rate.error <= wanted:
            if before is None or rate.error == before.error:
                return rate
            share = math.log(before.error / wanted) / math.log(before.error / max(rate.error, 1e-30))
            return _Rate(*(low + share * (high - low) for low, high in zip(before, rate, strict=True)))
        before = rate
    raise CachegenError(f"a plane needs more than {_LEVELS[-1]} levels for the error of a scale a token")


def _scaling(data: _Data) -> Section:
    token, channel, plane_ = "one a token (LCG3)", f"one a channel and {_BLOCK_TOKENS:,} tokens", "one a plane"
    undone, centred = "one a token, RoPE undone", "one a token, RoPE undone, channel's mean subtracted"
    rates: dict[tuple[str, Kind], list[_Rate]] = {}
    n_scales: dict[tuple[str, Kind], int] = {}
    n_of: dict[Kind, int] = {}
    n_blocks = -(-data.n_tokens // _BLOCK_TOKENS)
    for plane in data.sampled_planes():
        kind, values = plane.kind, values_of(plane)
        n_of[kind] = n_of.get(kind, 0) + values.size
        reference = _rate(values, _maxima(values), data.n_symbols(plane))
        whole = np.full((1, 1), np.abs(values).max())
        found = [
            (token, reference, data.n_tokens),
            (channel, _rate_at(values, _block_maxima(values), reference.error), n_blocks * plane.n_channels),
            (plane_, _rate_at(values, whole, reference.error), 1),
        ]
        if kind is Kind.K and data.rope is not None:
            unrotated = data.rope.rotated(values, undo=True)
            found.append((undone, _rate_at(unrotated, _maxima(unrotated), reference.error), data.n_tokens))
            unrotated = unrotated - unrotated.mean(axis=0, keepdims=True)
            rate = _rate_at(unrotated, _maxima(unrotated), reference.error)
            found.append((centred, rate, data.n_tokens + plane.n_channels))
        for name, rate, n in found:
            rates.setdefault((name, kind), []).append(rate)
            n_scales[name, kind] = n_scales.get((name, kind), 0) + n
    rows = []
    for name in (token, channel, plane_, undone, centred):
        figures: list[float | None] = []
        for kind in (Kind.K, Kind.V):
            of_planes = rates.get((name, kind))
            if of_planes is None:
                figures += [None] * 3
                continue
            figures.append(sum(rate.order_0 for rate in of_planes) / n_of[kind])
            figures.append(sum(rate.order_1 for rate in of_planes) / n_of[kind])
            figures.append(16 * n_scales[name, kind] / n_of[kind])
        if any(figure is not None for figure in figures):
            most = max(rate.n_levels for kind in n_of for rate in rates.get((name, kind), []))
            rows.append(Row(name, (*figures, math.ceil(most))))
    return Section(
        "scaling",
        "What a scale belongs to",
        f"Layers {', '.join(map(str, data.sampled_layers()))} only, all tokens. Every plane has the mean square error"
        " that a scale a token gives it under the schedule: the number of levels is chosen to meet it, with"
        " interpolation between two numbers. Exact probabilities; order 0 with one model a channel, and the token"
        f" before in {_N_CLASSES} classes with {_N_MODELS} models a plane. Scales, and means, of 16 bits, not packed.",
        (
            "K, order 0",
            "K, token before",
            "K, scales",
            "V, order 0",
            "V, token before",
            "V, scales",
            "most levels",
        ),
        tuple(rows),
    )


# the rotation of K


def _rope(data: _Data, rope: Rope) -> Section:
    planes = [plane for plane in data.planes if plane.kind is Kind.K]
    sets = data.quantised(planes, _maxima)
    n_channels = sum(plane.n_channels for plane in planes)
    n_values, n_counted = data.n_tokens * n_channels, (data.n_tokens - 1) * n_channels
    rows = []

    def add(name: str, costs: Iterable[Cost], n_side_bits: int = 0) -> None:
        cost = _total(costs)
        rows.append(_cost_row(name, cost._replace(tables=cost.tables + n_side_bits), n_counted, n_values))

    add("order 0, one model a channel", (model_cost(s.symbols, None) for s in sets))
    for n in (16, 32):
        add(
            f"token before in 9 classes, {n} models{' (LCG3)' if n == _N_MODELS else ''}",
            (model_cost(by_class(s.pairs, s.classes(_N_CLASSES)), s.models(n)) for s in sets),
        )
    expected: dict[int, list[Floats]] = {}
    for plane in planes:
        values = values_of(plane)
        mean = rope.rotated(values, undo=True).mean(axis=0, keepdims=True)
        maxima = _maxima(values)
        shares = rope.rotated(np.broadcast_to(mean, values.shape)) / np.where(maxima > 0, maxima, np.float32(1))
        expected.setdefault(data.n_symbols(plane), []).append(np.clip(shares, -1, 1))
    by_mean = [_by_mean(s, expected[s.n_symbols], 31) for s in sets]
    both = [_by_mean_and_before(s, expected[s.n_symbols]) for s in sets]
    side = 16 * n_channels
    for n in (16, 32):
        add(f"rotated mean in 31 classes, {n} models", _shared_by_all(sets, by_mean, n), side)
    for n in (16, 32):
        name = f"rotated mean in 31 classes, distance of the token before from its own in 3, {n} models"
        add(name, _shared_by_all(sets, both, n), side)
    return Section(
        "rope",
        "K with knowledge of RoPE",
        "K only, all tokens. The rotation is undone, each channel's mean over the page is taken, rotated to each"
        " token's position, divided by the token's scale, and is the context. Models are shared by all counts under it."
        " Tables include the means, 16 bits each.",
        _COST_COLUMNS,
        tuple(rows),
    )


def _shared_by_all(sets: Sequence[_Set], counts: Sequence[Ints], n_models: int) -> Iterator[Cost]:
    for one, counted in zip(sets, counts, strict=True):
        yield model_cost(counted, clustered(one.symbols[:, 0], [counted], n_models))


def _class_of_share(share: Floats, n_classes: int) -> Ints:
    half = n_classes // 2
    return np.asarray(np.rint(share * half) + half, dtype=np.int64)


def _by_mean(one: _Set, expected: Sequence[Floats], n_classes: int) -> Ints:
    contexts = (_class_of_share(share[1:], n_classes) for share in expected)
    return count(contexts, (p[1:] for p in one.planes), n_classes, one.n_symbols)


def _by_mean_and_before(one: _Set, expected: Sequence[Floats]) -> Ints:
    half = one.n_symbols // 2
    contexts = []
    for share, plane in zip(expected, one.planes, strict=True):
        distance = (plane[:-1].astype(np.float32) - half) - share[:-1] * half
        contexts.append(_class_of_share(share[1:], 31) * 3 + np.digitize(distance, (-0.5, 0.5)))
    return count(contexts, (p[1:] for p in one.planes), 93, one.n_symbols)


# other formats


def _tile_bits(data: _Data) -> float:
    total = 0.0
    for one in data.sets:
        for plane in one.planes:
            for begin in range(0, data.n_tokens, _TILE_TOKENS):
                total += _order_0(plane[begin : begin + _TILE_TOKENS].astype(np.int64))
    return total


def _byte_entropy(data: _Data) -> tuple[float, float]:
    """Bits of all native bytes of order 0; the same with a distribution for each byte of a value."""
    counts = np.zeros((2, 256), dtype=np.int64)
    for plane in data.planes:
        rows = native_rows(plane)
        for i in range(2):
            counts[i] += np.bincount(rows[:, i::2].ravel(), minlength=256)
    return ideal_bits(counts.sum(axis=0)), ideal_bits(counts)


def _others(data: _Data) -> Section:
    n = data.n_values
    n_tiles = -(-data.n_tokens // _TILE_TOKENS)
    tile_tables = 16 * 33 * n_tiles * data.n_channels / n
    lengths = 16 * n_tiles * data.n_channels / n
    maxima = 32 * data.n_tokens * len(data.planes) / n
    lcg3 = encode(data.planes, LMCACHE, n_layers=data.n_layers)
    with Archive(lcg3) as archive:
        sections = {k: 8 * v / n for k, v in archive_sizes(lcg3, archive).sections().items()}
    exact = encode(data.planes, EXACT, n_layers=data.n_layers)
    rest = 8 * len(lcg3) / n - sections["words"] - sections["tables"] - sections["scales"]
    rows = [
        Row(
            "LCG3, profile `lmcache`",
            (sections["words"], sections["tables"], sections["scales"], rest, 8 * len(lcg3) / n),
        )
    ]
    tile_bits = _tile_bits(data) / n
    whole = 8 * ckg1_bytes(data.planes, data.n_layers, 1) / n
    rest = whole - tile_bits - tile_tables - maxima
    rows.append(Row("LCG1: order 0, a table a channel and 256 tokens", (tile_bits, tile_tables, maxima, rest, whole)))
    tables = sum(8 * s.n_symbols * n_tiles * sum(p.shape[1] for p in s.planes) for s in data.sets) / n
    total = tile_bits + tables + maxima / 2 + lengths
    rows.append(Row("the same with a byte a frequency and F16 scales", (tile_bits, tables, maxima / 2, lengths, total)))
    for version, name in ((2, "LCG2: fixed width"),):
        size = 8 * ckg1_bytes(data.planes, data.n_layers, version) / n
        rows.append(Row(name, (size - maxima, None, maxima, None, size)))
    rows.append(Row("LCG3, profile `exact`; lossless", (None, None, None, None, 8 * len(exact) / n)))
    bytewise, by_place = _byte_entropy(data)
    rows.append(Row("bytes of order 0; lossless", (bytewise / n, None, None, None, bytewise / n)))
    rows.append(Row("the same, upper and lower bytes apart; lossless", (by_place / n, None, None, None, by_place / n)))
    sampled = data.sampled_planes()
    native = np.concatenate([native_rows(plane).ravel() for plane in sampled])
    try:
        zstd = 8 * compressed_bytes("zstd -19", native, GgmlType.F16) / n_values([sampled])
        rows.append(Row("zstd -19 of the native bytes; lossless", (None, None, None, None, zstd)))
    except CachegenError:
        pass  # its package is optional
    return Section(
        "others",
        "Other formats and byte coders",
        "The first three have the same symbols. LCG1's symbols and all bytes of order 0 are entropies, the other wholes"
        f" are encoded. zstd sees layers {', '.join(map(str, data.sampled_layers()))} only.",
        ("symbols", "tables", "scales", "rest", "whole"),
        tuple(rows),
    )


# all of it


def alternatives_of(
    planes: Sequence[Plane], n_layers: int, *, rope: Rope | None = None, progress: Progress = lambda _: None
) -> tuple[Section, ...]:
    """Measure all alternatives on F16 planes.

    Args:
        planes: K and V in rows, with equal numbers of tokens, at least 16.
        n_layers: layers of the model, for LMCache's schedule.
        rope: how K was rotated; None leaves out what needs it.
        progress: called with what is being done.

    Raises:
        CachegenError: planes of another type, or too few tokens.
    """
    if not planes or any(plane.type is not GgmlType.F16 or plane.n_rot or plane.kind is Kind.AUX for plane in planes):
        raise CachegenError("alternatives are measured on F16 planes of K and V")
    data = _Data(planes, n_layers, rope)
    if data.n_tokens < 16:
        raise CachegenError(f"{data.n_tokens} tokens; 16 are needed")
    parts: list[Callable[[], Section]] = [
        lambda: _contexts(data),
        lambda: _training(data),
        lambda: _probability_bits(data),
        lambda: _look_up(data),
        lambda: _blocks(data),
        lambda: _scales(data),
        lambda: _scaling(data),
        lambda: _others(data),
    ]
    if rope is not None:
        parts.insert(7, lambda: _rope(data, rope))
    sections = []
    for i, part in enumerate(parts):
        progress(f"alternatives: part {i + 1} of {len(parts)}")
        sections.append(part())
    return tuple(sections)


def _head_size(engine: Engine, plane: Plane) -> tuple[int, int]:
    """Channels of a head of K, and how many of them are rotated."""
    head_size = plane.n_channels // int(llama.llama_model_n_head_kv(engine._model))
    architecture = _metadata(engine, "general.architecture")
    n_rotated = _metadata(engine, f"{architecture}.rope.dimension_count")
    return head_size, int(n_rotated) if n_rotated else head_size


def _metadata(engine: Engine, key: str) -> str:
    buffer = ctypes.create_string_buffer(256)
    n = int(llama.llama_model_meta_val_str(engine._model, key.encode(), buffer, len(buffer)))
    return buffer.value.decode() if n > 0 else ""


def measure_alternatives(
    model: str | os.PathLike[str], text: Text, *, n_tokens: int = N_TOKENS, progress: Progress = lambda _: None
) -> AlternativesReport:
    """Evaluate a prompt once into an F16 cache and measure all alternatives on it. About three minutes.

    Args:
        model: path of a GGUF file, or the name of a fetched model.
        text: its first n_tokens tokens are the prompt.
        n_tokens: tokens of the prompt.
        progress: called with what is being done.

    Raises:
        CachegenError: the text is too short, or the model's cache has no page.
    """
    path = Path(resolve_model(model))
    progress(f"{text.name}: evaluating {n_tokens:,} tokens")
    with Engine(path, n_ctx=n_tokens + 16) as engine, engine.session() as session:
        tokens = engine.tokenize(text.text)
        if len(tokens) < n_tokens:
            raise CachegenError(f"text {text.name} has {len(tokens)} tokens, {n_tokens} are needed")
        session.prefill(tokens[:n_tokens])
        copy = copy_cache(session)
        planes = [plane for group in copy.groups for plane in group]
        if len(copy.groups) != 1:
            raise CachegenError("models with sliding windows have two groups of planes; alternatives need one")
        positions = np.arange(n_tokens, dtype=np.float64)
        rope = Rope.of(engine.identity.rope, positions, *_head_size(engine, planes[0]))
    return AlternativesReport(
        setting=Setting.here(),
        model=ModelFile.of(path),
        text=text,
        n_tokens=n_tokens,
        sections=alternatives_of(planes, copy.n_layers, rope=rope, progress=progress),
    )
