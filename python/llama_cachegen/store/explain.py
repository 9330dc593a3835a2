"""Why a store does not have all of a prompt: the first thing that differs, by name and with both values."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import MissReason, SegmentError
from . import layout
from .chain import context_hash
from .core import StoreCore
from .identity import CodecStamp, StoreIdentity, first_codec_difference, first_difference
from .index import Index, Root, Row
from .lookup import continue_at
from .reports import Found
from .segment import read_prefix, read_tokens
from .snapshot import Miss

__all__ = ["explain"]


def explain(
    core: StoreCore,
    identity: StoreIdentity,
    tokens: bytes,
    lossy: bool,
    codecs: Sequence[CodecStamp] | None,
    found: Found,
    *,
    n_compared: int,
) -> Miss:
    """Why a store has no more of a prompt than was found. The caller holds the store's mutex."""
    roots: list[Root] = list(core._asking(lambda index: list(index.roots().values())))
    live = core._asking(lambda index: [root for root in roots if index.beginnings(root.id, 1)])
    aside = _explain_quarantine(core, identity, tokens, roots, found)
    if aside is not None:
        return aside
    if found.root is not None and found.chain is not None:
        return _explain_tokens(core, found, tokens, n_compared)
    if not live:
        return Miss(MissReason.ABSENT, "", "the store holds no entry at all", 0)
    same = [root for root in live if first_difference(root.identity, identity) is None]
    if same:
        return _explain_codec(core, same, lossy, codecs)
    nearest = max(
        (one for root in live if (one := first_difference(root.identity, identity)) is not None),
        key=lambda difference: difference.rank,
    )
    return Miss(nearest.reason, nearest.field, nearest.detail, 0)


def _explain_codec(core: StoreCore, same: list[Root], lossy: bool, codecs: Sequence[CodecStamp] | None) -> Miss:
    allowed = [root for root in same if root.block_tokens == core.block_tokens]
    if not allowed:
        return Miss(MissReason.ABSENT, "block_tokens", f"all entries have blocks of {same[0].block_tokens} tokens", 0)
    have = ", ".join(root.codec.title for root in allowed)
    if not lossy and not any(root.codec.is_exact for root in allowed):
        return Miss(
            MissReason.EXACTNESS, "entry_class", f"all entries are lossy ({have}), an exact one was asked for", 0
        )
    differences = [
        difference
        for root in allowed
        for asked in codecs or ()
        if (difference := first_codec_difference(root.codec, asked)) is not None
    ]
    if not differences:
        return Miss(MissReason.CODEC, "codec", f"the entries are {have}; none of these was asked for", 0)
    nearest = max(differences, key=lambda difference: difference.rank)
    return Miss(nearest.reason, nearest.field, nearest.detail, 0)


def _explain_quarantine(
    core: StoreCore, identity: StoreIdentity, tokens: bytes, roots: list[Root], found: Found
) -> Miss | None:
    if not core._quarantined and not core._broken:
        return None
    context = context_hash(identity, core._key)
    for root in roots:
        if root.context != context or root.block_tokens != core.block_tokens:
            continue
        chain = core._chain(root.root, tokens)
        hashes = {value.hex(): i for i, value in enumerate(chain.hashes())}
        for note, _ in core._quarantined.values():
            place = hashes.get(note.first, hashes.get(note.key))
            if place is not None and place * core.block_tokens >= found.n_tokens - core.block_tokens:
                detail = f"the segment was put aside: {note.reason}"
                return Miss(MissReason.DAMAGED, "", detail, found.n_tokens)
    return None


def _explain_tokens(core: StoreCore, found: Found, tokens: bytes, n_compared: int) -> Miss:
    """The first token that differs from the entry that goes furthest, among the entries used last."""
    assert found.root is not None and found.chain is not None
    asked = np.frombuffer(tokens, dtype="<i4")
    position, last = continue_at(found.steps, core.block_tokens)
    root, before = found.root, found.chain.before(position // core.block_tokens)

    def candidates(index: Index) -> list[Row]:
        if last is None:
            return index.beginnings(root.id, n_compared)
        rows = [last]
        for key in index.children_of(last.key)[:n_compared]:
            row = index.get(key)
            if row is not None and row.parent == before:
                rows.append(row)
        return rows

    best: tuple[int, Miss] | None = None
    for row in core._asking(candidates):
        with contextlib.suppress(OSError, SegmentError):
            have = _tokens_of(core, row)
            want = asked[row.pos_begin : row.pos_begin + len(have)]
            differs = np.flatnonzero(have[: len(want)] != want)
            at = row.pos_begin + (int(differs[0]) if differs.size else len(want))
            if best is not None and best[0] >= at:
                continue
            if differs.size:
                expected, actual = int(asked[at]), int(have[at - row.pos_begin])
                detail = f"token {at} is {expected} in the prompt and {actual} in the entry that goes furthest"
            elif at < len(asked):
                detail = f"the store's entry that goes furthest ends at token {at}, the prompt has {len(asked)}"
            else:
                detail = f"the prompt ends at token {at}, within a block or a segment that can be used as a whole only"
            best = (at, Miss(MissReason.TOKENS, "tokens", detail, found.n_tokens))
    if best is None:
        return Miss(MissReason.ABSENT, "tokens", f"no entry goes on after token {found.n_tokens}", found.n_tokens)
    return best[1]


def _tokens_of(core: StoreCore, row: Row) -> NDArray[np.int32]:
    name = layout.segment_name(row.key)
    files = core._files
    fd = files.open_read(name)
    try:

        def read(n_bytes: int, offset: int) -> bytes:
            return files.read(fd, n_bytes, offset)

        prefix = read_prefix(read, files.facts_of(fd).size, core._key, name)
        return read_tokens(prefix, read, core._key, name)
    finally:
        files.close_file(fd)
