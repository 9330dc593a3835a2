"""Native rows of a KV cache in numpy: F32, F16, BF16, Q8_0 and Q4_0, to and from float32.

Q8_0 and Q4_0 are packed as ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref do, every operation rounded to
float32. What those leave undefined is 0 here: the code of a product that is not finite, as in a block of magnitudes so
small that the inverse of its scale overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ggml_types import GgmlType
from ._status import argument_error
from .quantizer import ValueType, narrow, widen

__all__ = ["load_rows", "store_rows"]

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]
_TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0, GgmlType.Q4_0)


def _check(type_: GgmlType, n_values: int) -> None:
    if type_ not in _TYPES:
        raise argument_error(f"rows of type {type_.type_name}; f32, f16, bf16, q8_0 and q4_0 are possible")
    if n_values % type_.block_size:
        raise argument_error(f"a row of {n_values} values in blocks of {type_.block_size}")


def _to_f16(values: _Floats) -> NDArray[Any]:
    """As float16; every NaN becomes the quiet one of its sign."""
    halves = narrow(values, ValueType.FLOAT16).view(np.uint16)
    nan = np.where(np.signbit(values), 0xFE00, 0x7E00).astype(np.uint16)
    return np.where(np.isnan(values), nan, halves).view(np.float16)


def _scales(d: _Floats) -> tuple[_Floats, _Bytes]:
    """The inverse of scales [..., 1], 0 for 0, and their bytes in F16 [..., 2]."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
    return inverse, np.ascontiguousarray(_to_f16(d).astype("<f2")).view(np.uint8)


def _times(blocks: _Floats, inverse: _Floats) -> _Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = blocks * inverse
    return np.where(np.isfinite(scaled), scaled, np.float32(np.nan))


def _q8_0(blocks: _Floats) -> _Bytes:
    """float32 [..., 32] -> uint8 [..., 34]."""
    inverse, d = _scales(np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127))
    scaled = _times(blocks, inverse)
    whole = np.trunc(scaled)
    away = np.abs(scaled - whole) >= np.float32(0.5)  # roundf: halves go away from zero
    codes = np.nan_to_num(whole + np.copysign(away.astype(np.float32), scaled)).astype(np.int8)
    return np.concatenate([d, codes.view(np.uint8)], axis=-1)


def _q4_0(blocks: _Floats) -> _Bytes:
    """float32 [..., 32] -> uint8 [..., 18]."""
    first = np.abs(blocks).argmax(axis=-1)[..., np.newaxis]
    extreme = np.take_along_axis(blocks, first, axis=-1)
    inverse, d = _scales(np.where(extreme != 0, extreme, np.float32(0)) / np.float32(-8))
    codes = np.nan_to_num(_times(blocks, inverse) + np.float32(8.5)).astype(np.int64).clip(max=15).astype(np.uint8)
    return np.concatenate([d, codes[..., :16] | codes[..., 16:] << 4], axis=-1)


def store_rows(values: _Floats, type_: GgmlType) -> _Bytes:
    """The native bytes of rows.

    Args:
        values: float32 [n_rows, n_values]; finite for Q8_0 and Q4_0.
        type_: F32, F16, BF16, Q8_0 or Q4_0.

    Returns:
        uint8 [n_rows, row bytes].

    Raises:
        CodecError: another type, or rows that its blocks do not divide (ERR_ARGUMENT).
    """
    n_rows, n_values = values.shape
    _check(type_, n_values)
    values = np.ascontiguousarray(values, dtype=np.float32)
    if type_ is GgmlType.F32:
        return np.ascontiguousarray(values.astype("<f4")).view(np.uint8)
    if type_ is GgmlType.F16:
        return np.ascontiguousarray(_to_f16(values).astype("<f2")).view(np.uint8)
    if type_ is GgmlType.BF16:
        return np.ascontiguousarray(narrow(values, ValueType.BFLOAT16).astype("<u2")).view(np.uint8)
    blocks = values.reshape(n_rows, n_values // 32, 32)
    packed = (_q8_0 if type_ is GgmlType.Q8_0 else _q4_0)(blocks)
    return packed.reshape(n_rows, type_.row_bytes(n_values))


def load_rows(rows: _Bytes, type_: GgmlType) -> _Floats:
    """The values of native rows.

    Args:
        rows: uint8 [n_rows, row bytes].
        type_: F32, F16, BF16, Q8_0 or Q4_0.

    Returns:
        float32 [n_rows, n_values].

    Raises:
        CodecError: another type, or rows that are no whole blocks (ERR_ARGUMENT).
    """
    n_rows, n_bytes = rows.shape
    _check(type_, 0)
    if n_bytes % type_.block_bytes:
        raise argument_error(f"a row of {n_bytes} bytes in blocks of {type_.block_bytes}")
    rows = np.ascontiguousarray(rows, dtype=np.uint8)
    if type_ is GgmlType.F32:
        return rows.view("<f4").astype(np.float32)
    if type_ is GgmlType.F16:
        return rows.view("<f2").astype(np.float32)
    if type_ is GgmlType.BF16:
        return widen(rows.view("<u2").astype(np.uint16))
    blocks = rows.reshape(n_rows, n_bytes // type_.block_bytes, type_.block_bytes)
    d = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    if type_ is GgmlType.Q8_0:
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    else:
        codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).astype(np.int8) - np.int8(8)
    with np.errstate(invalid="ignore"):
        values = codes.astype(np.float32) * d
    return np.asarray(values.reshape(n_rows, -1), dtype=np.float32)
