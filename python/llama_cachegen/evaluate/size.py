"""Sizes of one prompt's cache under every profile, beside other codecs, for several pairs of cache types."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..codec import PROFILES, Archive
from ..codec.sizes import archive_sizes
from ..engine import Engine
from ..errors import CachegenError
from ..ggml_types import GgmlType
from ..models import KNOWN_MODELS, resolve_model
from .caches import CacheCopy, copy_cache, n_native_bytes, n_values, native_rows
from .report import ModelFile, Setting, markdown_table, setting_lines
from .rivals import BYTE_CODECS, LMCACHE_CALL_TOKENS, ckg1_bytes, compressed_bytes, lmcache_calls
from .texts import Text

__all__ = ["N_TOKENS", "TYPE_PAIRS", "SizeReport", "SizeRow", "measure_size"]

N_TOKENS = 7680
TYPE_PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"))

_GOALS_PERCENT = {("f16/f16", "lmcache"): 15.5, ("q8_0/q8_0", "lmcache"): 30.0, ("q4_0/q4_0", "lmcache"): 62.0}
"""Largest share of the native bytes, for SmolLM2 and 7,680 tokens."""


@dataclasses.dataclass(frozen=True)
class SizeRow:
    """Size of one codec's output.

    Attributes:
        text: name of the text.
        types: types of K and V, "f16/f16".
        codec: a profile of LCG3, another codec, or "native".
        n_bytes: all in.
        percent_of_native: of the native bytes in the cache's own types.
        bits_per_value: bits of all bytes by number of K and V values.
        sections: where they go, of LCG3 only: see `codec.sizes.ArchiveSizes.sections`.
    """

    text: str
    types: str
    codec: str
    n_bytes: int
    percent_of_native: float
    bits_per_value: float
    sections: dict[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class SizeReport:
    """Sizes, and what they were measured with."""

    setting: Setting
    model: ModelFile
    n_tokens: int
    texts: tuple[Text, ...]
    rows: tuple[SizeRow, ...]

    def row(self, types: str, codec: str, text: str | None = None) -> SizeRow:
        """The row of a pair of types and a codec, of the first text if none is named.

        Raises:
            KeyError: there is none.
        """
        text = self.texts[0].name if text is None else text
        for row in self.rows:
            if (row.text, row.types, row.codec) == (text, types, codec):
                return row
        raise KeyError((text, types, codec))

    def goals(self) -> list[tuple[str, bool]]:
        """What was to be reached, with the figures, and whether it was; empty for other models or fewer tokens."""
        if self.model.sha256 != KNOWN_MODELS["smollm2"].sha256 or self.n_tokens < N_TOKENS:
            return []
        goals = []
        for text in self.texts:
            for (types, codec), most in _GOALS_PERCENT.items():
                goals += self._goal(text.name, types, codec, f"{most} %", most)
            for types in ("q8_0/q8_0", "q4_0/q4_0"):
                goals += self._goal(text.name, types, "exact", "native", 100.0)
                for row in self.rows:
                    if (row.text, row.types, row.codec) == (text.name, types, "zstd -19"):
                        limit = f"zstd -19's {row.percent_of_native:.2f} %"
                        goals += self._goal(text.name, types, "exact", limit, row.percent_of_native)
        return goals

    def _goal(self, text: str, types: str, codec: str, limit: str, most_percent: float) -> list[tuple[str, bool]]:
        try:
            row = self.row(types, codec, text)
        except KeyError:
            return []
        words = f"{text}, {types}, {codec}: {row.percent_of_native:.2f} % of native, at most {limit}"
        return [(words, row.percent_of_native <= most_percent)]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the texts without their words."""
        result = dataclasses.asdict(self)
        for text in result["texts"]:
            del text["text"]
        result["goals"] = [{"goal": words, "is_reached": is_reached} for words, is_reached in self.goals()]
        return result

    def markdown(self) -> str:
        """A page with tables."""
        lines = [
            "# Codec sizes",
            "",
            "Made by `llama-cachegen codec size`. Bytes are all in: headers, tables, digests. Native bytes are those of"
            " the same cache in its own types.",
            "",
            f"- model: {self.model.name}, SHA-256 `{self.model.sha256}`, {self.n_tokens:,} tokens",
            *(f"- text {text.name}: {text.description}, SHA-256 `{text.sha256}`" for text in self.texts),
            *setting_lines(self.setting),
            "",
            "`lmcache`, `balanced`, `fine` and `exact` are profiles of LCG3; `exact` loses nothing. LCG1 and LCG2 are"
            " tiles of CKG1 archives, both with LMCache's schedule, as LMCache's own containers"
            f" ({LMCACHE_CALL_TOKENS} tokens a call; values of quantised caches as F16). zstd, lz4 (its frame, default"
            " level) and blosc2 (level 5, bit shuffle over whole values or ggml blocks) compress the native bytes of"
            " all planes, one after another.",
        ]
        for text in self.texts:
            for types in dict.fromkeys(row.types for row in self.rows):
                rows = [row for row in self.rows if (row.text, row.types) == (text.name, types)]
                if not rows:
                    continue
                lines += ["", f"## Text {text.name}, K/V {types.upper()}", ""]
                lines += markdown_table(
                    ("codec", "bytes", "% of native", "bits/value"),
                    [
                        (row.codec, f"{row.n_bytes:,}", f"{row.percent_of_native:.2f}", f"{row.bits_per_value:.3f}")
                        for row in rows
                    ],
                )
                lines += ["", "Where the bytes of LCG3 go, in % of the archive:", ""]
                profiles = [(row, row.sections) for row in rows if row.sections is not None]
                names = list(profiles[0][1])
                lines += markdown_table(
                    ("profile", *(name.replace("_", " ") for name in names)),
                    [
                        (row.codec, *(f"{100 * sections[name] / row.n_bytes:.2f}" for name in names))
                        for row, sections in profiles
                    ],
                )
        if goals := self.goals():
            lines += ["", "## Goals", ""]
            lines += markdown_table(
                ("goal", "reached"),
                [(words, "yes" if is_reached else "**no**") for words, is_reached in goals],
                n_left=2,
            )
        return "\n".join(lines) + "\n"


