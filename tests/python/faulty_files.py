"""File layers that go wrong on purpose: one that records all that is done, so that the disk after a crash at any point
can be made, and one that fails the Nth operation."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llama_cachegen.store.files import FileEntry, Files
from llama_cachegen.store.index import INDEX_NAME

DATA_MODES = ("written", "dropped", "torn", "garbage")
INDEX_MODES = ("kept", "old", "torn", "garbage", "missing")
MAX_SUBSETS = 4


class QuietFiles(Files):
    """Waits for no disk: for looking at what a crash left."""

    def sync(self, fd: int) -> None:
        pass

    def sync_dir(self, name: str) -> None:
        pass


# crashes


@dataclasses.dataclass
class Operation:
    """One change of the disk, or a note of the test.

    Attributes:
        kind: "make_dir", "create", "write", "sync", "rename", "remove", "sync_dir" or "note".
        name, new: as given; `new` of a rename.
        inode: number of the file concerned.
        data: of a write, or of a note.
        index: bytes of the index file just before.
    """

    kind: str
    name: str = ""
    new: str = ""
    inode: int = -1
    data: Any = None
    index: bytes | None = None


class Disk:
    """What was done to a directory, from a state that is all on the disk on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.skipped: tuple[str, int] | None = None
        self.dirs: set[str] = set()
        self.names: dict[str, int] = {}
        self.bytes: dict[int, bytes] = {}
        for path in sorted(root.rglob("*")) if root.exists() else ():
            name = str(path.relative_to(root))
            if path.is_dir():
                self.dirs.add(name)
            elif not name.startswith(INDEX_NAME) and name != ".lock":
                self.names[name] = path.stat().st_ino
                self.bytes[path.stat().st_ino] = path.read_bytes()
        self.first_index = self._index()

    def _index(self) -> bytes | None:
        path = self.root / INDEX_NAME
        return path.read_bytes() if path.exists() else None

    def log(self, kind: str, **values: Any) -> None:
        self.operations.append(Operation(kind, index=self._index(), **values))

    def note(self, data: Any) -> None:
        """Something that the test wants to know when it looks at a crash."""
        self.log("note", data=data)

    def files(self, root: str) -> Files:
        """A file layer that records here."""
        return _RecordingFiles(root, self)

    def states(self) -> Iterator[tuple[int, str, State]]:
        """Every disk that a crash can leave: (operations done, a name for people, the disk). Equal ones come once."""
        seen = set()
        for n_done in range(len(self.operations) + 1):
            if n_done < len(self.operations) and self.operations[n_done].kind == "note":
                continue  # the crash after it is the same with more to be demanded
            for name, state in self._crashes(n_done):
                notes = sum(one.kind == "note" for one in self.operations[:n_done])
                fingerprint = (notes, state.fingerprint())
                if fingerprint not in seen:
                    seen.add(fingerprint)
                    yield n_done, name, state

    def _crashes(self, n_done: int) -> Iterator[tuple[str, State]]:
        names, dirs = dict(self.names), set(self.dirs)
        durable = dict(self.bytes)
        pending_bytes: dict[int, bytes] = {}
        pending: list[Operation] = []
        for one in self.operations[:n_done]:
            if one.kind == "write":
                pending_bytes[one.inode] = pending_bytes.get(one.inode, durable.get(one.inode, b"")) + one.data
            elif one.kind == "sync":
                if one.inode in pending_bytes:
                    durable[one.inode] = pending_bytes.pop(one.inode)
            elif one.kind == "sync_dir":
                due = [p for p in pending if _directory(p) == one.name]
                # a file that was renamed and is on the disk was made before
                moved = {p.inode for p in due if p.kind == "rename"}
                due = [p for p in pending if p in due or (p.kind == "create" and p.inode in moved)]
                for p in due:
                    _apply(p, names, dirs)
                    pending.remove(p)
            elif one.kind in ("make_dir", "create", "rename", "remove"):
                pending.append(one)
        index_now = self.operations[n_done].index if n_done < len(self.operations) else self._index()
        noise = random.Random(n_done)
        for kept in _subsets(len(pending)):
            after_names, after_dirs = dict(names), set(dirs)
            for i in kept:
                _apply(pending[i], after_names, after_dirs)
            for data_mode, index_mode in itertools.product(DATA_MODES, INDEX_MODES):
                content = dict(durable)
                for inode, data in pending_bytes.items():
                    content[inode] = {
                        "written": data,
                        "dropped": durable.get(inode, b""),
                        "torn": data[: max(1, len(data) // 2)],
                        "garbage": noise.randbytes(len(data)),
                    }[data_mode]
                files = {name: content.get(inode, b"") for name, inode in after_names.items()}
                # a rename over the index is one of its changes
                old = files.pop(INDEX_NAME, self.first_index)
                now = index_now
                index = {
                    "kept": now,
                    "old": old,
                    "torn": None if now is None else now[: len(now) // 2],
                    "garbage": None if now is None else noise.randbytes(len(now)),
                    "missing": None,
                }[index_mode]
                yield (
                    f"after {n_done} operations, names {list(kept)} of {len(pending)}, data {data_mode}, "
                    f"index {index_mode}",
                    State(after_dirs, files, index),
                )


@dataclasses.dataclass
class State:
    """A directory."""

    dirs: set[str]
    files: dict[str, bytes]
    index: bytes | None

    def fingerprint(self) -> int:
        return hash((frozenset(self.dirs), frozenset(self.files.items()), self.index))

    def make(self, root: Path) -> None:
        """Make it there."""
        root.mkdir(mode=0o700)
        for name in sorted(self.dirs):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            path = root / name
            if path.parent.is_dir():  # its directory was never on the disk, and so neither is it
                path.write_bytes(data)
        if self.index is not None:
            (root / INDEX_NAME).write_bytes(self.index)


def _directory(one: Operation) -> str:
    return (one.new or one.name).rpartition("/")[0]


def _apply(one: Operation, names: dict[str, int], dirs: set[str]) -> None:
    if one.kind == "make_dir":
        dirs.add(one.name)
    elif one.kind == "create":
        names[one.name] = one.inode
    elif one.kind == "remove":
        names.pop(one.name, None)
    else:
        names.pop(one.name, None)
        names[one.new] = one.inode


def _subsets(n: int) -> Iterator[tuple[int, ...]]:
    """Of the names that no directory was synced for, those that came on the disk: any of them, or any first ones."""
    if n <= MAX_SUBSETS:
        for size in range(n + 1):
            yield from itertools.combinations(range(n), size)
    else:
        for size in range(n + 1):
            yield tuple(range(size))


class _RecordingFiles(Files):
    def __init__(self, root: str, disk: Disk) -> None:
        super().__init__(root)
        self._disk = disk
        self._names: dict[int, str] = {}
        self._n_syncs: dict[str, int] = {}

    def _is_skipped(self, kind: str) -> bool:
        self._n_syncs[kind] = self._n_syncs.get(kind, 0) + 1
        return self._disk.skipped == (kind, self._n_syncs[kind])

    def make_dir(self, name: str) -> None:
        super().make_dir(name)
        self._disk.log("make_dir", name=name)

    def create(self, name: str) -> int:
        fd = super().create(name)
        self._names[fd] = name
        self._disk.log("create", name=name, inode=os.fstat(fd).st_ino)
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> None:
        # two halves, so that a crash between two writes of one buffer is tried too
        half = len(data) // 2
        for part in (bytes(data[:half]), bytes(data[half:])):
            if part:
                super().write(fd, part)
                self._disk.log("write", inode=os.fstat(fd).st_ino, data=part)

    def sync(self, fd: int) -> None:
        if INDEX_NAME in self._names.get(fd, ""):  # SQLite wrote it
            path = Path(self.root, self._names[fd])
            self._disk.log("write", inode=os.fstat(fd).st_ino, data=path.read_bytes())
        if not self._is_skipped("sync"):
            self._disk.log("sync", inode=os.fstat(fd).st_ino)

    def rename(self, old: str, new: str) -> None:
        inode = self.facts(old).inode
        super().rename(old, new)
        self._disk.log("rename", name=old, new=new, inode=inode)

    def remove(self, name: str) -> None:
        super().remove(name)
        self._disk.log("remove", name=name)

    def sync_dir(self, name: str) -> None:
        if not self._is_skipped("sync_dir"):
            self._disk.log("sync_dir", name=name)


# failures


class FailingFiles(Files):
    """Fails the Nth operation, of all or of one kind.

    Attributes:
        fail_at: 1 for the next one, 0 for none.
        n_calls: operations so far.
    """

    fail_at = 0
    error = errno.EIO
    n_calls = 0
    lasting = False
    kinds: frozenset[str] | None = None

    def _tick(self, kind: str, name: str = "") -> None:
        cls = type(self)
        if cls.kinds is not None and kind not in cls.kinds:
            return
        cls.n_calls += 1
        if cls.fail_at and (cls.n_calls == cls.fail_at or (cls.lasting and cls.n_calls > cls.fail_at)):
            raise OSError(cls.error, os.strerror(cls.error), name or None)

    def open_read(self, name: str) -> int:
        self._tick("open_read", name)
        return super().open_read(name)

    def read(self, fd: int, n_bytes: int, offset: int) -> bytes:
        self._tick("read")
        return super().read(fd, n_bytes, offset)

    def list(self, name: str) -> list[FileEntry]:
        self._tick("list", name)
        return super().list(name)

    def make_dir(self, name: str) -> None:
        self._tick("make_dir", name)
        super().make_dir(name)

    def create(self, name: str) -> int:
        self._tick("create", name)
        return super().create(name)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        half = len(data) // 2
        super().write(fd, data[:half])  # a full disk takes some of it
        self._tick("write")
        super().write(fd, data[half:])

    def sync(self, fd: int) -> None:
        self._tick("sync")

    def rename(self, old: str, new: str) -> None:
        self._tick("rename", new)
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._tick("remove", name)
        super().remove(name)

    def sync_dir(self, name: str) -> None:
        self._tick("sync_dir", name)

    def touch(self, name: str, mtime_ns: int) -> None:
        self._tick("touch", name)
        super().touch(name, mtime_ns)


def failing(error: int, *, lasting: bool = False, kinds: frozenset[str] | None = None) -> type[FailingFiles]:
    """A fresh class, whose fail_at and n_calls belong to one test."""
    values: dict[str, Any] = {"error": error, "lasting": lasting, "kinds": kinds}
    made: Callable[..., type[FailingFiles]] = type
    return made("FailingFiles", (FailingFiles,), values)
