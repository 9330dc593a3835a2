"""Is a file sound? As far as its format can tell."""

from __future__ import annotations

import os

import numpy as np

from .archive_file import ArchiveFile
from .codec import Archive, Plane
from .codec.reference.ckg1 import decode_ckg1, read_ckg1
from .codec.reference.lmcache import decode_symbols, payload_from_container
from .codec.reference.tiles import decode_tile, read_tile_header
from .file_kinds import FileKind, kind_of, naming, read_file
from .page import Page

__all__ = ["check_file", "decode_to_scratch"]

MAX_SCRATCH_BYTES = 1 << 28
"""Planes are decoded together as long as one block of them fits; one plane may take more."""


def check_file(path: str | os.PathLike[str], *, decode: bool = False, n_threads: int = 1) -> str:
    """Check a file.

    Args:
        path: a file of any known format.
        decode: also decode everything and throw it away.
        n_threads: threads to use for LCG3.

    Returns:
        what was checked.

    Raises:
        UnknownFileError: not a file of a known format.
        PageFileError, CodecError: it is damaged; the message names the file.
        OSError: the system refuses, or there is no such file.
        MemoryError: it decodes to more than there is room for.
    """
    kind = kind_of(path)
    if kind is FileKind.PAGE:
        with Page.open(path, verify=True):
            return "every digest"
    if kind is FileKind.ARCHIVE_PAGE:
        with ArchiveFile(path) as file, naming(path), Archive(file.archive) as archive:
            file.check_archive(archive)
            return _check_lcg3(archive, decode, n_threads)
    data = read_file(path)
    with naming(path):
        return _check_archive(kind, data, decode, n_threads)


def _check_archive(kind: FileKind, data: bytes, decode: bool, n_threads: int) -> str:
    if kind is FileKind.LCG3:
        with Archive(data) as archive:
            return _check_lcg3(archive, decode, n_threads)
    if kind is FileKind.CKG1:
        if not decode:
            read_ckg1(data)
            return "structure and coverage; the format has no digests"
        decode_ckg1(data)
        return "structure and coverage, every record decoded; the format has no digests"
    if kind is FileKind.LMCACHE:
        payload = payload_from_container(data)
        if not decode:
            return "structure and tables; the format has no digests"
        decode_symbols(payload)
        return "decoded and encoded again to the same bytes"
    if not decode:
        read_tile_header(data)
        return "structure; the format has no digests"
    decode_tile(data)
    return "structure, decoded; the format has no digests"


def _check_lcg3(archive: Archive, decode: bool, n_threads: int) -> str:
    archive.verify(n_threads=n_threads)
    if not decode:
        return "every digest"
    decode_to_scratch(archive, n_threads=n_threads)
    return "every digest, every block decoded"


def decode_to_scratch(archive: Archive, *, n_threads: int = 1) -> None:
    """Decode every token of every plane into memory that is used again for the next block.

    Raises:
        ArchiveError: the bytes are damaged or made to do harm.
        MemoryError: one block of one plane does not fit.
    """
    info, planes = archive.info, archive.planes
    ranges = [(0, info.n_exact_tokens)] if info.n_exact_tokens else []
    ranges += [
        (begin, min(info.block_tokens, info.n_tokens - begin))
        for begin in range(info.n_exact_tokens, info.n_tokens, info.block_tokens)
    ]
    most_tokens = max(n for _, n in ranges)
    row_bytes = [plane.type.row_bytes(plane.n_channels) for plane in planes]
    begin = 0
    while begin < len(planes):
        end, n_scratch = begin + 1, row_bytes[begin] * most_tokens
        while end < len(planes) and n_scratch + row_bytes[end] * most_tokens <= MAX_SCRATCH_BYTES:
            n_scratch += row_bytes[end] * most_tokens
            end += 1
        scratch = [np.empty((most_tokens, row_bytes[i]), dtype=np.uint8) for i in range(begin, end)]
        for first, n_tokens in ranges:
            destinations: list[Plane | None] = [None] * len(planes)
            for i in range(begin, end):
                plane = planes[i]
                rows = scratch[i - begin][:n_tokens]
                destinations[i] = Plane(rows, plane.type, plane.n_channels, n_rot=plane.n_rot)
            archive.decode(destinations, first_token=first, n_tokens=n_tokens, n_threads=n_threads)
        begin = end
