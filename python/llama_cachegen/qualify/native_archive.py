"""The control where native pages are refused: the same bytes as planes of an archive, taken through the same import.

A device's memory has no native pages, but an archive can hold rows as they are. They come out of an exact archive that
is decoded on the processor: that is no way to save, and is not timed as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..archive_file import ArchiveFile, write_archive_file
from ..codec import Archive, Kind, Plane, encode
from ..codec.profiles import EXACT, Profile
from ..session import Session

__all__ = ["NativeSize", "native_archive_planes", "native_size", "save_native_archive"]

_LEAST_BLOCK_TOKENS = 32
_MOST_PART_BYTES = 16 << 20  # of a block of all planes, which the import stages as a whole


class NativeSize(NamedTuple):
    """Of the planes of an archive: bytes of their rows, and K and V values."""

    n_bytes: int
    n_values: int


def _decoded(archive: Archive, n_threads: int) -> list[Plane]:
    """All planes in new arrays, in the types they were saved from."""
    n_tokens = archive.info.n_tokens
    planes = [
        Plane(
            np.empty((n_tokens - one.first_token, one.type.row_bytes(one.n_channels)), dtype=np.uint8),
            one.type,
            one.n_channels,
            layer=one.layer,
            kind=one.kind,
            n_rot=one.n_rot,
            first_token=one.first_token,
        )
        for one in archive.planes
    ]
    archive.decode(planes, n_threads=n_threads)
    return planes


def _block_tokens(n_bytes: int, n_tokens: int) -> int:
    """As many tokens as a profile's blocks have, or fewer where these would be too large to stage."""
    n_block = EXACT.block_tokens
    while n_block > _LEAST_BLOCK_TOKENS and n_block * n_bytes > _MOST_PART_BYTES * n_tokens:
        n_block //= 2
    return n_block


def save_native_archive(session: Session, path: Path) -> None:
    """Write a session's sequence as an archive page file whose planes are all native rows.

    Raises:
        UnsupportedMemoryError: this memory has no archives either.
        OSError: the file cannot be written.
    """
    exact = path.with_name(f"{path.name}.exact")
    n_threads = session.engine.n_threads
    try:
        session.save(exact, EXACT)
        with contextlib.closing(ArchiveFile(exact)) as file, Archive(file.archive) as archive:
            planes = _decoded(archive, n_threads)
            n_bytes = sum(plane.data.nbytes for plane in planes)
            profile = Profile(name="native", key=(), value=(), block_tokens=_block_tokens(n_bytes, file.n_tokens))
            write_archive_file(
                path,
                encode(planes, profile, n_threads=n_threads, is_raw=True),
                identity=file.identity,
                pos_begin=0,
                tokens=file.tokens,
                is_exact=True,
            )
    finally:
        exact.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Archive]:
    with contextlib.closing(ArchiveFile(path)) as file, Archive(file.archive) as archive:
        yield archive


def native_archive_planes(path: Path) -> list[Plane]:
    """The planes of such a file, in memory."""
    with _opened(path) as archive:
        return _decoded(archive, 1)


def native_size(path: Path) -> NativeSize:
    """Of such a file, without the padding and tables around its rows."""
    n_bytes = n_values = 0
    with _opened(path) as archive:
        for plane in archive.planes:
            n_rows = archive.info.n_tokens - plane.first_token
            n_bytes += n_rows * plane.type.row_bytes(plane.n_channels)
            n_values += 0 if plane.kind is Kind.AUX else n_rows * plane.n_channels
    return NativeSize(n_bytes, n_values)
