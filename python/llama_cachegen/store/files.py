"""Every file operation of a store, so that tests can record, cut off and fail each of them.

Names are relative to the store's root, with "/" between parts. Nothing follows a symbolic link at the end of a name,
and the root itself is held open, so that it stays the same directory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["FileEntry", "FileFacts", "Files", "LinkError"]

MAX_WRITE_BYTES = 1 << 26


class LinkError(OSError):
    """The name is that of a symbolic link, a directory or a device, where a regular file of the store should be."""


class FileFacts(NamedTuple):
    """size in bytes; mtime_ns since the epoch; inode."""

    size: int
    mtime_ns: int
    inode: int


class FileEntry(NamedTuple):
    """A name in a directory."""

    name: str
    is_file: bool
    is_dir: bool


class Files:
    """File operations below a directory.

    Raises, as every method: OSError of the system, with the name in `filename`.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the root. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # reading

    def open_read(self, name: str) -> int:
        """A descriptor of a regular file. Never waits, never follows a link at the end of the name."""
        try:
            fd = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=self._fd
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise LinkError(error.errno, "a link or a device, where a file should be", name) from None
            raise
        return fd

    def facts_of(self, fd: int) -> FileFacts:
        """Of an open file; a LinkError if it is no regular one."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise LinkError(errno.EINVAL, "no regular file, where one should be")
        return FileFacts(found.st_size, found.st_mtime_ns, found.st_ino)

    def read(self, fd: int, n_bytes: int, offset: int) -> bytes:
        """Up to n_bytes, fewer only at the end of the file."""
        data = os.pread(fd, n_bytes, offset)
        while data and len(data) < n_bytes:
            more = os.pread(fd, n_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def facts(self, name: str) -> FileFacts:
        """Of a file or directory; a link's own."""
        found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        return FileFacts(found.st_size, found.st_mtime_ns, found.st_ino)

    def list(self, name: str) -> list[FileEntry]:
        """What is in a directory, in the order of names."""
        fd = os.open(name or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            with os.scandir(fd) as found:
                entries = [
                    FileEntry(one.name, one.is_file(follow_symlinks=False), one.is_dir(follow_symlinks=False))
                    for one in found
                ]
        finally:
            os.close(fd)
        return sorted(entries)

    def will_need(self, fd: int, offset: int, n_bytes: int) -> None:
        """Ask the system to read these bytes of a file into memory, without waiting for it."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, offset, n_bytes, os.POSIX_FADV_WILLNEED)

    def free_bytes(self) -> int:
        """Bytes of the disk that an unprivileged process can still take."""
        found = os.fstatvfs(self._fd)
        return found.f_bavail * found.f_frsize

    # writing

    def make_dir(self, name: str) -> None:
        """Make a directory of mode 0700."""
        os.mkdir(name, 0o700, dir_fd=self._fd)

    def create(self, name: str) -> int:
        """A descriptor of a new file of mode 0600."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Append all of it."""
        rest = memoryview(data).cast("B")
        while rest:
            n = os.write(fd, rest[:MAX_WRITE_BYTES])
            if n <= 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            rest = rest[n:]

    def sync(self, fd: int) -> None:
        """Wait until a file's bytes are on the disk."""
        os.fsync(fd)

    def close_file(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, taking that name from the file that had it."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Take a name away. Who has the file open keeps its bytes."""
        os.unlink(name, dir_fd=self._fd)

    def sync_dir(self, name: str) -> None:
        """Wait until a directory's names are on the disk."""
        fd = os.open(name or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def touch(self, name: str, mtime_ns: int) -> None:
        """Set the times of a file."""
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=self._fd, follow_symlinks=False)

    # made of the above

    def publish(
        self, temporary: str, name: str, parts: Iterable[bytes | memoryview], *, mtime_ns: int | None = None
    ) -> int:
        """Write a file so that its name has the old content or the new one, whatever happens, and the new one lasts.

        Args:
            temporary: a name that is free, in the same file system.
            name: its name in the end.
            parts: its bytes.
            mtime_ns: its modification time, if not now.

        Returns:
            bytes written.
        """
        directory = name.rpartition("/")[0]
        fd = self.create(temporary)
        n_bytes = 0
        try:
            try:
                for part in parts:
                    self.write(fd, part)
                    n_bytes += memoryview(part).nbytes
                if mtime_ns is not None:
                    self.touch(temporary, mtime_ns)
                self.sync(fd)
            finally:
                self.close_file(fd)
            self.rename(temporary, name)
        except BaseException:
            try:
                self.remove(temporary)
            except OSError:
                pass  # it is removed when the store is opened next
            raise
        self.sync_dir(directory)
        return n_bytes
