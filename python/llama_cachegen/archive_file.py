"""The archive page file: an LCG3 archive with the identity, positions and tokens of its page.

The format is described in docs/formats/archive-page.md.
"""

from __future__ import annotations

import mmap
import os
import struct
from types import TracebackType

import blake3
import numpy as np
from numpy.typing import NDArray

from .errors import PageFileCorruptError, PageFileTruncatedError, PageFileVersionError
from .page_file import check_positions, naming_corrupt, open_regular, read_at
from .page_identity import ARCHIVE_FORMAT, MAX_IDENTITY_BYTES, PageIdentity, decode_identity, encode_identity

__all__ = ["ARCHIVE_MAGIC", "ArchiveFile", "archive_offset_of", "encode_archive_prefix"]

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
    """Everything of the file before the archive: header, identity, tokens, padding."""
    identity_json = encode_identity(identity)
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


def _digest(header: bytes, rest: bytes) -> bytes:
    hasher = blake3.blake3(header[: HEADER.size - _DIGEST_BYTES] + bytes(_DIGEST_BYTES))
    hasher.update(rest)
    return hasher.digest()


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
        finally:
            os.close(fd)
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
    def n_tokens(self) -> int:
        """Tokens of the page."""
        return len(self.tokens)

    def close(self) -> None:
        """Release the mapping. A second call does nothing."""
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.release()
            self._mapping.close()

    def __enter__(self) -> ArchiveFile:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
