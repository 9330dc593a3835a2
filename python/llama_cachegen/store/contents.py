"""What a store holds: its entries one by one, and all of them in figures."""

from __future__ import annotations

from ..errors import StoreError
from . import recovery
from .chain import HASH_BYTES
from .core import StoreCore
from .index import Index, Root, Row
from .reports import StoreStats
from .room import note_uses

__all__ = ["all_entries", "one_entry", "quarantined", "stats"]


def all_entries(core: StoreCore) -> list[tuple[Row, Root]]:
    """See `Store.entries`."""
    core._refresh()

    def question(index: Index) -> list[tuple[Row, Root]]:
        by_id = {root.id: root for root in index.roots().values()}
        return [(row, by_id[row.root_id]) for row in index.rows()]

    return core._asking(question)


def one_entry(core: StoreCore, key: str) -> Row:
    """See `Store.entry`."""
    try:
        whole = bytes.fromhex(key) if len(key) == 2 * HASH_BYTES else b""
    except ValueError:
        whole = b""
    if whole:
        row: Row | None = core._asking(lambda index: index.get(whole))
        rows = [] if row is None else [row]
    else:
        rows = [row for row, _ in all_entries(core) if key and row.key.hex().startswith(key)]
    if len(rows) != 1:
        raise StoreError(f"{len(rows)} segments of {core.path} have a key that begins with {key!r}")
    return rows[0]


def quarantined(core: StoreCore) -> dict[str, tuple[recovery.QuarantineNote, int]]:
    """See `Store.quarantined`."""
    core._quarantined = recovery.quarantined(core._files)
    return dict(core._quarantined)


def stats(core: StoreCore) -> StoreStats:
    """See `Store.stats`."""
    core._refresh()
    note_uses(core)
    n_segments, n_bytes = core._asking(lambda index: index.totals())
    n_never, bytes_never = core._asking(lambda index: index.never_read())
    free = core._files.free_bytes()
    return StoreStats(
        n_segments=n_segments,
        n_bytes=n_bytes,
        n_never_read=n_never,
        bytes_never_read=bytes_never,
        n_pinned=len(core._asking(lambda index: index.pinned())),
        n_quarantined=len(core._quarantined),
        bytes_quarantined=sum(n for _, n in core._quarantined.values()),
        budget_bytes=core.budget_bytes,
        min_free_bytes=core.min_free_bytes,
        free_bytes=free,
        is_low_on_disk=free < core.min_free_bytes,
    )
