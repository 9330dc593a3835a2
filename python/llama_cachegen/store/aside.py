"""What an open store does with a segment that it finds damaged."""

from __future__ import annotations

import contextlib
import logging

from . import layout, recovery
from .core import StoreCore
from .files import FileFacts

__all__ = ["found_damaged", "put_aside"]

_log = logging.getLogger(__name__)


def found_damaged(core: StoreCore, key: bytes, facts: FileFacts | None, why: str, first: bytes) -> None:
    """Put a damaged segment aside; where that is not possible, remember it so that it is not read again.

    Args:
        key: its name.
        facts: of the file as it was read; None if it could not be opened.
        why: in words.
        first: hash of its first block.
    """
    core._broken[key] = (facts, why)
    name = layout.segment_name(key)
    if core.mode == "w":
        with contextlib.suppress(OSError):  # still there, then: the next who reads it finds it damaged again
            if facts is None or core._files.facts(name) == facts:
                put_aside(core, name, why, first)


def put_aside(core: StoreCore, name: str, why: str, first: bytes = b"") -> None:
    """Move a segment into quarantine and forget it in the index.

    Raises:
        OSError: the system refuses; the segment is then where it was.
    """
    key = layout.key_of(name.rpartition("/")[2])
    if key is None:
        return
    note = recovery.QuarantineNote(key=key.hex(), first=first.hex(), reason=why, when_ms=core._now_ms())
    _log.warning("%s: put aside: %s", core.path, why)
    recovery.quarantine(core._files, name, note)
    core.counters.n_quarantined += 1
    core._quarantined = recovery.quarantined(core._files)
    with core._changing() as index:
        index.remove(key)
        index.forget_other(name)
