"""Saving an entry: what is before it is there, room is made, and only then it is written and published."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import secrets
from collections.abc import Callable, Iterator, Sequence

from ..errors import StoreChainError, StoreLowDiskError, StoreReadOnlyError
from . import layout, recovery
from .asking import find
from .core import StoreCore
from .identity import CodecStamp, StoreIdentity
from .lookup import continue_at
from .reports import Found, SaveResult
from .room import make_room, note_uses
from .segment import (
    Manifest,
    MeasuredError,
    PayloadFormat,
    SegmentPrefix,
    check_payload_kind,
    encode_prefix,
    payload_digest,
    read_prefix,
)

__all__ = ["PayloadFacts", "Progress", "check_disk", "publish", "save"]

_PIECE_BYTES = 1 << 24

Progress = Callable[[int, int], None]
"""progress(n_done, n_total)."""


@dataclasses.dataclass(frozen=True)
class PayloadFacts:
    """What a manifest says of a payload besides its bytes; see `Store.save`."""

    payload_format: PayloadFormat
    decoded_bytes: int
    component_types: dict[str, str]
    divisible: bool
    measured_error: Sequence[MeasuredError]


def save(
    core: StoreCore,
    identity: StoreIdentity,
    codec: CodecStamp,
    tokens: bytes,
    payload: memoryview,
    pos_begin: int,
    facts: PayloadFacts,
    progress: Progress | None = None,
) -> SaveResult:
    """See `Store.save`. Called with `_changes` held and without the mutex."""
    n_tokens = len(tokens) // 4
    with core._mutex:
        found = _check(core, identity, codec, tokens, payload, facts)
        if found.steps and found.n_tokens == n_tokens:
            core.counters.n_present += 1
            last = found.steps[-1].row
            return SaveResult(last.key.hex(), False, last.file_bytes, 0)
    available, parent_row = continue_at(found.steps, core.block_tokens)
    if pos_begin != available or pos_begin >= n_tokens:
        raise StoreChainError(
            f"the store has the first {available} tokens of this chain; an entry from {pos_begin} on does not "
            "continue them"
        )
    manifest = _manifest(core, identity, codec, tokens, payload, pos_begin, facts)
    prefix = encode_prefix(manifest, tokens[4 * pos_begin :], core._key)
    file_bytes = len(prefix) + payload.nbytes
    with core._mutex:
        n_evicted = make_room(core, file_bytes, {step.row.key for step in found.steps})
        check_disk(core, file_bytes)
    publish(core, manifest, prefix, payload, progress)
    checked = read_prefix(lambda n, offset: prefix[offset : offset + n], file_bytes, core._key)
    with core._mutex:
        core.counters.n_saves += 1
        core.counters.payload_bytes_saved += payload.nbytes
        core.counters.bytes_written += file_bytes
        parent_key = parent_row.key if parent_row is not None else None
        with core._changing() as index:
            if parent_key is not None and index.get(parent_key) is None:
                parent_key = None  # put aside meanwhile: this one is an orphan until it is saved again
            is_pinned = manifest.key in recovery.pins(core._files)
            index.add(checked, used_ms=manifest.created_ms, parent_key=parent_key, is_pinned=is_pinned)
            index.set_shard(layout.shard_of(manifest.key), 0)
    return SaveResult(manifest.key.hex(), True, file_bytes, n_evicted)


def _check(
    core: StoreCore,
    identity: StoreIdentity,
    codec: CodecStamp,
    tokens: bytes,
    payload: memoryview,
    facts: PayloadFacts,
) -> Found:
    core._writable()
    note_uses(core)
    check_payload_kind(facts.payload_format, bytes(payload[:16]))
    return find(core, identity, tokens, True, [codec])


def _manifest(
    core: StoreCore,
    identity: StoreIdentity,
    codec: CodecStamp,
    tokens: bytes,
    payload: memoryview,
    pos_begin: int,
    facts: PayloadFacts,
) -> Manifest:
    root = core._root(identity, codec)
    before = core._chain(root, tokens).before(pos_begin // core.block_tokens)
    part = core._chain(before, tokens[4 * pos_begin :])
    return Manifest(
        identity=identity,
        codec=codec,
        block_tokens=core.block_tokens,
        pos_begin=pos_begin,
        n_tokens=part.n_tokens,
        parent=before.hex(),
        chain=tuple(value.hex() for value in part.hashes()),
        divisible=facts.divisible,
        payload_format=facts.payload_format,
        payload_bytes=payload.nbytes,
        payload_blake3=payload_digest(payload, core._key),
        decoded_bytes=facts.decoded_bytes,
        component_types=dict(sorted(facts.component_types.items())),
        measured_error=tuple(facts.measured_error),
        created_ms=core._now_ms(),
    )


def _pieces(prefix: bytes | memoryview, payload: memoryview, progress: Progress | None) -> Iterator[bytes | memoryview]:
    """The file's bytes in pieces; each is written when the next one is asked for."""
    n_total = len(prefix) + payload.nbytes
    n_done = len(prefix)
    yield prefix
    for begin in range(0, payload.nbytes, _PIECE_BYTES):
        if progress is not None:
            progress(n_done, n_total)
        piece = payload[begin : begin + _PIECE_BYTES]
        yield piece
        n_done += piece.nbytes
    if progress is not None:
        progress(n_done, n_total)


def publish(
    core: StoreCore,
    manifest: Manifest | SegmentPrefix,
    prefix: bytes | memoryview,
    payload: memoryview,
    progress: Progress | None,
) -> None:
    """Write a segment's file, all of it or nothing.

    Raises:
        StoreLowDiskError, StoreReadOnlyError, OSError: the system refuses.
    """
    key = manifest.key
    files = core._files
    shard = f"{layout.SEGMENTS}/{layout.shard_of(key)}"
    try:
        with contextlib.suppress(FileExistsError):
            files.make_dir(shard)
            files.sync_dir(layout.SEGMENTS)
        files.publish(
            f"{layout.TEMPORARY}/{secrets.token_hex(8)}",
            layout.segment_name(key),
            _pieces(prefix, payload, progress),
            mtime_ns=manifest.created_ms * 1_000_000,
        )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            core.counters.n_refused += 1
            raise StoreLowDiskError(f"{core.path}: {error.strerror}; nothing was saved") from None
        if error.errno == errno.EROFS:
            raise StoreReadOnlyError(f"{core.path} lies on a read-only file system; nothing was saved") from None
        raise


def check_disk(core: StoreCore, n_bytes: int) -> None:
    """Raises StoreLowDiskError if so many bytes more would leave too little of the disk free."""
    free = core._files.free_bytes()
    if free - n_bytes < core.min_free_bytes:
        core.counters.n_refused += 1
        raise StoreLowDiskError(
            f"{core.path}: {n_bytes} bytes would leave {max(0, free - n_bytes)} of the disk free, at least "
            f"{core.min_free_bytes} have to be left; free some, or lower min_free_bytes"
        )
