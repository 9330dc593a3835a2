"""The quantiser: each token's row is scaled by its largest magnitude and rounded to 2c + 1 levels.

CacheGen (SIGCOMM '24, arXiv 2310.07240) quantises with a resolution per layer; what is here is the arithmetic of
LMCache 0.5.6, in which c = floor(bins / 2) - 1:

    m      = max |x| over the row, in the type of x
    symbol = rint(fl(fl(x * fl(c / m)) + c))        0 .. 2c, ties to even, each fl() one float32 rounding
    value  = fl(fl((symbol - c) / c) * m)           one more rounding to the type of the destination

A row of zeros has 0 * inf, which LMCache turns into symbol 0; it comes back as -0.0. A row whose m is so small that
c / m overflows (below 4.4e-38; float32 and bfloat16 only) has symbols 0 too, and comes back as -m throughout.

numpy has no bfloat16: such values are carried as their bits, in uint16.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ValueType", "centre", "dequantise", "narrow", "quantise", "widen"]


class ValueType(str, enum.Enum):
    """Type of the values of a KV cache."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"

    @property
    def dtype(self) -> np.dtype[Any]:
        """How numpy carries it: bfloat16 as uint16."""
        return np.dtype(np.uint16 if self is ValueType.BFLOAT16 else self.value)

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> ValueType:
        """The type that a numpy dtype carries.

        Raises:
            ValueError: it carries none of them.
        """
        for member in cls:
            if dtype == member.dtype:
                return member
        raise ValueError(f"{dtype} is not float16, float32 or uint16 (the bits of bfloat16)")


def widen(values: NDArray[Any]) -> NDArray[np.float32]:
    """Float16, float32 or bfloat16 bits (uint16) as float32; exact. A float32 array is returned as it is."""
    if values.dtype == np.uint16:
        bits: NDArray[np.uint32] = values.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return np.asarray(values, dtype=np.float32)


def narrow(values: NDArray[np.float32], value_type: ValueType) -> NDArray[Any]:
    """Float32 rounded to nearest, ties to even, as value_type. Too large a value becomes infinite, a NaN stays one."""
    if value_type is not ValueType.BFLOAT16:
        with np.errstate(over="ignore"):
            converted: NDArray[Any] = values.astype(value_type.dtype)
        return converted
    bits = np.ascontiguousarray(values).view(np.uint32)
    is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + is_odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    narrowed: NDArray[np.uint16] = np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
    return narrowed


def centre(bins: int) -> int:
    """The symbol of 0.0, and the number of levels on each side of it."""
    return bins // 2 - 1


def quantise(planes: NDArray[Any], bins: Sequence[int]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Quantise planes.

    Args:
        planes: [P, T, C]: planes, tokens, channels; float16, float32 or bfloat16 bits (uint16). Finite.
        bins: one number a plane, 4 to 32.

    Returns:
        symbols: uint8 [P, T, C].
        maxima: [P, T], the largest magnitude of every row in the type of planes.
    """
    symbols = np.empty(planes.shape, dtype=np.uint8)
    maxima = np.empty(planes.shape[:2], dtype=planes.dtype)
    for plane, n_bins in enumerate(bins):
        values = widen(planes[plane])
        row_max = np.abs(values).max(axis=1, keepdims=True)
        c = np.float32(centre(n_bins))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factor = c / row_max
            scaled = values * factor + c
        symbols[plane] = np.where(np.isfinite(scaled), np.rint(scaled), 0)
        maxima[plane] = narrow(row_max[:, 0], ValueType.of(planes.dtype))
    return symbols, maxima


def dequantise(
    symbols: NDArray[np.uint8], maxima: NDArray[Any], bins: Sequence[int], value_type: ValueType
) -> NDArray[Any]:
    """The values that symbols stand for.

    Args:
        symbols: uint8 [P, T, C].
        maxima: [P, T]; float16, float32 or bfloat16 bits (uint16).
        bins: one number a plane, 4 to 32.
        value_type: type of the result.

    Returns:
        [P, T, C].
    """
    values = np.empty(symbols.shape, dtype=value_type.dtype)
    for plane, n_bins in enumerate(bins):
        c = np.float32(centre(n_bins))
        level = (symbols[plane].astype(np.float32) - c) / c
        values[plane] = narrow(level * widen(maxima[plane])[:, np.newaxis], value_type)
    return values
