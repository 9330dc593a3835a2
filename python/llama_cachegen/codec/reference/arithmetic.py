"""The arithmetic coder: Witten, Neal and Cleary's, with 32-bit bounds and 16-bit tables, bit-equal to torchac's.

The textbook form (I. H. Witten, R. M. Neal, J. G. Cleary, CACM 30(6), 1987; torchac; LMCache 0.5.6 with one thread a
channel) keeps an interval [low, high] and drops, bit by bit, the leading bits on which its ends agree; where the ends
straddle the middle, 0111.. and 1000.., it drops the second bit and owes the output one "pending" bit. All channels take
their steps together here, so both loops are replaced by what they amount to:

* Agreeing bits always go first. Once the leading bits differ they stay different, so the number of bits dropped after
  a symbol is the number of leading bits on which low and high agree, plus the number of places from the one after the
  next on in which low has a 1 and high a 0. `_renormalise` counts both.
* Neither kind of drop changes what the interval is, only its scale. The output is therefore the plain sum of all
  increments of low, each shifted right by the bits dropped before it, and pending bits are the carries of that sum.
  Ending the stream means to round up to the next multiple of a quarter, 2**30, and to keep two more bits.
* The decoder needs only the distance of the code from low, which doubles and takes in a bit with every drop.

Bits are packed most significant first; a stream ends with zeros up to a whole byte and may be read on as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .cdf import N_SYMBOLS

__all__ = ["decode_streams", "encode_streams"]

_Ints = NDArray[np.int64]

_FULL = 1 << 32
_QUARTER = 1 << 30
_MASK_32 = (1 << 32) - 1
_MASK_31 = (1 << 31) - 1
_STREAMS_AT_ONCE = 8192
_MAX_DROPPED = 19
"""Bits of one symbol: at least 2**30 / 2**16 of the interval is left, give or take a rounding."""


def _blocks(n_streams: int) -> Iterator[slice]:
    for begin in range(0, n_streams, _STREAMS_AT_ONCE):
        yield slice(begin, min(begin + _STREAMS_AT_ONCE, n_streams))


def _n_words(n_tokens: int) -> int:
    return (n_tokens * _MAX_DROPPED + 64) // 32 + 2


def _bounds(cdf: NDArray[np.uint16]) -> _Ints:
    bounds = cdf.astype(np.int64)
    bounds[:, N_SYMBOLS] = 1 << 16
    return bounds


def _bit_length(values: _Ints) -> _Ints:
    exponents: NDArray[np.int32] = np.frexp(values.astype(np.float64))[1]
    return exponents.astype(np.int64)


def _renormalise(low: _Ints, span: _Ints) -> tuple[_Ints, _Ints, _Ints]:
    """Make span larger than a quarter again. Returns: low, span, and how many bits were dropped."""
    high = low + span - 1
    n_agreeing = 32 - _bit_length(low ^ high)
    low = (low << n_agreeing) & _MASK_32
    high = (((high + 1) << n_agreeing) - 1) & _MASK_32
    straddling = low & ~high & _MASK_31
    n_straddling = 31 - _bit_length(~straddling & _MASK_31)
    n_dropped = n_agreeing + n_straddling
    return (low << n_straddling) & _MASK_31, span << n_dropped, n_dropped


# encoding


def _add(words: NDArray[np.uint64], rows: _Ints, position: _Ints, values: _Ints) -> None:
    """Add 32-bit values to fixed-point numbers, at a bit position from their top; carries stay in the upper halves."""
    index, bit = position >> 5, position & 31
    aligned = values.astype(np.uint64) << (32 - bit).astype(np.uint64)
    words[rows, index] += aligned >> np.uint64(32)
    words[rows, index + 1] += aligned & np.uint64(_MASK_32)


def _encode_block(symbols: NDArray[np.uint8], cdf: NDArray[np.uint16]) -> tuple[NDArray[np.uint8], _Ints]:
    n_streams, n_tokens = symbols.shape
    rows = np.arange(n_streams)
    bounds = _bounds(cdf)
    low = np.zeros(n_streams, dtype=np.int64)
    span = np.full(n_streams, _FULL, dtype=np.int64)
    position = np.zeros(n_streams, dtype=np.int64)
    words = np.zeros((n_streams, _n_words(n_tokens)), dtype=np.uint64)
    for token in range(n_tokens):
        symbol = symbols[:, token].astype(np.int64)
        below = span * bounds[rows, symbol] >> 16
        up_to = span * bounds[rows, symbol + 1] >> 16
        _add(words, rows, position, below)
        low, span, n_dropped = _renormalise(low + below, up_to - below)
        position += n_dropped
    _add(words, rows, position, np.full(n_streams, _QUARTER, dtype=np.int64))

    for word in range(words.shape[1] - 1, 0, -1):
        words[:, word - 1] += words[:, word] >> np.uint64(32)
    data = (words & np.uint64(_MASK_32)).astype(">u4").view(np.uint8)
    n_bits = position + 2
    n_bytes = (n_bits + 7) >> 3
    data[rows, n_bytes - 1] &= ((0xFF << (8 * n_bytes - n_bits)) & 0xFF).astype(np.uint8)
    return data[np.arange(data.shape[1]) < n_bytes[:, np.newaxis]], n_bytes


def encode_streams(symbols: NDArray[np.uint8], cdf: NDArray[np.uint16]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Code every row of symbols into a stream of its own.

    Args:
        symbols: uint8 [N, T], each below 32; T at least 1.
        cdf: uint16 [N, 33], strictly increasing from 0 to 65,535.

    Returns:
        stream: uint8, the N streams one after another.
        lengths: int32 [N], bytes of each, at least 1.
    """
    parts = [_encode_block(symbols[block], cdf[block]) for block in _blocks(len(symbols))]
    return np.concatenate([data for data, _ in parts]), np.concatenate([n for _, n in parts]).astype(np.int32)


