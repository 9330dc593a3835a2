"""LCG1, LCG2 and CKG1: archives of another project, so that they can be restored here.

docs/formats/lcg1.md, lcg2.md and ckg1.md describe the bytes. Writing them is for tests and comparisons.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._lib import check, executor, ffi, lib, new_struct
from .archive import Plane

__all__ = [
    "Ckg1Archive",
    "Ckg1Kind",
    "Ckg1Part",
    "Ckg1Record",
    "TileInfo",
    "decode_tile",
    "describe_tile",
    "encode_ckg1",
    "encode_tile",
]

Buffer = bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True, slots=True)
class TileInfo:
    """The header of a tile.

    Attributes:
        version: 1 LCG1, 2 LCG2.
        n_bins: 16 or 32; there is one level less.
        n_tokens: 1 to 256.
        n_channels: values of a token.
        stream_bytes: bytes of its symbols.
    """

    version: int
    n_bins: int
    n_tokens: int
    n_channels: int
    stream_bytes: int


def describe_tile(data: Buffer) -> TileInfo:
    """Check the header of a tile against its size.

    Raises:
        ArchiveError: not a tile, or another size than its header gives.
    """
    info = new_struct("cachegen_tile_info")
    view = ffi.from_buffer(data)
    check(lib.cachegen_tile_describe(view, len(view), info))
    return TileInfo(info.version, info.n_bins, info.n_tokens, info.n_channels, info.stream_bytes)


def decode_tile(data: Buffer, destination: Plane, *, first_token: int = 0) -> None:
    """Decode a tile into an array. Every value is an F16 number first, then stored as the destination's type.

    Args:
        data: exactly one tile.
        destination: with as many channels; its data is written, from token first_token on.
        first_token: token of the destination that the tile's first one becomes.

    Raises:
        ArchiveError: damaged, or made to do harm; the destination may have been written in part.
        UnsupportedArchiveError: another number of channels, or the tile's tokens do not fit.
    """
    rows = ffi.new("struct cachegen_rows *")
    destination._fill(rows, is_written=True)
    view = ffi.from_buffer(data)
    check(lib.cachegen_tile_decode(view, len(view), rows, first_token))


def encode_tile(
    source: Plane, n_bins: int, version: int, *, first_token: int = 0, n_tokens: int | None = None
) -> bytes:
    """Encode up to 256 tokens as a tile.

    Args:
        source: the values.
        n_bins: 16 or 32.
        version: 1 for LCG1, 2 for LCG2.
        first_token: first token of the source to encode.
        n_tokens: how many; None: to the end.

    Raises:
        EncodeError: a value that F16 cannot hold.
        CodecError: anything else that the library refuses.
    """
    rows = ffi.new("struct cachegen_rows *")
    source._fill(rows, is_written=False)
    if n_tokens is None:
        n_tokens = max(0, rows.n_tokens - first_token)
    tile = ffi.new("void **")
    n_bytes = ffi.new("uint64_t *")
    check(lib.cachegen_tile_encode(rows, first_token, n_tokens, n_bins, version, tile, n_bytes))
    return _take(tile, n_bytes)


def _take(result: Any, n_bytes: Any) -> bytes:
    try:
        return bytes(ffi.buffer(result[0], n_bytes[0]))
    finally:
        lib.cachegen_free(result[0])


class Ckg1Kind(enum.IntEnum):
    """How the values of a record lie in the page."""

    F16_ROWS = 0
    EXACT = 1
    F16_TRANSPOSED = 2
    F32_ROWS = 3
    F32_TRANSPOSED = 4
    Q8_0_ROWS = 5
    Q4_0_ROWS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Ckg1Record:
    """One record of an archive.

    Attributes:
        kind: how its values lie in the page.
        tile_version: 1 LCG1, 2 LCG2, 0 for exact bytes.
        n_bins: of its tile, 0 for exact bytes.
        n_channels: of its tile, 0 for exact bytes.
        output_offset: in the page: of its first byte, or of the whole slab if it is transposed.
        decoded_bytes: what it decodes to.
        n_tokens: tokens of its tile.
        token_start: transposed: its first token in the slab.
        total_tokens: transposed: tokens of the slab.
        payload_offset: in the archive.
        payload_bytes: of the tile, or the exact bytes.
    """

    kind: Ckg1Kind
    tile_version: int
    n_bins: int
    n_channels: int
    output_offset: int
    decoded_bytes: int
    n_tokens: int
    token_start: int
    total_tokens: int
    payload_offset: int
    payload_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Ckg1Part:
    """What `encode_ckg1` lays into a page.

    Attributes:
        kind: how it lies there.
        content: a plane of the kind's type and layout, or the bytes of an exact part.
        n_bins: 16 or 32; not used for exact bytes.
    """

    kind: Ckg1Kind
    content: Plane | bytes
    n_bins: int = 32


class Ckg1Archive:
    """A CKG1 archive, opened: all headers and the coverage of the page have been checked. A context manager.

    Args:
        data: the bytes of exactly one archive; kept, never copied, and not to be changed while this is open.

    Raises:
        ArchiveError: damaged, cut short, or made to do harm.
    """

    def __init__(self, data: Buffer) -> None:
        self._reader: Any = None
        self._data = ffi.from_buffer(data)
        reader = ffi.new("struct cachegen_ckg1 **")
        check(lib.cachegen_ckg1_open(self._data, len(self._data), reader))
        self._reader = reader[0]
        page_bytes = ffi.new("uint64_t *")
        n_records = ffi.new("uint64_t *")
        check(lib.cachegen_ckg1_describe(self._reader, page_bytes, n_records, ffi.NULL, 0))
        self.page_bytes = int(page_bytes[0])
        """Size of the decoded page."""
        self.n_records = int(n_records[0])

    def _open_reader(self) -> Any:
        if self._reader is None:
            raise ValueError("the archive is closed")
        return self._reader

    @property
    def records(self) -> tuple[Ckg1Record, ...]:
        """Every record, in the archive's order."""
        reader = self._open_reader()
        sizes = ffi.new("uint64_t[2]")
        records = ffi.new("struct cachegen_ckg1_record[]", self.n_records)
        check(lib.cachegen_ckg1_describe(reader, sizes, sizes + 1, records, self.n_records))
        names = [field.name for field in dataclasses.fields(Ckg1Record)][1:]
        return tuple(Ckg1Record(Ckg1Kind(r.kind), *(int(getattr(r, name)) for name in names)) for r in records)

    def decode(self, *, n_threads: int = 1) -> NDArray[np.uint8]:
        """The whole page: uint8 [page_bytes].

        Raises:
            ArchiveError: a tile is damaged.
        """
        page = np.zeros(self.page_bytes, dtype=np.uint8)
        self.decode_into(page, n_threads=n_threads)
        return page

    def decode_into(self, page: NDArray[np.uint8], *, n_threads: int = 1) -> None:
        """The whole page into an array: uint8 [page_bytes], contiguous.

        Raises:
            ArchiveError: a tile is damaged; the array may have been written in part.
            CodecError: the array has another size.
        """
        reader = self._open_reader()
        with executor(n_threads) as pool:
            check(lib.cachegen_ckg1_decode(reader, ffi.from_buffer(page, require_writable=True), page.nbytes, pool))

    def close(self) -> None:
        """Release the reader. A second call does nothing."""
        reader, self._reader = self._reader, None
        if reader is not None:
            lib.cachegen_ckg1_close(reader)
            ffi.release(self._data)

    def __enter__(self) -> Ckg1Archive:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.close()


def encode_ckg1(parts: Sequence[Ckg1Part], *, version: int = 2, n_threads: int = 1) -> bytes:
    """Encode a page that holds the parts one after another, in tiles of up to 256 tokens.

    Args:
        parts: at least one, none empty.
        version: of the tiles, 1 or 2.
        n_threads: threads to use.

    Raises:
        EncodeError: a value that F16 cannot hold.
        CodecError: anything else that the library refuses.
    """
    described = ffi.new("struct cachegen_ckg1_part[]", len(parts))
    keep_alive = []
    for part, record in zip(parts, described, strict=True):
        record.kind = int(part.kind)
        record.n_bins = part.n_bins
        if isinstance(part.content, Plane):
            part.content._fill(record.rows, is_written=False)
        else:
            view = ffi.from_buffer(part.content)
            keep_alive.append(view)
            record.rows.data = ffi.cast("void *", view)
            record.rows.n_bytes = len(view)
    archive = ffi.new("void **")
    n_bytes = ffi.new("uint64_t *")
    with executor(n_threads) as pool:
        check(lib.cachegen_ckg1_encode(described, len(parts), version, pool, archive, n_bytes))
    return _take(archive, n_bytes)
