"""A segment that came from elsewhere, checked, becomes one of the local store's, byte by byte the same."""

from __future__ import annotations

from ..core import StoreCore
from ..index import Row
from ..layout import segment_name, shard_of
from ..lookup import continue_at, walk
from ..recovery import pins
from ..room import make_room, note_uses
from ..saving import check_disk, publish
from ..segment import SegmentPrefix

__all__ = ["adopt", "read_segment", "row_before"]


def row_before(core: StoreCore, root: bytes, tokens: bytes, pos_begin: int) -> tuple[Row | None, set[bytes]]:
    """The local segment that an entry of a prompt from a position on would continue, and the keys on the way to it."""
    chain = core._chain(root, tokens[: 4 * pos_begin])
    steps = core._asking(lambda index: walk(index, chain))
    n_tokens, row = continue_at(steps, core.block_tokens)
    return (row if n_tokens == pos_begin else None), {step.row.key for step in steps}


def adopt(
    core: StoreCore, data: bytes, prefix: SegmentPrefix, parent: Row | None, keep: set[bytes], *, replace: bool = False
) -> bool:
    """Publish a segment locally.

    Args:
        data: its bytes, all checked.
        prefix: of it.
        parent: the local segment before it.
        keep: keys of segments that do not go to make room.
        replace: take the place of one of the same key.

    Returns:
        False if the store has one of that key, which is kept.

    Raises:
        StoreFullError, StoreLowDiskError, StoreReadOnlyError, OSError: as `Store.save`; nothing was published.
    """
    view = memoryview(data)
    with core._changes:
        with core._mutex:
            core._writable()
            note_uses(core)
            if not replace and core._asking(lambda index: index.get(prefix.key)) is not None:
                return False
            make_room(core, len(data), keep | {prefix.key})
            check_disk(core, len(data))
        publish(core, prefix, view[: prefix.plan.payload_offset], view[prefix.plan.payload_offset :], None)
        with core._mutex:
            core.counters.bytes_written += len(data)
            parent_key = parent.key if parent is not None else None
            with core._changing() as index:
                if parent_key is None and replace and (before := index.get(prefix.key)) is not None:
                    parent_key = before.parent_key
                if parent_key is not None and index.get(parent_key) is None:
                    parent_key = None  # gone meanwhile: this one is an orphan until that one is there again
                is_pinned = prefix.key in pins(core._files)
                index.add(prefix, used_ms=core._now_ms(), parent_key=parent_key, is_pinned=is_pinned)
                index.set_shard(shard_of(prefix.key), 0)
    return True


def read_segment(core: StoreCore, key: bytes) -> bytes:
    """All bytes of a local segment's file.

    Raises:
        OSError: there is none, or the system refuses.
    """
    files = core._files
    fd = files.open_read(segment_name(key))
    try:
        return files.read(fd, files.facts_of(fd).size, 0)
    finally:
        files.close_file(fd)
