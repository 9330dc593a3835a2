"""LCG1 and LCG2: one tile, which is K or V of one layer for up to 256 tokens.

Both quantise as LMCache does (`quantizer`; CacheGen is arXiv 2310.07240) and keep the largest magnitude of every token.
LCG1 codes the symbols of each channel with a table of its own (`cdf`, `arithmetic`); LCG2 packs them in 4 or 5 bits.
docs/formats/lcg1.md and docs/formats/lcg2.md describe the bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._status import bad_archive, cannot_encode
from .arithmetic import decode_streams, encode_streams
from .cdf import N_ENTRIES, build_cdf, check_cdf
from .quantizer import ValueType, centre, dequantise, quantise

__all__ = ["MAX_TILE_TOKENS", "MAX_TILE_VALUES", "TileHeader", "decode_tile", "encode_tile",
           "read_tile_header"]  # fmt: skip

MAX_TILE_TOKENS = 256
MAX_TILE_VALUES = 1 << 24
MAX_STREAM_BYTES = 256

_HEADER = struct.Struct("<4sBBHII")
_MAGICS = {b"LCG1": 1, b"LCG2": 2}
_WIDTHS = {16: 4, 32: 5}  # bits of a symbol in LCG2


class TileHeader(NamedTuple):
    """The first 16 bytes of a tile.

    Attributes:
        version: 1 LCG1, 2 LCG2.
        bins: 16 or 32.
        n_tokens: 1 to 256.
        n_channels: at least 1.
        stream_bytes: bytes of all arithmetic-coded streams (LCG1), or of the packed symbols (LCG2).
    """

    version: int
    bins: int
    n_tokens: int
    n_channels: int
    stream_bytes: int


def _max_is_bad(maxima: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which maxima are no magnitudes that F16 can hold: float32 [n] -> bool [n]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(~np.isfinite(maxima.astype(np.float16)) | np.signbit(maxima))


# encoding


def _quantise_tile(values: NDArray[np.float32], bins: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Symbols uint8 [n_tokens, n_channels] and maxima float32 [n_tokens].

    As in LMCache, but where centre / maximum is not finite: there, so in rows of zeros, the sign alone counts.
    """
    symbols, maxima = quantise(values[np.newaxis], [bins])
    c = centre(bins)
    with np.errstate(divide="ignore", over="ignore"):
        is_tiny = ~np.isfinite(np.float32(c) / maxima[0])
    symbols[0, is_tiny] = c + c * np.sign(values[is_tiny]).astype(np.int64)
    return symbols[0], maxima[0]


def _pack(symbols: NDArray[np.uint8], width: int) -> bytes:
    bits = symbols.reshape(-1, 1) >> np.arange(width, dtype=np.uint8) & 1
    return bytes(np.packbits(bits.ravel(), bitorder="little"))


def encode_tile(values: NDArray[np.float32], bins: int, version: int) -> bytes:
    """Encode a tile.

    Args:
        values: float32 [n_tokens, n_channels]; finite, and of magnitudes that F16 can hold. 1 to 256 tokens.
        bins: 16 or 32.
        version: 1 for LCG1, 2 for LCG2.

    Raises:
        EncodeError: another dtype, shape, bins or version (ERR_ARGUMENT), more than 2^24 values (ERR_LIMIT), a value
            that is not finite or too large for F16 (ERR_NON_FINITE).
    """
    if values.dtype != np.float32 or values.ndim != 2 or 0 in values.shape or len(values) > MAX_TILE_TOKENS:
        raise cannot_encode(
            "ARGUMENT", f"{values.dtype} {list(values.shape)} is no tile; float32 [1 .. 256, channels] is needed"
        )
    if bins not in _WIDTHS or version not in _MAGICS.values():
        raise cannot_encode("ARGUMENT", f"{bins} bins in version {version}; 16 or 32 in version 1 or 2 are possible")
    n_tokens, n_channels = values.shape
    if values.size > MAX_TILE_VALUES:
        raise cannot_encode("LIMIT", f"{n_tokens} x {n_channels} values; a tile holds {MAX_TILE_VALUES} at most")
    is_bad = _max_is_bad(np.abs(values).max(axis=1))
    if is_bad.any():
        raise cannot_encode("NON_FINITE", f"token {int(is_bad.argmax())}: a value that is not finite as F16")

    symbols, maxima = _quantise_tile(values, bins)
    if version == 1:
        cdf = build_cdf(symbols[np.newaxis])[0]
        stream, lengths = encode_streams(np.ascontiguousarray(symbols.T), cdf)
        tables, data, byte_5 = cdf.astype("<u2").tobytes() + lengths.astype("<u2").tobytes(), stream.tobytes(), 0
    else:
        tables, data, byte_5 = b"", _pack(symbols, _WIDTHS[bins]), _WIDTHS[bins]
    header = _HEADER.pack(f"LCG{version}".encode(), bins, byte_5, n_tokens, n_channels, len(data))
    tile: bytes = header + maxima.astype("<f4").tobytes() + tables + data
    return tile


# decoding


