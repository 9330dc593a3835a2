"""The probability table of every channel: a 16-bit cumulative histogram of its symbols over all tokens of a call.

Entry i is the share of symbols below i in 65,503rds, plus i. The added i leaves every symbol a width of at least 1,
whether it occurs or not, so that the table is strictly increasing from 0 to 65,535. It has 33 entries for layers of 16
bins too. The last symbol reaches to 65,536 in the coder.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._status import bad_archive

__all__ = ["MAX_TOKENS", "N_ENTRIES", "N_SYMBOLS", "build_cdf", "check_cdf"]

N_SYMBOLS = 32
N_ENTRIES = N_SYMBOLS + 1
SCALE = 65535 - N_SYMBOLS
MAX_TOKENS = 65535
"""LMCache's histogram on CUDA counts in 16 bits."""


def build_cdf(symbols: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """The tables of planes.

    Args:
        symbols: uint8 [P, T, C], each below 32; T from 1 to 65,535.

    Returns:
        uint16 [P, C, 33].
    """
    n_planes, n_tokens, n_channels = symbols.shape
    cdf = np.empty((n_planes, n_channels, N_ENTRIES), dtype=np.uint16)
    first_slot = np.arange(n_channels, dtype=np.int64) * N_SYMBOLS
    for plane in range(n_planes):
        slots = (first_slot + symbols[plane]).ravel()
        counts = np.bincount(slots, minlength=n_channels * N_SYMBOLS).reshape(n_channels, N_SYMBOLS)
        below = np.concatenate([np.zeros((n_channels, 1), dtype=np.int64), counts.cumsum(axis=1)], axis=1)
        cdf[plane] = SCALE * below // n_tokens + np.arange(N_ENTRIES)
    return cdf


def check_cdf(cdf: NDArray[np.uint16]) -> None:
    """Check what the coder relies on.

    Args:
        cdf: uint16 [P, C, 33].

    Raises:
        ArchiveError: a table (ERR_TABLE) does not go from 0 to 65,535, or not strictly upwards.
    """
    is_bad = (cdf[..., 0] != 0) | (cdf[..., -1] != 65535) | (cdf[..., 1:] <= cdf[..., :-1]).any(axis=-1)
    if is_bad.any():
        plane, channel = np.argwhere(is_bad)[0]
        raise bad_archive(
            "TABLE",
            f"probability table of plane {plane}, channel {channel}: does not rise strictly from 0 to 65535;"
            " the archive is damaged, fetch or make it again",
        )
