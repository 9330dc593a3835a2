"""What comes from a tier is checked as a stranger's: container, digests, name, before any of it is decoded or kept."""

from __future__ import annotations

import hmac

from ...errors import SegmentCorruptError
from ..segment import HEADER, SegmentPrefix, check_payload_kind, payload_digest, read_prefix, read_tokens
from .names import SegmentName, name_of

__all__ = ["check_head", "check_segment"]

MAX_AHEAD_MS = 24 * 3600 * 1000
"""Clocks of hosts differ; a segment saved later than this from now would never be the oldest."""


def check_segment(
    data: bytes, name: SegmentName, key: bytes | None, *, block_tokens: int, now_ms: int
) -> SegmentPrefix:
    """All of a segment: header, manifest, tokens against the chain, payload against its digest, and its name.

    Args:
        data: all of its bytes.
        name: asked for.
        key: of a keyed store: all digests have to be made with it.
        block_tokens: of the store.
        now_ms: milliseconds since 1970.

    Raises:
        SegmentCorruptError: damaged, forged, or another segment than asked for.
        SegmentVersionError, SegmentKeyError: of another version, or of another key.
    """
    view = memoryview(data)
    title = f"segment {name.key.hex()[:12]}"

    def read(n_bytes: int, offset: int) -> bytes:
        return bytes(view[offset : offset + n_bytes])

    prefix = read_prefix(read, len(data), key, title)
    _check_name(prefix, name, title)
    if prefix.block_tokens != block_tokens:
        raise SegmentCorruptError(
            f"{title} has blocks of {prefix.block_tokens} tokens; the store's have {block_tokens}"
        )
    if not 0 <= prefix.created_ms <= now_ms + MAX_AHEAD_MS:
        raise SegmentCorruptError(
            f"{title} was saved at {prefix.created_ms} ms, by its manifest; it is {now_ms} ms now"
        )
    read_tokens(prefix, read, key, title)
    payload = view[prefix.plan.payload_offset :]
    if not hmac.compare_digest(payload_digest(payload, key), prefix.payload_blake3):
        raise SegmentCorruptError(f"{title}: the payload does not match its digest; bytes are damaged")
    try:
        check_payload_kind(prefix.payload_format, bytes(payload[:16]))
    except ValueError as error:
        raise SegmentCorruptError(f"{title}: {error}") from None
    return prefix


def check_head(data: bytes, name: SegmentName, key: bytes | None) -> SegmentPrefix | int:
    """Header and manifest of a segment whose first bytes are there. It says how far a prompt goes with it, no more.

    Returns:
        what they say, or how many bytes are needed to know.

    Raises:
        As `check_segment`.
    """
    title = f"segment {name.key.hex()[:12]}"
    needed = len(data)

    def read(n_bytes: int, offset: int) -> bytes:
        nonlocal needed
        needed = max(needed, offset + n_bytes)
        return data[offset : offset + n_bytes]

    stated_bytes = HEADER.unpack_from(data)[4] if len(data) >= HEADER.size else len(data)
    try:
        prefix = read_prefix(read, stated_bytes, key, title)
    except SegmentCorruptError:
        if len(data) < needed <= stated_bytes:
            return needed
        raise
    _check_name(prefix, name, title)
    return prefix


def _check_name(prefix: SegmentPrefix, name: SegmentName, title: str) -> None:
    if name_of(prefix) != name:
        raise SegmentCorruptError(
            f"{title}: the object holds the segment {prefix.key.hex()[:12]}; objects were swapped"
        )