def read_tile_header(data: bytes) -> TileHeader:
    """Read the header of a tile and check it against the size of the tile. Allocates nothing.

    Raises:
        ArchiveError: ERR_TRUNCATED, ERR_TRAILING, ERR_MAGIC, ERR_RESERVED, ERR_GEOMETRY or ERR_LIMIT.
    """
    if len(data) >= 4 and bytes(data[:4]) not in _MAGICS:
        raise bad_archive("MAGIC", "neither an LCG1 nor an LCG2 tile")
    if len(data) < _HEADER.size:
        raise bad_archive("TRUNCATED", f"a tile of {len(data)} bytes; its header alone has {_HEADER.size}")
    magic, bins, byte_5, n_tokens, n_channels, stream_bytes = _HEADER.unpack_from(data)
    version = _MAGICS[magic]
    if bins not in _WIDTHS:
        raise bad_archive("GEOMETRY", f"{bins} bins; 16 or 32 are possible")
    if version == 1 and byte_5 != 0:
        raise bad_archive("RESERVED", f"byte 5 is {byte_5}, not 0")
    if version == 2 and byte_5 != _WIDTHS[bins]:
        raise bad_archive("GEOMETRY", f"symbols of {byte_5} bits for {bins} bins")
    if not 1 <= n_tokens <= MAX_TILE_TOKENS or n_channels < 1:
        raise bad_archive("GEOMETRY", f"{n_tokens} tokens of {n_channels} channels; 1 to 256 of 1 or more")
    n_values = n_tokens * n_channels
    if n_values > MAX_TILE_VALUES:
        raise bad_archive("LIMIT", f"{n_tokens} x {n_channels} values; a tile holds {MAX_TILE_VALUES} at most")
    if version == 2 and stream_bytes != (n_values * byte_5 + 7) // 8:
        raise bad_archive("GEOMETRY", f"{stream_bytes} bytes for {n_values} symbols of {byte_5} bits")
    table_bytes = n_channels * 2 * (N_ENTRIES + 1) if version == 1 else 0
    n_bytes = _HEADER.size + 4 * n_tokens + table_bytes + stream_bytes
    if len(data) != n_bytes:
        status = "TRUNCATED" if len(data) < n_bytes else "TRAILING"
        raise bad_archive(status, f"a tile of {len(data)} bytes; by its header it has {n_bytes}")
    return TileHeader(version, bins, n_tokens, n_channels, stream_bytes)


def _read_streams(data: bytes, offset: int, header: TileHeader) -> NDArray[np.uint8]:
    """The symbols of LCG1 from its tables on: uint8 [n_tokens, n_channels]."""
    n_channels = header.n_channels
    cdf = np.frombuffer(data, "<u2", n_channels * N_ENTRIES, offset).astype(np.uint16).reshape(n_channels, N_ENTRIES)
    check_cdf(cdf[np.newaxis])
    offset += cdf.nbytes
    lengths = np.frombuffer(data, "<u2", n_channels, offset).astype(np.int32)
    is_bad = (lengths < 1) | (lengths > MAX_STREAM_BYTES)
    if is_bad.any():
        channel = int(is_bad.argmax())
        raise bad_archive("GEOMETRY", f"channel {channel}: a stream of {lengths[channel]} bytes; 1 to 256 fit")
    if int(lengths.sum(dtype=np.int64)) != header.stream_bytes:
        raise bad_archive("GEOMETRY", f"streams of {lengths.sum()} bytes, {header.stream_bytes} by the header")
    stream = np.frombuffer(data, np.uint8, header.stream_bytes, offset + 2 * n_channels)
    return np.ascontiguousarray(decode_streams(stream, lengths, cdf, header.n_tokens).T)


def _unpack(data: bytes, offset: int, header: TileHeader) -> NDArray[np.uint8]:
    """The symbols of LCG2: uint8 [n_tokens, n_channels]."""
    width = _WIDTHS[header.bins]
    n_bits = header.n_tokens * header.n_channels * width
    bits = np.unpackbits(np.frombuffer(data, np.uint8, header.stream_bytes, offset), bitorder="little")
    if bits[n_bits:].any():
        raise bad_archive("RESERVED", "the unused bits of the last byte are not zero")
    places = np.left_shift(1, np.arange(width)).astype(np.uint8)
    return np.asarray(bits[:n_bits].reshape(header.n_tokens, header.n_channels, width) @ places, dtype=np.uint8)


def decode_tile(data: bytes) -> NDArray[np.float16]:
    """The values of an LCG1 or LCG2 tile, all of them finite.

    Returns:
        float16 [n_tokens, n_channels].

    Raises:
        ArchiveError: see `read_tile_header`; ERR_TABLE: a maximum that is no magnitude, or a probability
            table; ERR_GEOMETRY: the streams' lengths; ERR_RESERVED: unused bits; ERR_STREAM: a symbol out of range.
    """
    header = read_tile_header(data)
    maxima = np.frombuffer(data, "<f4", header.n_tokens, _HEADER.size).astype(np.float32)
    is_bad = _max_is_bad(maxima)
    if is_bad.any():
        token = int(is_bad.argmax())
        raise bad_archive("TABLE", f"token {token}: maximum {maxima[token]} is no magnitude that F16 can hold")
    offset = _HEADER.size + maxima.nbytes
    symbols = (_read_streams if header.version == 1 else _unpack)(data, offset, header)
    if int(symbols.max()) > header.bins - 2:
        token, channel = np.argwhere(symbols > header.bins - 2)[0]
        raise bad_archive(
            "STREAM", f"token {token}, channel {channel}: symbol {symbols[token, channel]} of {header.bins} bins"
        )
    values = dequantise(symbols[np.newaxis], maxima[np.newaxis], [header.bins], ValueType.FLOAT16)[0]
    return np.asarray(values, dtype=np.float16)
