"""What other codecs make of the row's bytes: byte compressors, CKG1 with LCG1 or LCG2, and LMCache's container."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._timing import ms_since
from ..codec import Kind, Plane, page_planes
from ..codec.legacy import Ckg1Archive
from ..errors import CachegenError
from ..evaluate.caches import native_rows
from ..evaluate.rivals import ckg1_archive, lmcache_calls, load_package
from ..ggml_types import GgmlType
from ..page import Page
from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE
from .lmcache_peer import time_lmcache
from .native_archive import native_archive_planes
from .step_config import StepConfig

__all__ = ["measure_peers"]

_CHUNK_BYTES = 1 << 26
_MODELS = ("CKG1 of LCG1", "CKG1 of LCG2", "LMCache CacheGen")

Encode = Callable[[], list[bytes]]
Decode = Callable[[list[bytes]], None]


def measure_peers(config: StepConfig) -> dict[str, Any]:
    """Every peer on the native page or the rows of a native archive; where neither is, on llama.cpp's state file."""
    if NATIVE in config.cases:
        with Page.open(config.path(NATIVE)) as page:
            return {"peers": _on_planes(page_planes(page), "native page", config)}
    if NATIVE_ARCHIVE in config.cases:
        planes = native_archive_planes(config.path(NATIVE_ARCHIVE))
        return {"peers": _on_planes(planes, "rows of the native archive", config)}
    rows: list[dict[str, Any]] = []
    data = np.fromfile(config.path(LLAMA), np.uint8)
    rows += _byte_codecs([(data, GgmlType.parse(config.type_k))], "llama.cpp state file", config.repeats.peer_rounds)
    note = "needs the planes of a native page, which this memory has none of"
    for name in _MODELS:
        rows.append(_row(name, "native page", is_exact=False, source_bytes=0, note=note))
    return {"peers": rows}


def _on_planes(planes: list[Plane], source: str, config: StepConfig) -> list[dict[str, Any]]:
    pieces = [(native_rows(plane).reshape(-1), plane.type) for plane in planes]
    rows = _byte_codecs(pieces, source, config.repeats.peer_rounds)
    if all(plane.kind is not Kind.AUX and plane.first_token == 0 for plane in planes):
        return rows + _models(planes, source)
    note = "needs all tokens of every layer's K and V, which this memory does not have"
    return rows + [_row(name, source, is_exact=False, source_bytes=0, note=note) for name in _MODELS]


def _row(
    name: str,
    source: str,
    *,
    is_exact: bool,
    source_bytes: int,
    encoded_bytes: int | None = None,
    encode_ms: list[float] | None = None,
    decode_ms: list[float] | None = None,
    note: str = "",
) -> dict[str, Any]:
    return {
        "name": name,
        "source": source,
        "is_exact": is_exact,
        "source_bytes": source_bytes,
        "encoded_bytes": encoded_bytes,
        "encode_ms": encode_ms or [],
        "decode_ms": decode_ms or [],
        "note": note,
    }


def _chunks(pieces: list[tuple[NDArray[np.uint8], GgmlType]]) -> list[tuple[NDArray[np.uint8], GgmlType]]:
    """Planes of one type together, cut where one call takes no more."""
    out = []
    for type_ in dict.fromkeys(type_ for _, type_ in pieces):
        whole = np.concatenate([data for data, own in pieces if own is type_])
        step = _CHUNK_BYTES // type_.block_bytes * type_.block_bytes
        out += [(whole[begin : begin + step], type_) for begin in range(0, len(whole), step)]
    return out


