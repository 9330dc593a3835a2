"""Where the bytes of an LCG3 archive go. docs/formats/lcg3.md describes the records that are read here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .archive import Archive, ArchivePlane, Mode

__all__ = ["ArchiveSizes", "PlaneSizes", "archive_sizes"]

_HEADER_BYTES = 64
_RECORD_BYTES = 24
_RAW_BITS_OFFSET = 16
_SCALE_BITS_OFFSET = 4


class PlaneSizes(NamedTuple):
    """Bytes of a plane's units, which are all of its payload but the exact rows.

    Attributes:
        words: of the entropy coder.
        scales: packed.
        states: the coder's first states, one a channel and block.
        raw: bits or rows that are kept as they are.
        overhead: headers, word counts and padding of units.
    """

    words: int
    scales: int
    states: int
    raw: int
    overhead: int


class ArchiveSizes(NamedTuple):
    """Bytes of an archive.

    Attributes:
        metadata: header, records, unit sizes and digests.
        tables: symbol sets and model numbers.
        exact_rows: first tokens, kept as they are.
        padding: around the exact rows.
        planes: units, in the archive's order.
    """

    metadata: int
    tables: int
    exact_rows: int
    padding: int
    planes: tuple[PlaneSizes, ...]

    def sections(self) -> dict[str, int]:
        """All sections of the archive by name; they sum to its size."""
        total = [sum(sizes) for sizes in zip(*self.planes, strict=True)]
        words, scales, states, raw, overhead = total
        return {
            "metadata": self.metadata,
            "tables": self.tables,
            "exact_rows": self.exact_rows,
            "scales": scales,
            "words": words,
            "states": states,
            "raw": raw,
            "overhead": overhead + self.padding,
        }


def _packed(n: int, width: int) -> int:
    return (n * width + 31) // 32 * 4


def _align(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment


def archive_sizes(data: bytes, archive: Archive) -> ArchiveSizes:
    """The sizes of everything in an archive.

    Args:
        data: the bytes that `archive` was opened on, so that they have been checked.
        archive: open.

    Raises:
        ArchiveError: a unit contradicts itself.
        ValueError: the archive is closed.
    """
    info = archive.info
    planes = archive.planes
    n_planes = len(planes)
    digests = info.metadata_bytes - 8 * (info.n_blocks + 2)
    sizes_at = digests - _align(4 * info.n_blocks * n_planes, 8)
    n_bytes = np.frombuffer(data, "<u4", info.n_blocks * n_planes, sizes_at).reshape(info.n_blocks, n_planes)
    exact_rows = sum(
        max(0, info.n_exact_tokens - plane.first_token) * plane.type.row_bytes(plane.n_channels) for plane in planes
    )
    units_at = _align(_align(info.metadata_bytes, 64) + exact_rows, 64)

    scales, raw, n_units = [0] * n_planes, [0] * n_planes, [0] * n_planes
    raw_bits = [data[_HEADER_BYTES + _RECORD_BYTES * i + _RAW_BITS_OFFSET] for i in range(n_planes)]
    at = units_at
    for block in range(info.n_blocks):
        first_token = info.n_exact_tokens + block * info.block_tokens
        end_token = min(first_token + info.block_tokens, info.n_tokens)
        for i, plane in enumerate(planes):
            n_rows = end_token - max(first_token, plane.first_token)
            if n_rows <= 0:
                continue  # the plane begins later, and its unit has no bytes
            n_units[i] += 1
            if plane.mode is Mode.RAW:
                raw[i] += n_rows * plane.type.row_bytes(plane.n_channels)
            else:
                scales[i] += _packed(_n_scales(plane, n_rows), data[at + _SCALE_BITS_OFFSET])
                raw[i] += _packed(n_rows * plane.n_channels, raw_bits[i])
            at += int(n_bytes[block, i])
    per_plane = []
    for i, plane in enumerate(planes):
        states = 0 if plane.mode is Mode.RAW else 4 * plane.n_channels * n_units[i]
        known = plane.symbol_bytes + scales[i] + states + raw[i]
        per_plane.append(PlaneSizes(plane.symbol_bytes, scales[i], states, raw[i], plane.payload_bytes - known))
    return ArchiveSizes(
        metadata=info.metadata_bytes - info.table_bytes,
        tables=info.table_bytes,
        exact_rows=exact_rows,
        padding=units_at - info.metadata_bytes - exact_rows,
        planes=tuple(per_plane),
    )


def _n_scales(plane: ArchivePlane, n_rows: int) -> int:
    if plane.mode is Mode.LOSSY:
        return n_rows
    return n_rows * plane.n_channels // plane.type.block_size if plane.type.block_size > 1 else 0