# decoding


def _read(words: NDArray[np.uint64], rows: _Ints, position: _Ints, n_bits: _Ints) -> _Ints:
    """n_bits bits, at most 32, from a bit position on."""
    index, bit = position >> 5, position & 31
    window = words[rows, index] << np.uint64(32) | words[rows, index + 1]
    following = (window >> (32 - bit).astype(np.uint64)) & np.uint64(_MASK_32)
    bits: NDArray[np.uint64] = following >> (32 - n_bits).astype(np.uint64)
    return bits.astype(np.int64)


def _decode_block(
    stream: NDArray[np.uint8], lengths: _Ints, cdf: NDArray[np.uint16], n_tokens: int
) -> NDArray[np.uint8]:
    n_streams = len(lengths)
    rows = np.arange(n_streams)
    data = np.zeros((n_streams, 4 * max(_n_words(n_tokens), (int(lengths.max()) + 3) // 4)), dtype=np.uint8)
    data[np.arange(data.shape[1]) < lengths[:, np.newaxis]] = stream
    words = data.view(">u4").astype(np.uint64)

    bounds = _bounds(cdf)
    low = np.zeros(n_streams, dtype=np.int64)
    span = np.full(n_streams, _FULL, dtype=np.int64)
    position = np.full(n_streams, 32, dtype=np.int64)
    distance = words[:, 0].astype(np.int64)  # of the code from low; below span whatever the stream says
    symbols = np.empty((n_streams, n_tokens), dtype=np.uint8)
    for token in range(n_tokens):
        target = (((distance + 1) << 16) - 1) // span
        symbol = (bounds[:, :N_SYMBOLS] <= target[:, np.newaxis]).sum(axis=1) - 1
        symbols[:, token] = symbol
        below = span * bounds[rows, symbol] >> 16
        up_to = span * bounds[rows, symbol + 1] >> 16
        low, span, n_dropped = _renormalise(low + below, up_to - below)
        distance = (distance - below) << n_dropped | _read(words, rows, position, n_dropped)
        position += n_dropped
    return symbols


def decode_streams(
    stream: NDArray[np.uint8], lengths: NDArray[np.int32], cdf: NDArray[np.uint16], n_tokens: int
) -> NDArray[np.uint8]:
    """Read the symbols of every stream. Bytes after the end of one count as zero; any bytes give some symbols.

    Args:
        stream: uint8, the N streams one after another.
        lengths: int32 [N], bytes of each; their sum is the size of stream.
        cdf: uint16 [N, 33], strictly increasing from 0 to 65,535.
        n_tokens: symbols of each stream, at least 1.

    Returns:
        uint8 [N, n_tokens].
    """
    n_bytes = lengths.astype(np.int64)
    ends = np.cumsum(n_bytes)
    symbols = np.empty((len(n_bytes), n_tokens), dtype=np.uint8)
    for block in _blocks(len(n_bytes)):
        begin, end = ends[block.start] - n_bytes[block.start], ends[block.stop - 1]
        symbols[block] = _decode_block(stream[begin:end], n_bytes[block], cdf[block], n_tokens)
    return symbols