def _byte_codecs(pieces: list[tuple[NDArray[np.uint8], GgmlType]], source: str, n_rounds: int) -> list[dict[str, Any]]:
    chunks = _chunks(pieces)
    n_bytes = sum(len(data) for data, _ in chunks)
    rows = []
    for name, make in (("zstd -1", _zstd), ("lz4", _lz4), ("blosc2 bitshuffle+zstd", _blosc2)):
        try:
            encode, decode = make(chunks)
        except CachegenError as error:
            rows.append(_row(name, source, is_exact=True, source_bytes=n_bytes, note=str(error)))
            continue
        encode_ms, decode_ms, encoded_bytes = [], [], 0
        for i in range(n_rounds + 1):
            t_start = time.perf_counter()
            encoded = encode()
            took_ms = ms_since(t_start)
            t_start = time.perf_counter()
            decode(encoded)
            if i > 0:
                encode_ms.append(round(took_ms, 4))
                decode_ms.append(round(ms_since(t_start), 4))
            encoded_bytes = sum(len(data) for data in encoded)
        rows.append(
            _row(
                name,
                source,
                is_exact=True,
                source_bytes=n_bytes,
                encoded_bytes=encoded_bytes,
                encode_ms=encode_ms,
                decode_ms=decode_ms,
                note="in memory, one thread, into new arrays",
            )
        )
    return rows


def _zstd(chunks: list[tuple[NDArray[np.uint8], GgmlType]]) -> tuple[Encode, Decode]:
    package = load_package("zstandard")
    compressor, decompressor = package.ZstdCompressor(level=1), package.ZstdDecompressor()

    def decode(encoded: list[bytes]) -> None:
        for one in encoded:
            decompressor.decompress(one)

    return lambda: [compressor.compress(data.data) for data, _ in chunks], decode


def _lz4(chunks: list[tuple[NDArray[np.uint8], GgmlType]]) -> tuple[Encode, Decode]:
    package = load_package("lz4.frame")

    def decode(encoded: list[bytes]) -> None:
        for one in encoded:
            package.decompress(one)

    return lambda: [package.compress(data.data) for data, _ in chunks], decode


def _blosc2(chunks: list[tuple[NDArray[np.uint8], GgmlType]]) -> tuple[Encode, Decode]:
    package = load_package("blosc2")
    package.set_nthreads(1)

    def encode() -> list[bytes]:
        return [
            package.compress2(
                np.ascontiguousarray(data),
                typesize=type_.block_bytes,
                codec=package.Codec.ZSTD,
                clevel=5,
                filters=[package.Filter.BITSHUFFLE],
                filters_meta=[0],
            )
            for data, type_ in chunks
        ]

    def decode(encoded: list[bytes]) -> None:
        for one in encoded:
            package.decompress2(one)

    return encode, decode


def _models(planes: list[Plane], source: str) -> list[dict[str, Any]]:
    """Codecs of KV values: CKG1 by libcachegen, LMCache's by the numpy reference, timed by itself where it is."""
    n_layers = 1 + max(plane.layer for plane in planes)
    n_bytes = sum(native_rows(plane).nbytes for plane in planes)
    rows = []
    for version in (1, 2):
        name = f"CKG1 of LCG{version}"
        t_start = time.perf_counter()
        try:
            encoded = ckg1_archive(planes, n_layers, version)
        except CachegenError as error:
            rows.append(_row(name, source, is_exact=False, source_bytes=n_bytes, note=str(error)))
            continue
        encode_ms = round(ms_since(t_start), 4)
        with Ckg1Archive(encoded) as archive:
            t_start = time.perf_counter()
            archive.decode()
            decode_ms = round(ms_since(t_start), 4)
        rows.append(
            _row(
                name,
                source,
                is_exact=False,
                source_bytes=n_bytes,
                encoded_bytes=len(encoded),
                encode_ms=[encode_ms],
                decode_ms=[decode_ms],
                note="by libcachegen, one thread, once, into a new array; LMCache's bins",
            )
        )
    name, note = "LMCache CacheGen", "sizes of LMCache's own containers by the numpy reference, which has its bits"
    try:
        n_encoded = lmcache_calls(planes, n_layers)
        encode_times, decode_times, words = time_lmcache(planes, n_layers, n_encoded)
        rows.append(
            _row(
                name,
                source,
                is_exact=False,
                source_bytes=n_bytes,
                encoded_bytes=n_encoded,
                encode_ms=encode_times,
                decode_ms=decode_times,
                note=f"{note}; {words}",
            )
        )
    except CachegenError as error:
        rows.append(_row(name, source, is_exact=False, source_bytes=n_bytes, note=str(error)))
    return rows
