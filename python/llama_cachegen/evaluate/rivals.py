"""What other codecs make of the same cache: byte compressors of native bytes, CKG1 archives, LMCache's containers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codec import Kind, Plane
from ..codec.legacy import Ckg1Kind, Ckg1Part, encode_ckg1
from ..codec.reference import decode as lmcache_decode
from ..codec.reference import encode as lmcache_encode
from ..codec.reference import lmcache_schedule, payload_to_container
from ..errors import CachegenError
from ..ggml_types import GgmlType
from .caches import native_rows, values_of

__all__ = [
    "BYTE_CODECS",
    "LMCACHE_CALL_TOKENS",
    "ckg1_archive",
    "ckg1_bytes",
    "compressed_bytes",
    "lmcache_call_values",
    "lmcache_calls",
    "lmcache_values",
    "load_package",
]

LMCACHE_CALL_TOKENS = 256
"""LMCache cuts a prompt into chunks of 256 tokens, each a call and a container of its own."""

BYTE_CODECS = ("zstd -1", "zstd -19", "lz4", "blosc2 bitshuffle+zstd")
"""They see the native bytes of all planes, one after another."""

_CKG1_KINDS = {
    GgmlType.F16: Ckg1Kind.F16_ROWS,
    GgmlType.F32: Ckg1Kind.F32_ROWS,
    GgmlType.Q8_0: Ckg1Kind.Q8_0_ROWS,
    GgmlType.Q4_0: Ckg1Kind.Q4_0_ROWS,
}


def load_package(name: str) -> Any:
    """A package that measurements need and the library does not.

    Raises:
        CachegenError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CachegenError(
            f"the package {name.partition('.')[0]} is missing; install zstandard, lz4 and blosc2"
            " (`pip install --group bench` in a source tree), or leave the byte compressors out"
        ) from None


def compressed_bytes(codec: str, native: NDArray[np.uint8], type_: GgmlType) -> int:
    """Size that one of `BYTE_CODECS` makes of native bytes.

    Args:
        codec: its name.
        native: uint8 [n_bytes].
        type_: of the values; blosc2 shuffles the bits of its blocks.

    Raises:
        CachegenError: the package is not installed.
    """
    data = native.tobytes()
    if codec.startswith("zstd -"):
        compressor = load_package("zstandard").ZstdCompressor(level=int(codec.removeprefix("zstd -")))
        return len(compressor.compress(data))
    if codec == "lz4":
        return len(load_package("lz4.frame").compress(data))
    blosc2 = load_package("blosc2")
    # chunks, as one call takes less than 2 GiB
    n_chunk_bytes = (1 << 26) // type_.block_bytes * type_.block_bytes
    return sum(
        len(
            blosc2.compress2(
                np.ascontiguousarray(native[begin : begin + n_chunk_bytes]),
                typesize=type_.block_bytes,
                codec=blosc2.Codec.ZSTD,
                clevel=5,
                filters=[blosc2.Filter.BITSHUFFLE],
                filters_meta=[0],
            )
        )
        for begin in range(0, len(native), n_chunk_bytes)
    )


def _bins(plane: Plane, n_layers: int) -> int:
    schedule = lmcache_schedule(n_layers)
    return (schedule.key_bins if plane.kind is Kind.K else schedule.value_bins)[plane.layer]


def ckg1_archive(planes: Sequence[Plane], n_layers: int, version: int, *, n_threads: int = 1) -> bytes:
    """A CKG1 archive of LCG1 (version 1) or LCG2 (2) tiles with LMCache's schedule.

    Rotated planes are coded as they are stored.

    Raises:
        CachegenError: a type that CKG1 does not hold.
    """
    if any(plane.type not in _CKG1_KINDS for plane in planes):
        raise CachegenError("CKG1 holds f16, f32, q8_0 and q4_0 only")
    parts = [Ckg1Part(_CKG1_KINDS[plane.type], plane, _bins(plane, n_layers)) for plane in planes]
    return encode_ckg1(parts, version=version, n_threads=n_threads)


def ckg1_bytes(planes: Sequence[Plane], n_layers: int, version: int, *, n_threads: int = 1) -> int:
    """Size of `ckg1_archive`."""
    return len(ckg1_archive(planes, n_layers, version, n_threads=n_threads))