def _sections(archives: Sequence[bytes]) -> dict[str, int]:
    """Where the bytes of LCG3 archives go; the sections sum to the whole."""
    total: dict[str, int] = {}
    for data in archives:
        with Archive(data) as archive:
            for name, n_bytes in archive_sizes(data, archive).sections().items():
                total[name] = total.get(name, 0) + n_bytes
    return total


def _rows(
    copy: CacheCopy, text: str, types: str, *, byte_codecs: Sequence[str], progress: Callable[[str], None]
) -> list[SizeRow]:
    groups = copy.groups
    native_bytes, values = n_native_bytes(groups), n_values(groups)
    rows = []

    n_threads = os.cpu_count() or 1

    def add(codec: str, n_bytes: int, sections: dict[str, int] | None = None) -> None:
        rows.append(SizeRow(text, types, codec, n_bytes, 100 * n_bytes / native_bytes, 8 * n_bytes / values, sections))

    add("native", native_bytes)
    for profile in PROFILES:
        progress(f"{text}, {types}: LCG3 {profile}")
        archives = copy.encode(profile, n_threads=n_threads)
        add(profile, sum(len(data) for data in archives), _sections(archives))
    for version in (1, 2):
        progress(f"{text}, {types}: LCG{version}")
        add(f"LCG{version}", sum(ckg1_bytes(planes, copy.n_layers, version, n_threads=n_threads) for planes in groups))
    progress(f"{text}, {types}: LMCache's containers")
    add("LMCache", sum(lmcache_calls(planes, copy.n_layers) for planes in groups))
    if byte_codecs:
        planes = [plane for group in groups for plane in group]
        native = np.concatenate([native_rows(plane).ravel() for plane in planes])
        for codec in byte_codecs:
            progress(f"{text}, {types}: {codec}")
            add(codec, compressed_bytes(codec, native, planes[0].type))
    return rows


def measure_size(
    model: str | os.PathLike[str],
    texts: Sequence[Text],
    *,
    n_tokens: int = N_TOKENS,
    type_pairs: Sequence[tuple[str, str]] = TYPE_PAIRS,
    byte_codecs: Sequence[str] = BYTE_CODECS,
    progress: Callable[[str], None] = lambda _: None,
) -> SizeReport:
    """Evaluate a prompt once for each text and pair of cache types, and encode its cache with everything.

    Args:
        model: path of a GGUF file, or the name of a fetched model.
        texts: at least one; the first n_tokens tokens of each are the prompt.
        n_tokens: tokens of the prompt.
        type_pairs: types of K and V.
        byte_codecs: of `BYTE_CODECS`, those to measure; their packages are needed.
        progress: called with what is being done.

    Raises:
        CachegenError: a text is too short, or a package is missing.
    """
    path = Path(resolve_model(model))
    if byte_codecs:  # a missing package is found before the minutes of work
        for codec in byte_codecs:
            compressed_bytes(codec, np.zeros(64, dtype=np.uint8), GgmlType.F16)
    rows: list[SizeRow] = []
    for text in texts:
        for type_k, type_v in type_pairs:
            types = f"{type_k}/{type_v}"
            progress(f"{text.name}, {types}: evaluating {n_tokens:,} tokens")
            with Engine(path, n_ctx=n_tokens + 16, type_k=type_k, type_v=type_v) as engine, engine.session() as session:
                tokens = engine.tokenize(text.text)
                if len(tokens) < n_tokens:
                    raise CachegenError(f"text {text.name} has {len(tokens)} tokens, {n_tokens} are needed")
                session.prefill(tokens[:n_tokens])
                copy = copy_cache(session)
            rows += _rows(copy, text.name, types, byte_codecs=byte_codecs, progress=progress)
    return SizeReport(
        setting=Setting.here(), model=ModelFile.of(path), n_tokens=n_tokens, texts=tuple(texts), rows=tuple(rows)
    )
