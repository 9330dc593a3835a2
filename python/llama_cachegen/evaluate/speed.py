"""How fast the codec is, beside general compressors and a plain copy, interleaved in one run.

Every case works in memory that has been touched before, on warm caches. A round runs every case once, in an order
that moves by one each round; the first round is dropped. Rates are of values: 10^9 values a second, whatever bytes they
take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..codec import Archive, Plane, Profile, encode
from ..codec._lib import check, lib
from ..codec.legacy import Ckg1Archive, Ckg1Kind, Ckg1Part, encode_ckg1
from ..codec.pages import page_planes
from ..codec.profiles import BALANCED, EXACT, FINE, LMCACHE
from ..engine import Engine
from ..errors import CachegenError
from ..ggml_types import GgmlType
from .report import ModelFile, Setting, markdown_table, setting_lines
from .rivals import load_package
from .texts import Text

__all__ = ["SpeedReport", "SpeedRow", "measure_speed"]

N_TOKENS = 7680
N_ROUNDS = 11
_ISAS = {"scalar": 0, "AVX2": 1, "AVX-512": 2, "NEON": 3}
_DESTINATIONS = (GgmlType.F16, GgmlType.F32, GgmlType.BF16, GgmlType.Q8_0, GgmlType.Q4_0)


@dataclasses.dataclass(frozen=True)
class SpeedRow:
    """One case.

    Attributes:
        group: "decode", "encode" or "copy".
        case: what was run.
        n_threads: threads it used.
        median_ms: and
        min_ms: and
        max_ms: of the rounds.
        values_per_s: values of the page over the median.
        of_zstd: its rate over that of zstd -1 in the same direction and run.
    """

    group: str
    case: str
    n_threads: int
    median_ms: float
    min_ms: float
    max_ms: float
    values_per_s: float
    of_zstd: float | None


@dataclasses.dataclass(frozen=True)
class SpeedReport:
    """All cases of one run."""

    setting: Setting
    model: ModelFile
    text: Text
    n_tokens: int
    n_values: int
    native_bytes: int
    n_rounds: int
    rows: list[SpeedRow]

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        result = dataclasses.asdict(self)
        del result["text"]["text"]
        return result

    def markdown(self) -> str:
        """The report as Markdown."""
        lines = [
            "# Speed of the codec",
            "",
            "Printed by `llama-cachegen codec bench`. In memory, warm, buffers touched before; medians of",
            "interleaved rounds with smallest and largest. G values/s: 10⁹ values of the page a second. zstd -1, lz4",
            "and blosc2 work on the page's native F16 bytes, one thread.",
            "",
            *setting_lines(self.setting),
            f"- model: {self.model.name}, SHA-256 {self.model.sha256}",
            f"- text: {self.text.name} ({self.text.description}), SHA-256 {self.text.sha256}",
            f"- page: {self.n_tokens:,} tokens, {self.n_values:,} F16 values, {self.native_bytes:,} bytes;"
            f" {self.n_rounds} rounds",
        ]
        for group in ("decode", "encode", "copy"):
            rows = [row for row in self.rows if row.group == group]
            table = markdown_table(
                (group, "threads", "ms", "G values/s", "times zstd -1"),
                [
                    (
                        row.case,
                        str(row.n_threads),
                        f"{row.median_ms:.2f} ({row.min_ms:.2f}–{row.max_ms:.2f})",
                        f"{row.values_per_s / 1e9:.3f}",
                        f"{row.of_zstd:.1f}" if row.of_zstd else "",
                    )
                    for row in rows
                ],
            )
            lines += ["", *table]
        return "\n".join([*lines, ""])


@contextlib.contextmanager
def _isa(number: int) -> Iterator[None]:
    before = lib.cachegen_isa_active()
    check(lib.cachegen_isa_select(number))
    try:
        yield
    finally:
        check(lib.cachegen_isa_select(before))


def _available_isas() -> list[str]:
    before = lib.cachegen_isa_active()
    names = [name for name, number in _ISAS.items() if lib.cachegen_isa_select(number) == lib.CACHEGEN_OK]
    check(lib.cachegen_isa_select(before))
    return names


def _destinations(planes: list[Plane], type_: GgmlType) -> list[Plane]:
    out = []
    for plane in planes:
        n_tokens = plane.data.shape[0]
        out.append(Plane(np.ones((n_tokens, type_.row_bytes(plane.n_channels)), np.uint8), type_, plane.n_channels))
    return out


@dataclasses.dataclass(frozen=True)
class _Case:
    group: str
    name: str
    n_threads: int
    run: Callable[[], object]


def _lcg3_cases(planes: list[Plane], n_threads: int) -> Iterator[_Case]:
    order_0 = dataclasses.replace(LMCACHE, n_classes=1)
    profiles: list[tuple[str, Profile]] = [
        ("lmcache, order 1", LMCACHE),
        ("lmcache, order 0", order_0),
        ("balanced", BALANCED),
        ("fine", FINE),
        ("exact", EXACT),
    ]
    threads = (1,) if n_threads == 1 else (1, n_threads)
    for name, profile in profiles:
        archive = Archive(encode(planes, profile))
        f16 = _destinations(planes, GgmlType.F16)
        for n in threads:
            yield _Case("encode", f"LCG3 {name}", n, partial(encode, planes, profile, n_threads=n))
            yield _Case("decode", f"LCG3 {name} to F16", n, partial(archive.decode, f16, n_threads=n))
        if profile not in (LMCACHE, order_0):
            continue
        for isa in _available_isas()[:-1]:

            def decode(archive: Archive = archive, out: list[Plane] = f16, number: int = _ISAS[isa]) -> None:
                with _isa(number):
                    archive.decode(out)

            def encode_with(profile: Profile = profile, number: int = _ISAS[isa]) -> None:
                with _isa(number):
                    encode(planes, profile)

            yield _Case("decode", f"LCG3 {name} to F16, {isa} only", 1, decode)
            yield _Case("encode", f"LCG3 {name}, {isa} only", 1, encode_with)
        if profile is LMCACHE:
            for type_ in _DESTINATIONS[1:]:
                out = _destinations(planes, type_)
                yield _Case("decode", f"LCG3 {name} to {type_.type_name}", 1, partial(archive.decode, out))


def _legacy_cases(planes: list[Plane]) -> Iterator[_Case]:
    n_layers = 1 + max(plane.layer for plane in planes)
    for version in (2, 1):
        parts = [
            Ckg1Part(
                Ckg1Kind.F16_ROWS,
                plane,
                n_bins=LMCACHE.n_levels("K" if plane.kind.name == "K" else "V", plane.layer, n_layers) + 1,
            )
            for plane in planes
        ]
        data = encode_ckg1(parts, version=version)
        archive = Ckg1Archive(data)
        page = np.ones(archive.page_bytes, np.uint8)
        yield _Case("decode", f"LCG{version} to F16", 1, partial(archive.decode_into, page))
        yield _Case("encode", f"LCG{version}", 1, partial(encode_ckg1, parts, version=version))


def _general_cases(payload: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[_Case]:
    zstandard, lz4, blosc2 = (load_package(name) for name in ("zstandard", "lz4.block", "blosc2"))
    data = payload.tobytes()
    compressor = zstandard.ZstdCompressor(level=1)
    zstd = compressor.compress(data)
    decompressor = zstandard.ZstdDecompressor()
    yield _Case("decode", "zstd -1", 1, lambda: decompressor.decompress(zstd))
    yield _Case("encode", "zstd -1", 1, lambda: compressor.compress(data))
    packed = lz4.compress(data)
    yield _Case("decode", "lz4", 1, lambda: lz4.decompress(packed))
    yield _Case("encode", "lz4", 1, lambda: lz4.compress(data))
    pack = partial(
        blosc2.compress2,
        typesize=2,
        clevel=1,
        codec=blosc2.Codec.ZSTD,
        filters=[blosc2.Filter.BITSHUFFLE],
        filters_meta=[0],
        nthreads=1,
    )
    shuffled = pack(data)
    yield _Case("decode", "blosc2 bitshuffle + zstd", 1, lambda: blosc2.decompress2(shuffled, nthreads=1))
    yield _Case("encode", "blosc2 bitshuffle + zstd", 1, lambda: pack(data))
    target = np.ones_like(payload)
    yield _Case("copy", "numpy.copyto of the native bytes", 1, lambda: np.copyto(target, payload))


def measure_speed(
    *,
    model: Path,
    text: Text,
    n_tokens: int = N_TOKENS,
    n_rounds: int = N_ROUNDS,
    n_threads: int = 2,
    progress: Callable[[str], None] = lambda _: None,
) -> SpeedReport:
    """Measure every case on the F16 page of a real text.

    Args:
        model: GGUF file.
        text: evaluated to its first n_tokens tokens.
        n_tokens: of the page.
        n_rounds: measured rounds, one more is dropped.
        n_threads: the codec's cases run with 1 and with this many threads.
        progress: called with what is being done.

    Raises:
        CachegenError: a package for the comparison is missing, or the text is too short.
    """
    progress(f"evaluating {n_tokens:,} tokens")
    with Engine(model, n_ctx=n_tokens + 16, type_k="f16", type_v="f16") as engine:
        tokens = engine.tokenize(text.text)[:n_tokens]
        if len(tokens) < n_tokens:
            raise CachegenError(f"text {text.name} has {len(tokens):,} tokens, {n_tokens:,} are wanted")
        with engine.session() as session:
            session.prefill(tokens)
            page = session.export_page()
    planes = page_planes(page)
    n_values = sum(plane.n_channels * n_tokens for plane in planes)
    payload = np.frombuffer(page.payload, np.uint8)

    progress("preparing")
    cases = [*_general_cases(payload), *_lcg3_cases(planes, n_threads), *_legacy_cases(planes)]
    samples: list[list[float]] = [[] for _ in cases]
    for i in range(n_rounds + 1):
        progress(f"round {i} of {n_rounds}" if i else "warming up")
        for k in range(len(cases)):
            index = (k + i) % len(cases)
            t_start = time.perf_counter()
            cases[index].run()
            if i > 0:
                samples[index].append((time.perf_counter() - t_start) * 1000)

    medians = [statistics.median(values) for values in samples]
    zstd_ms = {case.group: ms for case, ms in zip(cases, medians, strict=True) if case.name == "zstd -1"}
    rows = [
        SpeedRow(
            group=case.group,
            case=case.name,
            n_threads=case.n_threads,
            median_ms=median_ms,
            min_ms=min(values),
            max_ms=max(values),
            values_per_s=n_values / (median_ms / 1000),
            of_zstd=zstd_ms[case.group] / median_ms if case.group in zstd_ms else None,
        )
        for case, median_ms, values in zip(cases, medians, samples, strict=True)
    ]
    return SpeedReport(Setting.here(), ModelFile.of(model), text, n_tokens, n_values, payload.nbytes, n_rounds, rows)
