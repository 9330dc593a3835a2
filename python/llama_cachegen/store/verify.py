"""Every byte of a store checked, and what can be mended."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable

from ..errors import SegmentCorruptError, SegmentError
from . import layout, recovery
from .aside import put_aside
from .contents import all_entries, quarantined
from .core import StoreCore
from .files import LinkError
from .index import INDEX_NAME, Row
from .room import remove_rows
from .segment import read_payload_digest, read_prefix, read_tokens

__all__ = ["Finding", "VerifyReport", "verify"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        kind: "damaged", "unreadable", "other" (of another version or key, or no segment), "orphan" (what it continues
            is gone), "index" (the index was not as the files are), "quarantined" (put aside earlier).
        name: the file, relative to the store.
        detail: in words.
        action: what was done: "", "quarantined", "removed" or "rebuilt".
    """

    kind: str
    name: str
    detail: str
    action: str = ""


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What was checked and found. `ok` if there are no findings but of kinds "other" and "quarantined"."""

    n_segments: int
    n_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Nothing has to be done."""
        return all(finding.kind in ("other", "quarantined") for finding in self.findings)


def check_segment(core: StoreCore, name: str) -> int:
    """Every byte of a segment. Returns its size.

    Raises:
        SegmentError: it is damaged, or of another version or key.
        OSError: the system refuses.
    """
    files, key = core._files, core._key
    try:
        fd = files.open_read(name)
    except LinkError as error:
        raise SegmentCorruptError(f"{name} is {error.strerror}") from None
    try:

        def read(n_bytes: int, offset: int) -> bytes:
            return files.read(fd, n_bytes, offset)

        n_bytes = files.facts_of(fd).size
        prefix = read_prefix(read, n_bytes, key, name)
        recovery.check_name(prefix, name)
        read_tokens(prefix, read, key, name)
        digest = read_payload_digest(prefix, read, key)
        if digest != prefix.payload_blake3:
            raise SegmentCorruptError(f"{name}: the payload does not match its digest; bytes are damaged")
        return n_bytes
    except LinkError as error:
        raise SegmentCorruptError(f"{name} is {error.strerror}") from None
    finally:
        files.close_file(fd)


def verify(
    core: StoreCore, *, quarantine: bool, repair: bool, progress: Callable[[int, int], None] | None
) -> VerifyReport:
    """See `Store.verify`. Called with `_changes` held and without the mutex: reading it all does not stop lookups."""
    files = core._files
    findings: list[Finding] = []
    names: list[tuple[str, bytes]] = []
    report = recovery.ScanReport()
    for shard in recovery.shards(files):
        names += recovery.segment_names(files, shard, report)
    findings += [Finding("other", name, why) for name, why in report.kept.items()]
    n_bytes = 0
    sound: set[bytes] = set()
    for n, (name, key) in enumerate(names):
        try:
            n_bytes += check_segment(core, name)
            sound.add(key)
        except SegmentCorruptError as error:
            if quarantine:
                with core._mutex:
                    put_aside(core, name, str(error))
            findings.append(Finding("damaged", name, str(error), "quarantined" if quarantine else ""))
        except SegmentError as error:
            findings.append(Finding("other", name, str(error)))
        except FileNotFoundError:
            pass  # removed, or put aside by who read it, since the directory was listed
        except OSError as error:
            findings.append(Finding("unreadable", name, f"{name}: {error}"))
        if progress is not None:
            progress(n + 1, len(names))
    with core._mutex:
        findings += _check_index(core, sound, repair)
        findings += _check_orphans(core, repair)
        aside = quarantined(core)
    for key_hex, (note, _) in aside.items():
        if not any(finding.action == "quarantined" and key_hex in finding.name for finding in findings):
            findings.append(Finding("quarantined", f"{layout.QUARANTINE}/{key_hex}{layout.SUFFIX}", note.reason))
    return VerifyReport(len(names), n_bytes, tuple(findings))


def _check_index(core: StoreCore, sound: set[bytes], repair: bool) -> list[Finding]:
    index = core._open_index()
    name = INDEX_NAME
    try:
        known = {row.key for row in index.rows()}
        is_sound = index.is_sound()
        missing, gone = {key for key in sound - known if _exists(core, key)}, known - sound
    except sqlite3.Error as error:
        is_sound, missing, gone = False, sound, set()
        detail = str(error)
    else:
        detail = "SQLite finds it damaged"
    if is_sound and not missing:
        # rows of damaged segments stay until those are put aside
        gone = {key for key in gone if not _exists(core, key)}
        if not gone:
            return []
    if is_sound:
        detail = f"it lacks {len(missing)} segments and has {len(gone)} that are gone"
    if repair:
        core._replace_index(sqlite3.DatabaseError(detail))
    return [Finding("index", name, detail, "rebuilt" if repair else "")]


def _exists(core: StoreCore, key: bytes) -> bool:
    with contextlib.suppress(FileNotFoundError):
        core._files.facts(layout.segment_name(key))
        return True
    return False


def _check_orphans(core: StoreCore, repair: bool) -> list[Finding]:
    lost: list[Row] = []
    index = core._open_index()
    for row, _ in all_entries(core):
        if row.is_orphan:
            lost += [row, *index.descendants_of(row.key)]
    if repair and lost:
        remove_rows(core, lost[::-1])
    return [
        Finding(
            "orphan",
            layout.segment_name(row.key),
            f"the segment before position {row.pos_begin} is gone, so that no lookup comes here",
            "removed" if repair else "",
        )
        for row in lost
    ]