def _calls(planes: Sequence[Plane], n_layers: int) -> Iterator[tuple[NDArray[Any], list[int], list[int]]]:
    """Values [L, 2, T, 1, C] and bins of K and V of each of LMCache's calls, for planes of n_layers or some of them.

    LMCache's tables need a layer of 32 bins in both K and V; where the group has none, its first layer comes again with
    them at the end.
    """
    layers = sorted({plane.layer for plane in planes})
    place = {(plane.layer, plane.kind): plane for plane in planes}
    if len(place) != len(planes) or any((layer, kind) not in place for layer in layers for kind in (Kind.K, Kind.V)):
        raise CachegenError("LMCache's container needs one K and one V plane a layer")
    key_bins = [_bins(place[layer, Kind.K], n_layers) for layer in layers]
    value_bins = [_bins(place[layer, Kind.V], n_layers) for layer in layers]
    if max(key_bins) != 32 or max(value_bins) != 32:
        layers = [*layers, layers[0]]
        key_bins, value_bins = [*key_bins, 32], [*value_bins, 32]
    n_tokens = len(native_rows(planes[0]))
    for begin in range(0, n_tokens, LMCACHE_CALL_TOKENS):
        kv = [
            [_lmcache_rows(place[layer, kind], begin, begin + LMCACHE_CALL_TOKENS) for kind in (Kind.K, Kind.V)]
            for layer in layers
        ]
        yield np.asarray(kv)[:, :, :, np.newaxis], key_bins, value_bins


def _by_tokens(planes: Sequence[Plane]) -> list[list[Plane]]:
    """Planes of as many tokens together: those of sliding-window layers may have fewer."""
    groups: dict[int, list[Plane]] = {}
    for plane in planes:
        groups.setdefault(len(native_rows(plane)), []).append(plane)
    return list(groups.values())


def _lmcache_rows(plane: Plane, begin: int, end: int) -> NDArray[Any]:
    """Rows [begin, end) in a type LMCache has: as they are, or values of quantised types as float16."""
    rows = native_rows(plane)[begin:end]
    if plane.type is GgmlType.F16:
        return rows.view(np.float16)
    if plane.type is GgmlType.F32:
        return rows.view(np.float32)
    if plane.type is GgmlType.BF16:
        return rows.view(np.uint16)
    part = Plane(rows, plane.type, plane.n_channels)
    return values_of(part).astype(np.float16)


def lmcache_call_values(planes: Sequence[Plane], n_layers: int) -> Iterator[NDArray[Any]]:
    """Values of each of LMCache's calls, [layers, 2, tokens, 1, channels]: float16, float32, or bits of bfloat16.

    Raises:
        CachegenError: planes that LMCache has no container for.
    """
    for group in _by_tokens(planes):
        for kv, _, _ in _calls(group, n_layers):
            yield kv


def lmcache_calls(planes: Sequence[Plane], n_layers: int) -> int:
    """Bytes of LMCache's containers of all calls. Values of quantised types are taken as float16.

    Raises:
        CachegenError: planes that LMCache has no container for.
    """
    return sum(
        len(payload_to_container(lmcache_encode(kv, key_bins=key_bins, value_bins=value_bins)))
        for group in _by_tokens(planes)
        for kv, key_bins, value_bins in _calls(group, n_layers)
    )


def lmcache_values(planes: Sequence[Plane], n_layers: int) -> dict[tuple[int, Kind], NDArray[Any]]:
    """What LMCache's encoder and decoder make of planes, in numpy.

    Returns:
        [n_tokens, n_channels] for each (layer, kind): float16, float32, or the bits of bfloat16.

    Raises:
        CachegenError: planes that LMCache has no container for.
    """
    parts: dict[tuple[int, Kind], list[NDArray[Any]]] = {}
    for group in _by_tokens(planes):
        layers = sorted({plane.layer for plane in group})
        for kv, key_bins, value_bins in _calls(group, n_layers):
            payload = lmcache_encode(kv, key_bins=key_bins, value_bins=value_bins)
            decoded = lmcache_decode(payload, key_bins=key_bins, value_bins=value_bins)
            for i, layer in enumerate(layers):
                for j, kind in enumerate((Kind.K, Kind.V)):
                    parts.setdefault((layer, kind), []).append(decoded[i, j, :, 0])
    return {key: np.concatenate(rows) for key, rows in parts.items()}
