"""Room in a store: what goes, and in which order, so that a budget is kept."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import StoreFullError
from . import layout, recovery
from .index import Row

if TYPE_CHECKING:
    from .store import Store

__all__ = ["choose", "make_room", "remove_rows", "taken"]


def taken(store: Store) -> int:
    """Bytes of the store's files, what is put aside too."""
    aside = sum(n_bytes for _, n_bytes in store._quarantined.values())
    return int(store._asking(lambda index: index.totals())[1]) + aside


def make_room(store: Store, n_bytes: int, keep: set[bytes]) -> int:
    """Remove segments until so many bytes fit into the budget. Returns how many."""
    if n_bytes > store.budget_bytes:
        store.counters.n_refused += 1
        raise StoreFullError(f"the entry takes {n_bytes} bytes, the budget of the whole store is {store.budget_bytes}")
    n_evicted = 0
    while (over := taken(store) + n_bytes - store.budget_bytes) > 0:
        if any(n_kept for _, n_kept in store._quarantined.values()):
            _drop_quarantined(store)
            continue
        victims: list[Row] = []
        for row in store._asking(lambda index: index.victims()):
            if row.key in keep:
                continue
            victims.append(row)
            over -= row.file_bytes
            if over <= 0:
                break
        if not victims:
            store.counters.n_refused += 1
            raise StoreFullError(
                f"{n_bytes} bytes do not fit into the budget of {store.budget_bytes}: what is left is pinned, or "
                "what the entry continues"
            )
        remove_rows(store, victims)
        n_evicted += len(victims)
        for row in victims:
            store.counters.n_evicted += 1
            store.counters.bytes_evicted += row.file_bytes
            if row.used_ms <= row.created_ms:
                store.counters.n_evicted_never_read += 1
                store.counters.bytes_evicted_never_read += row.file_bytes
    return n_evicted


def remove_rows(store: Store, rows: Sequence[Row]) -> None:
    """Remove segments, in this order: children before what they continue."""
    files = store._files
    shards: dict[str, None] = {}
    for row in rows:
        with contextlib.suppress(FileNotFoundError):
            files.remove(layout.segment_name(row.key))
        shards[layout.shard_of(row.key)] = None
    for shard in shards:
        files.sync_dir(f"{layout.SEGMENTS}/{shard}")
    for row in rows:
        store._uses.pop(row.key, None)
    with store._changing() as index:
        for row in rows:
            index.remove(row.key)
        for shard in shards:
            index.set_shard(shard, 0)


def _drop_quarantined(store: Store) -> None:
    """Remove the segment that was put aside first, and its note after it."""
    files = [stem for stem, (_, n_bytes) in store._quarantined.items() if n_bytes]
    oldest = min(files, key=lambda stem: (store._quarantined[stem][0].when_ms, stem))
    for suffix in (layout.SUFFIX, ".json"):
        with contextlib.suppress(FileNotFoundError):
            store._files.remove(f"{layout.QUARANTINE}/{oldest}{suffix}")
    store._files.sync_dir(layout.QUARANTINE)
    store._quarantined = recovery.quarantined(store._files)


def choose(rows: list[Row], over: int) -> list[Row]:
    """Segments to remove so that so many bytes less are taken, each after those that continue it.

    Args:
        rows: all segments.
        over: bytes.
    """
    chosen: list[Row] = []
    gone: set[bytes] = set()
    children = collections.Counter(row.parent_key for row in rows if row.parent_key is not None)
    rows = sorted(rows, key=lambda row: (not row.is_orphan, row.used_ms, -row.pos_begin))
    is_changed = True
    while over > 0 and is_changed:
        is_changed = False
        for row in rows:
            if over <= 0:
                break
            if row.key in gone or row.is_pinned or children[row.key]:
                continue
            gone.add(row.key)
            chosen.append(row)
            over -= row.file_bytes
            is_changed = True
            if row.parent_key is not None:
                children[row.parent_key] -= 1
    return chosen
