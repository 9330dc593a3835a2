"""Room in a store: what goes, and in which order, so that a budget is kept."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence

from ..errors import StoreFullError
from . import layout, recovery
from .core import StoreCore
from .index import Row

__all__ = ["choose", "make_room", "note_uses", "prune", "remove_rows", "taken"]


def note_uses(core: StoreCore) -> None:
    """Write down what was read, in the index and as the files' times. Only the order of eviction depends on it."""
    if not core._uses or core.mode == "r":
        return
    uses, core._uses = core._uses, {}
    for key, used_ms in uses.items():
        with contextlib.suppress(OSError):
            core._files.touch(layout.segment_name(key), used_ms * 1_000_000)
    with core._changing() as index:
        index.used([(used_ms, key) for key, used_ms in uses.items()])


def taken(core: StoreCore) -> int:
    """Bytes of the store's files, what is put aside too."""
    aside = sum(n_bytes for _, n_bytes in core._quarantined.values())
    return int(core._asking(lambda index: index.totals())[1]) + aside


def make_room(core: StoreCore, n_bytes: int, keep: set[bytes]) -> int:
    """Remove segments until so many bytes fit into the budget. Returns how many."""
    if n_bytes > core.budget_bytes:
        core.counters.n_refused += 1
        raise StoreFullError(f"the entry takes {n_bytes} bytes, the budget of the whole store is {core.budget_bytes}")
    n_evicted = 0
    while (over := taken(core) + n_bytes - core.budget_bytes) > 0:
        if any(n_kept for _, n_kept in core._quarantined.values()):
            _drop_quarantined(core)
            continue
        victims: list[Row] = []
        for row in core._asking(lambda index: index.victims()):
            if row.key in keep:
                continue
            victims.append(row)
            over -= row.file_bytes
            if over <= 0:
                break
        if not victims:
            core.counters.n_refused += 1
            raise StoreFullError(
                f"{n_bytes} bytes do not fit into the budget of {core.budget_bytes}: what is left is pinned, or "
                "what the entry continues"
            )
        remove_rows(core, victims)
        n_evicted += len(victims)
        for row in victims:
            core.counters.n_evicted += 1
            core.counters.bytes_evicted += row.file_bytes
            if row.used_ms <= row.created_ms:
                core.counters.n_evicted_never_read += 1
                core.counters.bytes_evicted_never_read += row.file_bytes
    return n_evicted


def prune(core: StoreCore, target_bytes: int, dry_run: bool, progress: Callable[[int, int], None] | None) -> list[Row]:
    """See `Store.prune`."""
    if not dry_run:
        core._writable()
        note_uses(core)
    removed = choose(core._asking(lambda index: list(index.rows())), taken(core) - target_bytes)
    if removed and not dry_run:
        remove_rows(core, removed, progress)
    return removed


def remove_rows(core: StoreCore, rows: Sequence[Row], progress: Callable[[int, int], None] | None = None) -> None:
    """Remove segments, in this order: children before what they continue.

    What was removed before an error, or before progress raised one, is forgotten by the index all the same.
    """
    removed: list[Row] = []
    try:
        for row in rows:
            if progress is not None:
                progress(len(removed), len(rows))
            with contextlib.suppress(FileNotFoundError):
                core._files.remove(layout.segment_name(row.key))
            removed.append(row)
        if progress is not None:
            progress(len(removed), len(rows))
    finally:
        _forget(core, removed)


def _forget(core: StoreCore, rows: Sequence[Row]) -> None:
    """Make it last that the files of these are gone, and tell the index."""
    shards = dict.fromkeys(layout.shard_of(row.key) for row in rows)
    for shard in shards:
        core._files.sync_dir(f"{layout.SEGMENTS}/{shard}")
    for row in rows:
        core._uses.pop(row.key, None)
    with core._changing() as index:
        for row in rows:
            index.remove(row.key)
        for shard in shards:
            index.set_shard(shard, 0)


def _drop_quarantined(core: StoreCore) -> None:
    """Remove the segment that was put aside first, and its note after it."""
    files = [stem for stem, (_, n_bytes) in core._quarantined.items() if n_bytes]
    oldest = min(files, key=lambda stem: (core._quarantined[stem][0].when_ms, stem))
    for suffix in (layout.SUFFIX, ".json"):
        with contextlib.suppress(FileNotFoundError):
            core._files.remove(f"{layout.QUARANTINE}/{oldest}{suffix}")
    core._files.sync_dir(layout.QUARANTINE)
    core._quarantined = recovery.quarantined(core._files)


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
