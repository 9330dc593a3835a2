"""Local segments to a tier. Of two hosts that have the same key, the one that came first wins, for both."""

from __future__ import annotations

import enum
import logging

from ...errors import SegmentCorruptError, SegmentError, StoreError
from ..core import StoreCore
from .adopting import adopt, read_segment
from .check import check_segment
from .guard import GuardedTier
from .names import name_of_row

__all__ = ["Outcome", "upload"]

_log = logging.getLogger(__name__)


class Outcome(str, enum.Enum):
    """What came of a segment that a tier was given.

    PRESENT: it was there. TAKEN_OVER: another host's was there, with other bytes, and is now the local one too. GONE:
    the local store no longer has it, or has it damaged. FAILED: see the tier's counters.
    """

    WRITTEN = "written"
    PRESENT = "present"
    TAKEN_OVER = "taken over"
    GONE = "gone"
    FAILED = "failed"


def upload(core: StoreCore, key: bytes, tier: GuardedTier, deadline: float) -> Outcome:
    """Give a local segment to a tier, checked, as what is damaged here shall not spread.

    Args:
        key: of the segment.
        deadline: on time.monotonic; of the whole exchange.
    """
    with core._mutex:
        row = core._asking(lambda index: index.get(key))
    if row is None:
        return Outcome.GONE
    name = name_of_row(row, core.block_tokens)
    now_ms = core._now_ns() // 1_000_000
    try:
        data = read_segment(core, key)
        prefix = check_segment(data, name, core._key, block_tokens=core.block_tokens, now_ms=now_ms)
    except (SegmentError, OSError, MemoryError) as error:
        _log.warning("%s: segment %s is not given to %s: %s", core.path, key.hex()[:12], tier.title, error)
        return Outcome.GONE
    is_written = tier.put(name, data, deadline)
    if is_written is not False:
        return Outcome.WRITTEN if is_written else Outcome.FAILED
    # the name was taken: header, manifest and tokens say whether by the same bytes, as they hold the payload's digest
    n_head = prefix.plan.payload_offset
    theirs = tier.head(name, n_head, deadline)
    if theirs == data[:n_head]:
        return Outcome.PRESENT
    other = tier.get(name, deadline) if theirs is not None or tier.why_broken(name) else None
    try:
        if other is not None:
            found = check_segment(other, name, core._key, block_tokens=core.block_tokens, now_ms=now_ms)
        elif tier.why_broken(name) is None:
            return Outcome.FAILED
        else:
            raise SegmentCorruptError(tier.why_broken(name) or "")
    except SegmentCorruptError as error:
        _log.warning("%s: %s; it is replaced", tier.title, error)
        if other is not None:
            tier.count(n_broken=1)
        if not tier.put(name, data, deadline, replace=True):
            return Outcome.FAILED
        tier.count(n_replaced=1)
        return Outcome.WRITTEN
    except SegmentError as error:
        tier.count(n_unreadable=1)
        tier.mark_broken(name, str(error))  # of a later version: it is not ours to replace
        return Outcome.FAILED
    try:
        with core._mutex:
            parent = core._asking(lambda index: index.get(row.parent_key or b""))
        adopt(core, other or b"", found, parent, set(), replace=True)
    except (StoreError, OSError) as error:
        _log.warning("%s: segment %s of %s was not taken over: %s", core.path, key.hex()[:12], tier.title, error)
        return Outcome.FAILED
    tier.count(n_lost_races=1)
    return Outcome.TAKEN_OVER
