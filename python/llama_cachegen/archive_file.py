"""The archive page file: an LCG3 archive with the identity, positions and tokens of its page.

The format is described in docs/formats/archive-page.md.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

import blake3
import numpy as np
from numpy.typing import NDArray

from .errors import PageFileCorruptError, PageFileTruncatedError, PageFileVersionError
from .page_file import (
    PageWriteStats,
    check_positions,
    naming_corrupt,
    open_regular,
    read_at,
    write_page_file,
)
from .page_identity import ARCHIVE_FORMAT, MAX_IDENTITY_BYTES, PageIdentity, decode_identity, encode_identity

if TYPE_CHECKING:
    from .codec import Archive

__all__ = ["ARCHIVE_MAGIC", "ArchiveFile", "archive_offset_of", "encode_archive_prefix", "write_archive_file"]

ARCHIVE_MAGIC = b"\x89LKA\r\n\x1a\n"
FORMAT_VERSION = 1
HEADER = struct.Struct("<8sHHIQQQQiII36s32s")
_RESERVED = bytes(36)
_DIGEST_BYTES = 32
_ALIGNMENT = 4096
_FLAG_EXACT = 1


def _align(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment


def archive_offset_of(identity_bytes: int, n_tokens: int) -> int:
    """Where the archive begins in the file."""
    return _align(_align(HEADER.size + identity_bytes, 8) + 4 * n_tokens, _ALIGNMENT)


def encode_archive_prefix(
    identity: PageIdentity, pos_begin: int, tokens: NDArray[np.int32], *, is_exact: bool, archive_bytes: int
) -> bytes:
    """Everything of the file before the archive: header, identity, tokens, padding.

    Raises:
        ValueError: the identity is not of format "lcg3/1" or too long, the positions are not possible, or the archive
            has no bytes.
    """
    check_positions(pos_begin, len(tokens))
    if archive_bytes < 1:
        raise ValueError("an archive without bytes is not possible")
    identity_json = encode_identity(identity, ARCHIVE_FORMAT)
    offset = archive_offset_of(len(identity_json), len(tokens))
    rest = identity_json.ljust(_align(HEADER.size + len(identity_json), 8) - HEADER.size, b"\0")
    rest = (rest + tokens.astype("<i4").tobytes()).ljust(offset - HEADER.size, b"\0")
    fields = (
        ARCHIVE_MAGIC,
        FORMAT_VERSION,
        identity.abi_version,
        HEADER.size,
        offset + archive_bytes,
        len(identity_json),
        offset,
        archive_bytes,
        pos_begin,
        len(tokens),
        _FLAG_EXACT if is_exact else 0,
        _RESERVED,
    )
    return HEADER.pack(*fields, _digest(HEADER.pack(*fields, bytes(_DIGEST_BYTES)), rest)) + rest


def write_archive_file(
    path: str | os.PathLike[str],
    archive: bytes | memoryview,
    *,
    identity: PageIdentity,
    pos_begin: int,
    tokens: NDArray[np.int32],
    is_exact: bool,
) -> PageWriteStats:
    """Write an archive page file. An older file of that name is replaced once the new one is on the disk.

    Equal content gives equal bytes.

    Raises:
        ValueError: as `encode_archive_prefix`.
        PageFileNotRegularError: the name is that of a directory, a FIFO, a device or a socket.
        OSError: the file cannot be written; an older file is still there.
    """
    payload = memoryview(archive)
    prefix = encode_archive_prefix(identity, pos_begin, tokens, is_exact=is_exact, archive_bytes=payload.nbytes)
    return write_page_file(path, prefix, payload)


def _digest(header: bytes, rest: bytes) -> bytes:
    hasher = blake3.blake3(header[: HEADER.size - _DIGEST_BYTES] + bytes(_DIGEST_BYTES))
    hasher.update(rest)
    return hasher.digest()


def _read_forward(mapping: mmap.mmap) -> None:
    """Say that it will be read from front to back, so that the system reads ahead from the first fault on."""
    if hasattr(mmap, "MADV_SEQUENTIAL"):
        with contextlib.suppress(OSError):  # only advice
            mapping.madvise(mmap.MADV_SEQUENTIAL)


class ArchiveFile:
    """An archive page file, open. Everything before the archive has been checked. A context manager.

    Attributes:
        identity: what the values depend on besides the tokens; its format is "lcg3/1".
        pos_begin: position of the first token.
        tokens: int32 [n_tokens], read-only.
        is_exact: every bit of the cache comes back.
        n_file_bytes: size of the file.

    Raises:
        PageFileMissingError, PageFileNotRegularError, PageFileTruncatedError, PageFileCorruptError,
        PageFileVersionError: this can be no archive page file.
        OSError: the system refuses.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = os.fsdecode(path)
        self._path = name
        fd = open_regular(name)
        try:
            self.n_file_bytes = os.fstat(fd).st_size
            header = read_at(fd, name, 0, min(HEADER.size, self.n_file_bytes))
            offset, identity_bytes, abi_version, n_tokens, flags = self._check_header(name, header)
            rest = read_at(fd, name, HEADER.size, offset - HEADER.size)
            with naming_corrupt(name):
                if _digest(header, rest) != header[-_DIGEST_BYTES:]:
                    raise ValueError("header, identity or tokens do not match their digest; bytes are damaged")
                tokens_at = _align(HEADER.size + identity_bytes, 8) - HEADER.size
                tokens_end = tokens_at + 4 * n_tokens
                if any(rest[identity_bytes:tokens_at]) or any(rest[tokens_end:]):
                    raise ValueError("padding is not zero")
                self.identity = decode_identity(rest[:identity_bytes], ARCHIVE_FORMAT)
                if self.identity.abi_version != abi_version:
                    raise ValueError(f"the header says ABI {abi_version}, the identity {self.identity.abi_version}")
                self.tokens = np.frombuffer(rest[tokens_at:tokens_end], dtype="<i4").astype(np.int32)
                self.tokens.setflags(write=False)
                self.is_exact = bool(flags & _FLAG_EXACT)
            try:
                self._mapping = mmap.mmap(fd, self.n_file_bytes, access=mmap.ACCESS_READ)
            except ValueError:
                raise PageFileTruncatedError(f"{name} became shorter while it was read") from None
            _read_forward(self._mapping)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._close_fd = weakref.finalize(self, os.close, fd)
        self._archive_offset = offset
        self._archive: memoryview | None = memoryview(self._mapping)[offset:]

    def _check_header(self, path: str, header: bytes) -> tuple[int, int, int, int, int]:
        if header[: len(ARCHIVE_MAGIC)] != ARCHIVE_MAGIC[: len(header)]:
            raise PageFileCorruptError(f"{path} is not an archive page file: it begins with other bytes")
        if len(header) < HEADER.size:
            raise PageFileTruncatedError(f"{path} has {len(header)} bytes; the header alone takes {HEADER.size}")
        (
            _,
            format_version,
            abi_version,
            header_bytes,
            file_bytes,
            identity_bytes,
            offset,
            archive_bytes,
            self.pos_begin,
            n_tokens,
            flags,
            reserved,
            _,
        ) = HEADER.unpack(header)
        if format_version != FORMAT_VERSION:
            raise PageFileVersionError(
                f"{path} has format version {format_version}; this version reads {FORMAT_VERSION}"
            )
        if file_bytes != self.n_file_bytes:
            raise PageFileTruncatedError(f"{path} has {self.n_file_bytes} bytes, its header says {file_bytes}")
        with naming_corrupt(path):
            if header_bytes != HEADER.size or reserved != _RESERVED or flags & ~_FLAG_EXACT:
                raise ValueError("the header's size, flags or reserved bytes are not those of this format version")
            if not 1 <= identity_bytes <= MAX_IDENTITY_BYTES:
                raise ValueError(f"an identity of {identity_bytes} bytes is not possible")
            check_positions(self.pos_begin, n_tokens)
            if archive_bytes == 0:
                raise ValueError("an archive without bytes is not possible")
            if offset != archive_offset_of(identity_bytes, n_tokens) or offset + archive_bytes != file_bytes:
                raise ValueError("the sections are not where their sizes put them")
        return offset, identity_bytes, abi_version, n_tokens, flags

    @property
    def archive(self) -> memoryview:
        """The LCG3 archive.

        Raises:
            ValueError: the file is closed.
        """
        if self._archive is None:
            raise ValueError("the archive page file is closed")
        return self._archive

    @property
    def place(self) -> tuple[int, int]:
        """A descriptor of the file, open until `close`, and the archive's offset in it.

        Raises:
            ValueError: the file is closed.
        """
        if self._archive is None:
            raise ValueError("the archive page file is closed")
        return self._fd, self._archive_offset

    @property
    def n_tokens(self) -> int:
        """Tokens of the page."""
        return len(self.tokens)

    def check_archive(self, archive: Archive) -> None:
        """Compare what the header says of the archive with the archive itself.

        Args:
            archive: the one in this file, opened.

        Raises:
            PageFileCorruptError: it has other tokens, or is lossy in a file that says it is not, or the reverse.
            CodecError: as `Archive.planes`.
        """
        from .codec import Mode

        with naming_corrupt(self._path):
            if archive.info.n_tokens != self.n_tokens:
                raise ValueError(f"the header says {self.n_tokens} tokens, the archive has {archive.info.n_tokens}")
            is_exact = all(plane.mode is not Mode.LOSSY for plane in archive.planes)
            if is_exact != self.is_exact:
                words = {True: "lossless", False: "lossy"}
                raise ValueError(f"the header says {words[self.is_exact]}, the archive is {words[is_exact]}")

    def close(self) -> None:
        """Give the mapping back, now or with the last view of the archive. A second call does nothing."""
        archive, self._archive = self._archive, None
        self._close_fd()
        if archive is not None:
            with contextlib.suppress(BufferError):
                archive.release()
            with contextlib.suppress(BufferError):
                self._mapping.close()

    def __enter__(self) -> ArchiveFile:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
