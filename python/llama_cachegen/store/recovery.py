"""The index made from the segments, kept as they are, and what happens to damaged ones."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import secrets
import sqlite3
from collections.abc import Callable, Iterator

import msgspec

from ..errors import SegmentCorruptError, SegmentError
from .files import FileFacts, Files, LinkError
from .index import INDEX_NAME, Index
from .layout import (
    PINS,
    QUARANTINE,
    SEGMENTS,
    SUFFIX,
    TEMPORARY,
    is_shard,
    key_of,
    list_or_none,
    segment_name,
    shard_of,
)
from .segment import SegmentPrefix, read_prefix

__all__ = ["Found", "QuarantineNote", "ScanReport", "quarantine", "quarantined", "read_head", "rebuild", "reconcile"]

Progress = Callable[[int, int], None]

_SETTLED_NS = 1_000_000_000
"""A directory whose modification time is younger may change again without a new time."""


@dataclasses.dataclass
class ScanReport:
    """What reading directories found.

    Attributes:
        n_added, n_gone: segments that the index did not have, or had and that are gone.
        damaged: names of files that are proven damaged, and why.
        kept: names of files that are not read, and why: of another version or key, unreadable, no segments.
    """

    n_added: int = 0
    n_gone: int = 0
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)
    kept: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Found:
    """A segment's header as its file has it."""

    prefix: SegmentPrefix
    facts: FileFacts

    @property
    def used_ms(self) -> int:
        """When it was last used: the file's modification time, not before it was saved."""
        return max(self.prefix.created_ms, self.facts.mtime_ns // 1_000_000)


def read_head(files: Files, name: str, key: bytes | None) -> Found:
    """Header and manifest of a segment.

    Raises:
        SegmentError: it cannot be used; a SegmentCorruptError if it is damaged, has another's name or is a link.
        OSError: the system refuses.
    """
    try:
        fd = files.open_read(name)
    except LinkError as error:
        raise SegmentCorruptError(f"{name} is {error.strerror}") from None
    try:
        try:
            facts = files.facts_of(fd)
        except LinkError as error:
            raise SegmentCorruptError(f"{name} is {error.strerror}") from None
        prefix = read_prefix(lambda n, offset: files.read(fd, n, offset), facts.size, key, name)
    finally:
        files.close_file(fd)
    check_name(prefix, name)
    return Found(prefix, facts)


def check_name(prefix: SegmentPrefix, name: str) -> None:
    """Raises SegmentCorruptError unless a segment has its own name."""
    if segment_name(prefix.key) != name:
        raise SegmentCorruptError(f"{name} holds the segment {prefix.key.hex()}; files were swapped")


def _read_one(files: Files, name: str, key: bytes | None, report: ScanReport) -> tuple[Found | None, int]:
    """A segment for the index. What is not for it goes to the report. Returns its size too."""
    try:
        found = read_head(files, name, key)
        return found, found.facts.size
    except SegmentCorruptError as error:
        report.damaged[name] = str(error)
    except SegmentError as error:
        report.kept[name] = str(error)
    except FileNotFoundError:
        return None, 0
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # says nothing about the file
        report.kept[name] = f"{name} cannot be read: {error.strerror or error}"
    with contextlib.suppress(OSError):
        return None, files.facts(name).size
    return None, 0


def segment_names(files: Files, shard: str, report: ScanReport) -> Iterator[tuple[str, bytes]]:
    """Files of a directory that are named like segments, and their keys. The report gets the others."""
    for entry in files.list(f"{SEGMENTS}/{shard}"):
        key = key_of(entry.name)
        name = f"{SEGMENTS}/{shard}/{entry.name}"
        if key is None or shard_of(key) != shard:
            report.kept[name] = f"{name} is not named like a segment"
        else:
            yield name, key


def shards(files: Files) -> list[str]:
    """The directories of segments there are."""
    return [entry.name for entry in list_or_none(files, SEGMENTS) if entry.is_dir and is_shard(entry.name)]


def _settled(mtime_ns: int, now_ns: int) -> int:
    return mtime_ns if 0 < mtime_ns < now_ns - _SETTLED_NS else 0


def pins(files: Files) -> set[bytes]:
    """Keys of the segments that are pinned."""
    return {key for entry in list_or_none(files, PINS) if (key := key_of(entry.name)) is not None}


def fill(files: Files, index: Index, key: bytes | None, now_ns: int, progress: Progress | None = None) -> ScanReport:
    """Read every segment's header into an empty index. progress(n_done, n_total) counts directories."""
    report = ScanReport()
    pinned = pins(files)
    times: dict[str, int] = {}

    def segments() -> Iterator[tuple[SegmentPrefix, int, bool]]:
        names = shards(files)
        for n_done, shard in enumerate(names):
            if progress is not None:
                progress(n_done, len(names))
            times[shard] = _settled(files.facts(f"{SEGMENTS}/{shard}").mtime_ns, now_ns)
            for name, segment_key in segment_names(files, shard, report):
                found, n_bytes = _read_one(files, name, key, report)
                if found is not None:
                    report.n_added += 1
                    yield found.prefix, found.used_ms, segment_key in pinned
                elif n_bytes:
                    sizes[name] = n_bytes
        if progress is not None:
            progress(len(names), len(names))

    sizes: dict[str, int] = {}
    index.begin()
    try:
        index.fill(segments())
        for shard, mtime_ns in times.items():
            index.set_shard(shard, mtime_ns)
        for name, n_bytes in sizes.items():
            index.set_other(name, n_bytes, report.damaged.get(name) or report.kept[name])
        index.commit()
    except BaseException:
        index.rollback()
        raise
    return report


def rebuild(files: Files, key: bytes | None, now_ns: int, progress: Progress | None = None) -> tuple[Index, ScanReport]:
    """Make the index anew beside the old one, and put it in its place. progress as of `fill`.

    Raises:
        OSError, sqlite3.Error: it cannot be written.
    """
    temporary = f"{TEMPORARY}/{INDEX_NAME}-{secrets.token_hex(8)}"
    fd = files.create(temporary)
    try:
        index = Index.create(f"{files.root}/{temporary}")
        try:
            report = fill(files, index, key, now_ns, progress)
        finally:
            index.close()
        files.sync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    finally:
        files.close_file(fd)
    with contextlib.suppress(FileNotFoundError):  # of the old index: it must not be applied to the new one
        files.remove(f"{INDEX_NAME}-journal")
    files.rename(temporary, INDEX_NAME)
    files.sync_dir("")
    return Index.open(f"{files.root}/{INDEX_NAME}", read_only=False), report


def reconcile(files: Files, index: Index, key: bytes | None, now_ns: int) -> ScanReport:
    """Bring an index up to date with directories that changed since they were last read.

    Raises:
        OSError: a directory cannot be read.
        sqlite3.Error: the index cannot be used.
    """
    report = ScanReport()
    known = index.shards()
    present = {shard: files.facts(f"{SEGMENTS}/{shard}").mtime_ns for shard in shards(files)}
    changed = [shard for shard, mtime_ns in present.items() if known.get(shard) != mtime_ns]
    gone = sorted(known.keys() - present.keys())
    pinned = pins(files)
    if not changed and not gone and pinned == index.pinned():
        return report
    others = index.others()
    index.begin()
    try:
        for shard in gone:
            for segment_key in index.keys_of_shard(*_bounds(shard)):
                index.remove(segment_key)
                report.n_gone += 1
            index.set_shard(shard, 0)
        for shard in changed:
            _reconcile_shard(files, index, key, shard, report, others)
            index.set_shard(shard, _settled(present[shard], now_ns))
        index.link()
        for segment_key in pinned ^ index.pinned():
            index.pin(segment_key, segment_key in pinned)
        index.commit()
    except BaseException:
        index.rollback()
        raise
    return report


def _bounds(shard: str) -> tuple[bytes, bytes]:
    low = int(shard, 16)
    return bytes([low]), bytes([low + 1]) if low < 255 else b""


def _reconcile_shard(
    files: Files, index: Index, key: bytes | None, shard: str, report: ScanReport, others: dict[str, tuple[int, str]]
) -> None:
    have = index.keys_of_shard(*_bounds(shard))
    seen = set()
    names = set()
    for name, segment_key in segment_names(files, shard, report):
        names.add(name)
        if segment_key in have:
            seen.add(segment_key)
            continue
        found, n_bytes = _read_one(files, name, key, report)
        if found is not None:
            index.add(found.prefix, used_ms=found.used_ms)
            report.n_added += 1
            if name in others:
                index.forget_other(name)
        elif n_bytes:
            index.set_other(name, n_bytes, report.damaged.get(name) or report.kept[name])
    for segment_key in have - seen:
        index.remove(segment_key)
        report.n_gone += 1
    for name in others:
        if name.startswith(f"{SEGMENTS}/{shard}/") and name not in names:
            index.forget_other(name)


# quarantine


class QuarantineNote(msgspec.Struct, frozen=True, kw_only=True):
    """Why a segment was put aside.

    Attributes:
        key: the name it had, hexadecimal.
        first: hash of its first block if the index knew it, hexadecimal; else "".
        reason: in words.
        when_ms: milliseconds since 1970.
    """

    key: str
    first: str = ""
    reason: str
    when_ms: int


def quarantine(files: Files, name: str, note: QuarantineNote) -> None:
    """Put a damaged segment aside, with the reason. A crash leaves it where it was, or puts it aside as a whole.

    Raises:
        OSError: the system refuses; the segment is then where it was.
    """
    target = f"{QUARANTINE}/{note.key}"
    temporary = f"{TEMPORARY}/{secrets.token_hex(8)}"
    files.publish(temporary, f"{target}.json", [msgspec.json.encode(note, order="sorted")])
    with contextlib.suppress(FileNotFoundError):
        files.rename(name, f"{target}{SUFFIX}")
        files.sync_dir(QUARANTINE)
        files.sync_dir(name.rpartition("/")[0])


def quarantined(files: Files) -> dict[str, tuple[QuarantineNote, int]]:
    """What is put aside: by key in hexadecimal, the note and the bytes kept. Notes without a segment are not of it."""
    is_file = {entry.name: entry.is_file for entry in list_or_none(files, QUARANTINE)}
    found: dict[str, tuple[QuarantineNote, int]] = {}
    for name in sorted(is_file):
        if not name.endswith(SUFFIX):
            continue
        stem = name.removesuffix(SUFFIX)
        note = QuarantineNote(key=stem, reason="the note is missing or cannot be read", when_ms=0)
        with contextlib.suppress(OSError, msgspec.DecodeError):
            fd = files.open_read(f"{QUARANTINE}/{stem}.json")
            try:
                note = msgspec.json.decode(files.read(fd, 1 << 16, 0), type=QuarantineNote)
            finally:
                files.close_file(fd)
        with contextlib.suppress(OSError):
            found[stem] = (note, files.facts(f"{QUARANTINE}/{name}").size if is_file[name] else 0)
    return found


def open_index(
    files: Files,
    key: bytes | None,
    now_ns: Callable[[], int],
    *,
    read_only: bool,
    progress: Progress | None = None,
) -> tuple[Index, ScanReport, str]:
    """The index, up to date: opened, or made anew; of a reader that cannot use the file, in memory.

    Returns:
        the index, what was found, and how it came: "opened", "rebuilt" or "in memory".

    Raises:
        OSError: the segments cannot be listed, or a writer cannot write.
    """
    path = f"{files.root}/{INDEX_NAME}"
    index = None
    try:
        index = Index.open(path, read_only=read_only)
        if not read_only:
            return index, reconcile(files, index, key, now_ns()), "opened"
        known = index.shards()
        now = {shard: files.facts(f"{SEGMENTS}/{shard}").mtime_ns for shard in shards(files)}
        if known == now:
            return index, ScanReport(), "opened"
        # a writer is at work, or was interrupted: a copy that this reader can keep up to date itself
        copy = index.copy()
        index.close()
        index = copy
        return index, reconcile(files, index, key, now_ns()), "in memory"
    except (sqlite3.Error, FileNotFoundError, UnicodeError):
        if index is not None:
            index.close()
    if read_only:
        index = Index.create(":memory:")
        return index, fill(files, index, key, now_ns(), progress), "in memory"
    index, report = rebuild(files, key, now_ns(), progress)
    return index, report, "rebuilt"
