"""CKG1: a whole KV page as a list of records, each of them a tile of LCG1 or LCG2 or bytes as they are.

docs/formats/ckg1.md describes the bytes. `write_ckg1` and `encode_ckg1` exist for tests.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ggml_types import GgmlType
from ..errors import ArchiveError
from ._status import bad_archive, cannot_encode
from .stores import store_rows
from .tiles import MAX_TILE_TOKENS, decode_tile, encode_tile, read_tile_header

__all__ = ["Ckg1Kind", "Ckg1Part", "Ckg1Record", "decode_ckg1", "encode_ckg1", "read_ckg1", "write_ckg1"]

_HEADER = struct.Struct("<4sQI")
_RECORD = struct.Struct("<BBHQQQQQQ")
_MAGIC = b"CKG1"


class Ckg1Kind(enum.IntEnum):
    """How the values of a record lie in the page."""

    F16_ROWS = 0
    EXACT = 1
    F16_TRANSPOSED = 2
    F32_ROWS = 3
    F32_TRANSPOSED = 4
    Q8_0_ROWS = 5
    Q4_0_ROWS = 6

    @property
    def is_transposed(self) -> bool:
        """Channels one after another, tokens contiguous."""
        return self in (Ckg1Kind.F16_TRANSPOSED, Ckg1Kind.F32_TRANSPOSED)


_TYPES = {
    Ckg1Kind.F16_ROWS: GgmlType.F16,
    Ckg1Kind.F16_TRANSPOSED: GgmlType.F16,
    Ckg1Kind.F32_ROWS: GgmlType.F32,
    Ckg1Kind.F32_TRANSPOSED: GgmlType.F32,
    Ckg1Kind.Q8_0_ROWS: GgmlType.Q8_0,
    Ckg1Kind.Q4_0_ROWS: GgmlType.Q4_0,
}


def _element_bytes(kind: Ckg1Kind) -> int:
    return 1 if kind is Ckg1Kind.EXACT else _TYPES[kind].block_bytes


class Ckg1Record(NamedTuple):
    """One record.

    Attributes:
        kind: how its values lie in the page.
        offset: in the page: of its first byte, or of the whole slab for transposed kinds.
        n_bytes: what it decodes to.
        n_tokens: tokens of its tile.
        token_start: transposed kinds: its first token in the slab.
        total_tokens: transposed kinds: tokens of the slab.
        payload: the tile, or the exact bytes.
        n_channels: channels of the tile, 0 for exact bytes; not stored.
    """

    kind: Ckg1Kind
    offset: int
    n_bytes: int
    n_tokens: int
    token_start: int
    total_tokens: int
    payload: bytes
    n_channels: int = 0


class Ckg1Part(NamedTuple):
    """What `encode_ckg1` lays into a page.

    Attributes:
        kind: how it lies there.
        values: float32 [n_tokens, n_channels], or the bytes of an exact part.
        bins: 16 or 32.
    """

    kind: Ckg1Kind
    values: NDArray[np.float32] | bytes
    bins: int = 32


# reading


def _check_record(record: Ckg1Record) -> Ckg1Record:
    """Check a record against its payload; returns it with its channels."""
    if record.n_bytes == 0:
        raise bad_archive("GEOMETRY", "it decodes to no bytes")
    if record.kind is Ckg1Kind.EXACT:
        if len(record.payload) != record.n_bytes:
            raise bad_archive("GEOMETRY", f"{len(record.payload)} exact bytes for {record.n_bytes}")
        return record
    tile = read_tile_header(record.payload)
    type_ = _TYPES[record.kind]
    if record.n_tokens != tile.n_tokens:
        raise bad_archive("GEOMETRY", f"{record.n_tokens} tokens, its tile has {tile.n_tokens}")
    if tile.n_channels % type_.block_size:
        raise bad_archive("GEOMETRY", f"{tile.n_channels} channels in blocks of {type_.block_size}")
    if record.n_bytes != tile.n_tokens * type_.row_bytes(tile.n_channels):
        raise bad_archive(
            "GEOMETRY",
            f"{record.n_bytes} bytes for {tile.n_tokens} x {tile.n_channels} values of type {type_.type_name}",
        )
    is_unset = not record.kind.is_transposed and record.token_start == record.total_tokens == 0
    if not is_unset and record.token_start + record.n_tokens > record.total_tokens:
        raise bad_archive(
            "GEOMETRY", f"{record.n_tokens} tokens from {record.token_start} on, of {record.total_tokens}"
        )
    return record._replace(n_channels=tile.n_channels)


def _slab_bytes(tiles: list[Ckg1Record]) -> int:
    """Size of a slab of transposed tiles, which have to cover its tokens."""
    first = tiles[0]
    end = 0
    for tile in sorted(tiles, key=lambda record: record.token_start):
        if (tile.kind, tile.total_tokens, tile.n_channels) != (first.kind, first.total_tokens, first.n_channels):
            raise bad_archive("COVERAGE", f"the slab at offset {first.offset} has tiles of different shapes")
        if tile.token_start != end:
            raise bad_archive(
                "COVERAGE",
                f"the slab at offset {first.offset} has a gap or an overlap at token {min(tile.token_start, end)}",
            )
        end += tile.n_tokens
    if end != first.total_tokens:
        raise bad_archive("COVERAGE", f"the slab at offset {first.offset} ends at token {end} of {first.total_tokens}")
    return end * first.n_channels * _element_bytes(first.kind)


def _check_coverage(records: list[Ckg1Record], page_bytes: int) -> None:
    ranges = [(record.offset, record.n_bytes) for record in records if not record.kind.is_transposed]
    slabs: dict[int, list[Ckg1Record]] = {}
    for record in records:
        if record.kind.is_transposed:
            slabs.setdefault(record.offset, []).append(record)
    ranges += [(offset, _slab_bytes(tiles)) for offset, tiles in slabs.items()]
    end = 0
    for offset, n_bytes in sorted(ranges):
        if offset != end:
            what = "a gap" if offset > end else "an overlap"
            raise bad_archive("COVERAGE", f"the page has {what} at byte {min(offset, end)}")
        end += n_bytes
    if end != page_bytes:
        raise bad_archive("COVERAGE", f"the records cover {end} bytes of a page of {page_bytes}")


def _parse(data: bytes) -> tuple[int, list[Ckg1Record]]:
    """The size of the page and its records, checked."""
    if len(data) >= 4 and data[:4] != _MAGIC:
        raise bad_archive("MAGIC", "not a CKG1 archive")
    if len(data) < _HEADER.size:
        raise bad_archive("TRUNCATED", f"{len(data)} bytes; the header alone has {_HEADER.size}")
    _, page_bytes, n_records = _HEADER.unpack_from(data)
    if page_bytes == 0 or n_records == 0:
        raise bad_archive("GEOMETRY", f"a page of {page_bytes} bytes in {n_records} records")
    if n_records * _RECORD.size > len(data) - _HEADER.size:
        raise bad_archive("TRUNCATED", f"{n_records} records do not fit into {len(data)} bytes")
    records = []
    at = _HEADER.size
    for index in range(n_records):
        if len(data) - at < _RECORD.size:
            raise bad_archive("TRUNCATED", f"record {index}: its header begins at {at} of {len(data)} bytes")
        kind, element, reserved, offset, n_bytes, n_tokens, start, total, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if kind not in Ckg1Kind.__members__.values():
            raise bad_archive("GEOMETRY", f"record {index}: kind {kind}; 0 to 6 are possible")
        if element != _element_bytes(Ckg1Kind(kind)):
            raise bad_archive("GEOMETRY", f"record {index}: elements of {element} bytes for kind {kind}")
        if reserved:
            raise bad_archive("RESERVED", f"record {index}: reserved bytes are not zero")
        if size > len(data) - at:
            raise bad_archive("TRUNCATED", f"record {index}: {size} bytes from {at} on, of {len(data)}")
        record = Ckg1Record(Ckg1Kind(kind), offset, n_bytes, n_tokens, start, total, data[at : at + size])
        at += size
        try:
            records.append(_check_record(record))
        except ArchiveError as error:
            raise ArchiveError(error.status, error.status_name, f"record {index}: {error.detail}") from None
    if at != len(data):
        raise bad_archive("TRAILING", f"the records end at {at} of {len(data)} bytes")
    _check_coverage(records, page_bytes)
    return page_bytes, records


def read_ckg1(data: bytes) -> list[Ckg1Record]:
    """The records of an archive, in its order. The headers of their tiles are checked, not what follows those.

    Raises:
        ArchiveError: ERR_TRUNCATED, ERR_TRAILING, ERR_MAGIC, ERR_RESERVED, ERR_GEOMETRY, ERR_COVERAGE, ERR_LIMIT.
    """
    return _parse(bytes(data))[1]


def decode_ckg1(data: bytes) -> bytes:
    """The page of an archive.

    Raises:
        ArchiveError: see `read_ckg1` and `tiles.decode_tile`.
    """
    page_bytes, records = _parse(bytes(data))
    page = np.zeros(page_bytes, dtype=np.uint8)
    for index, record in enumerate(records):
        if record.kind is Ckg1Kind.EXACT:
            page[record.offset : record.offset + record.n_bytes] = np.frombuffer(record.payload, np.uint8)
            continue
        try:
            values = decode_tile(record.payload).astype(np.float32)
        except ArchiveError as error:
            raise ArchiveError(error.status, error.status_name, f"record {index}: {error.detail}") from None
        type_ = _TYPES[record.kind]
        if record.kind.is_transposed:
            shape = (record.n_channels, record.total_tokens, type_.block_bytes)
            slab = page[record.offset :][: shape[0] * shape[1] * shape[2]].reshape(shape)
            rows = store_rows(values.T, type_).reshape(record.n_channels, record.n_tokens, type_.block_bytes)
            slab[:, record.token_start : record.token_start + record.n_tokens] = rows
        else:
            page[record.offset : record.offset + record.n_bytes] = store_rows(values, type_).ravel()
    return page.tobytes()


# writing


def write_ckg1(page_bytes: int, records: Sequence[Ckg1Record]) -> bytes:
    """The bytes of an archive of these records. Checks nothing."""
    out = [_HEADER.pack(_MAGIC, page_bytes, len(records))]
    for kind, offset, n_bytes, n_tokens, start, total, payload, _ in records:
        out.append(_RECORD.pack(kind, _element_bytes(kind), 0, offset, n_bytes, n_tokens, start, total, len(payload)))
        out.append(payload)
    return b"".join(out)


def encode_ckg1(parts: Sequence[Ckg1Part], *, version: int = 2, tile_tokens: int = MAX_TILE_TOKENS) -> bytes:
    """Encode a page that holds parts one after another.

    Args:
        parts: values or bytes; none empty.
        version: of the tiles, 1 or 2.
        tile_tokens: tokens of a tile, 1 to 256.

    Raises:
        EncodeError: see `tiles.encode_tile`; a part whose values do not fit its kind (ERR_ARGUMENT).
    """
    records: list[Ckg1Record] = []
    offset = 0
    for kind, values, bins in parts:
        if isinstance(values, bytes):
            if kind is not Ckg1Kind.EXACT:
                raise cannot_encode("ARGUMENT", f"bytes in a part of kind {kind.name}")
            records.append(Ckg1Record(kind, offset, len(values), 0, 0, 0, values))
            offset += len(values)
            continue
        if kind is Ckg1Kind.EXACT or values.shape[1] % _TYPES[kind].block_size:
            raise cannot_encode("ARGUMENT", f"values of shape {list(values.shape)} in a part of kind {kind.name}")
        row_bytes = _TYPES[kind].row_bytes(values.shape[1])
        for start in range(0, len(values), tile_tokens):
            rows = values[start : start + tile_tokens]
            place = offset if kind.is_transposed else offset + start * row_bytes
            tile = encode_tile(rows, bins, version)
            records.append(
                Ckg1Record(kind, place, len(rows) * row_bytes, len(rows), start, len(values), tile, rows.shape[1])
            )
        offset += len(values) * row_bytes
    return write_ckg1(offset, records)
