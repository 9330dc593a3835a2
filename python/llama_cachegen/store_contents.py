"""What is in the file of one segment, section by section, for people who look into a store."""

from __future__ import annotations

import collections
from typing import Any

from .codec.archive import Archive
from .codec.errors import CodecError
from .errors import SegmentError, StoreError
from .store import Store
from .store.chain import HASH_BYTES
from .store.layout import segment_name
from .store.segment import HEADER, read_tokens
from .store.verify import check_segment

__all__ = ["segment_contents"]

_N_FIRST_TOKENS = 8


def segment_contents(store: Store, key: str) -> dict[str, Any]:
    """Sections, blocks and archive of a segment, all of it read.

    Args:
        store: open.
        key: hexadecimal, or the beginning of it that no other has.

    Returns:
        plain values; `damage` in words, None if every digest matches.

    Raises:
        SegmentError, StoreError, OSError: header and manifest cannot be read, or there is no such segment.
    """
    row = store.entry(key)
    prefix = store.describe(row.key.hex())
    name = segment_name(row.key)
    damage = None
    try:
        check_segment(store, name)
    except SegmentError as error:
        damage = str(error)
    plan = prefix.plan
    offsets = [
        ("header", 0),
        ("manifest", HEADER.size),
        ("tokens", plan.tokens_offset),
        ("padding", plan.tokens_offset + 4 * prefix.n_tokens),
        (f"payload ({prefix.payload_format})", plan.payload_offset),
    ]
    ends = [offset for _, offset in offsets[1:]] + [plan.file_bytes]
    files = store._files
    fd = files.open_read(name)
    try:

        def read(n_bytes: int, offset: int) -> bytes:
            return files.read(fd, n_bytes, offset)

        try:
            tokens = read_tokens(prefix, read, store._key, name).tolist()
        except SegmentError:
            tokens = []
        archive = None
        if prefix.payload_format == "lcg3" and damage is None:
            archive = _archive_facts(read(prefix.payload_bytes, plan.payload_offset))
    finally:
        files.close_file(fd)
    step = prefix.block_tokens
    return {
        "key": row.key.hex(),
        "file": name,
        "file_bytes": plan.file_bytes,
        "pos_begin": prefix.pos_begin,
        "n_tokens": prefix.n_tokens,
        "damage": damage,
        "sections": [
            {"name": title, "offset": begin, "n_bytes": end - begin}
            for (title, begin), end in zip(offsets, ends, strict=True)
        ],
        "blocks": [
            {
                "pos_begin": prefix.pos_begin + i * step,
                "n_tokens": min(step, prefix.n_tokens - i * step),
                "hash": prefix.chain[i * HASH_BYTES : (i + 1) * HASH_BYTES].hex(),
                "first_tokens": tokens[i * step : i * step + min(step, _N_FIRST_TOKENS)],
            }
            for i in range(len(prefix.chain) // HASH_BYTES)
        ],
        "archive": archive,
    }


def _archive_facts(payload: bytes) -> dict[str, Any] | None:
    """Of an LCG3 archive, planes of one kind together; None if it is none that can be read."""
    try:
        with Archive(payload) as archive:
            info, planes = archive.info, archive.planes
    except (CodecError, StoreError):
        return None
    groups: dict[tuple[str, str, str], list[int]] = collections.defaultdict(list)
    for plane in planes:
        groups[plane.kind.name, plane.type.type_name, plane.mode.name.lower()].append(plane.payload_bytes)
    return {
        "n_tokens": info.n_tokens,
        "archive_bytes": info.archive_bytes,
        "metadata_bytes": info.metadata_bytes,
        "planes": [
            {"kind": kind, "type": type_, "mode": mode, "n": len(sizes), "n_bytes": sum(sizes)}
            for (kind, type_, mode), sizes in groups.items()
        ],
    }
