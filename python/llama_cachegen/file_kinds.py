"""Which format a file has, by its first bytes."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
from collections.abc import Iterator

from .archive_file import ARCHIVE_MAGIC
from .codec.errors import CodecError
from .errors import UnknownFileError
from .page_file import MAGIC as PAGE_MAGIC

__all__ = ["FileKind", "kind_of", "kind_of_bytes", "naming", "read_file"]

HEAD_BYTES = 16


class FileKind(enum.Enum):
    """A format that this package reads. The value is its short name."""

    PAGE = "page"
    ARCHIVE_PAGE = "archive-page"
    LCG3 = "lcg3"
    CKG1 = "ckg1"
    LCG2 = "lcg2"
    LCG1 = "lcg1"
    LMCACHE = "lmcache"

    @property
    def title(self) -> str:
        """What to call such a file."""
        return _TITLES[self]


_TITLES = {
    FileKind.PAGE: "page file",
    FileKind.ARCHIVE_PAGE: "archive page file",
    FileKind.LCG3: "LCG3 archive",
    FileKind.CKG1: "CKG1 archive",
    FileKind.LCG2: "LCG2 segment",
    FileKind.LCG1: "LCG1 segment",
    FileKind.LMCACHE: "LMCache container",
}
_MAGICS = {b"LCG3": FileKind.LCG3, b"CKG1": FileKind.CKG1, b"LCG2": FileKind.LCG2, b"LCG1": FileKind.LCG1}
_PICKLE = 0x80
_PICKLE_PROTOCOLS = range(2, 6)


def kind_of_bytes(head: bytes) -> FileKind | None:
    """The format of a file that begins with these bytes, None if it is none of ours.

    A pickle of any protocol counts as LMCache's container, whose reader says what is wrong with others. A beginning of
    a page file's magic, or of an archive page file's, counts as such a file cut short.
    """
    for magic, kind in ((PAGE_MAGIC, FileKind.PAGE), (ARCHIVE_MAGIC, FileKind.ARCHIVE_PAGE)):
        if head and head[: len(magic)] == magic[: len(head)]:
            return kind
    if len(head) >= 2 and head[0] == _PICKLE and head[1] in _PICKLE_PROTOCOLS:
        return FileKind.LMCACHE
    return _MAGICS.get(head[:4])


def _what(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "not a regular file"


def _open_regular(path: str) -> int:
    """Open for reading without ever waiting for another process."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise UnknownFileError(f"{path} is not a regular file") from None
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise UnknownFileError(f"{path} is {_what(mode)}; a file is needed")
    return fd


def kind_of(path: str | os.PathLike[str]) -> FileKind:
    """The format of a file.

    Raises:
        UnknownFileError: it is empty, not a regular file, or begins with bytes of no known format.
        OSError: the system refuses, or there is no such file.
    """
    name = os.fsdecode(path)
    fd = _open_regular(name)
    try:
        head = os.pread(fd, HEAD_BYTES, 0)
    finally:
        os.close(fd)
    if not head:
        raise UnknownFileError(f"{name} is empty")
    kind = kind_of_bytes(head)
    if kind is None:
        known = ", ".join(member.title for member in FileKind)
        raise UnknownFileError(f"{name} begins with {head.hex(' ')}, which is none of: {known}")
    return kind


def read_file(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file.

    Raises:
        UnknownFileError: it is not a regular file.
        OSError: the system refuses, or there is no such file.
    """
    with open(_open_regular(os.fsdecode(path)), "rb") as file:
        return file.read()


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before messages of the codec, which knows bytes only."""
    try:
        yield
    except CodecError as error:
        raise type(error)(error.status, error.status_name, f"{os.fsdecode(path)}: {error.detail}") from error
