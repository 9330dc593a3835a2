"""Questions by prompt: what the index knows of one, and the segments of it, opened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .chain import context_hash
from .core import StoreCore
from .explain import explain
from .identity import CodecStamp, StoreIdentity
from .index import Index, Root
from .later import Queued
from .lookup import continue_at, walk
from .parts import open_part, verify_part
from .reports import Found
from .room import note_uses
from .snapshot import Miss, Snapshot, SnapshotPart

__all__ = ["find", "missing_from", "take_snapshot"]

_MAX_UNNOTED_USES = 1024


def _roots_for(
    core: StoreCore, index: Index, identity: StoreIdentity, lossy: bool, codecs: Sequence[CodecStamp] | None
) -> list[Root]:
    """Roots that may answer, the better ones first: in the caller's order, or exact ones before lossy ones."""
    context = context_hash(identity, core._key)
    roots = [
        root
        for root in index.roots().values()
        if root.context == context
        and root.block_tokens == core.block_tokens
        and (root.codec.is_exact or lossy)
        and (codecs is None or root.codec in codecs)
    ]
    if codecs is not None:
        order = list(codecs)
        return sorted(roots, key=lambda root: order.index(root.codec))
    return sorted(roots, key=lambda root: (not root.codec.is_exact, root.id))


def find(
    core: StoreCore, identity: StoreIdentity, tokens: bytes, lossy: bool, codecs: Sequence[CodecStamp] | None
) -> Found:
    """The longest prefix of a prompt that the index knows, of the first root that has it.

    Raises:
        StoreError: the index cannot be used.
    """
    core._refresh()

    def question(index: Index) -> Found:
        best = Found([])
        for root in _roots_for(core, index, identity, lossy, codecs):
            chain = core._chain(root.root, tokens)
            found = Found(walk(index, chain), chain, root)
            if best.root is None or found.n_tokens > best.n_tokens:
                best = found
        return best

    return core._asking(question)


def missing_from(
    core: StoreCore, identity: StoreIdentity, codec: CodecStamp, tokens: bytes, waiting: Sequence[Queued] = ()
) -> int:
    """See `Store.missing_from`. `waiting` counts as there, in order."""
    found = find(core, identity, tokens, True, [codec])
    n_tokens = len(tokens) // 4
    if found.steps and found.n_tokens == n_tokens:
        return found.n_tokens
    available = continue_at(found.steps, core.block_tokens)[0]
    for one in waiting:
        if (one.identity, one.codec) == (identity, codec) and one.pos_begin <= available:
            n_saved = len(one.tokens) // 4
            n_common = _n_common(one.tokens, tokens)
            if n_common == n_saved == n_tokens:
                return n_tokens
            if n_common == n_saved or one.divisible:
                whole = n_common - n_common % core.block_tokens
                if one.divisible or whole == n_saved:
                    available = max(available, whole)
    return available


def _n_common(one: bytes, other: bytes) -> int:
    """Tokens that two rows of little-endian i32 begin with in common."""
    n = min(len(one), len(other)) // 4
    a, b = np.frombuffer(one, dtype="<i4", count=n), np.frombuffer(other, dtype="<i4", count=n)
    differs = np.flatnonzero(a != b)
    return int(differs[0]) if differs.size else n


def take_snapshot(
    core: StoreCore,
    identity: StoreIdentity,
    tokens: bytes,
    lossy: bool,
    codecs: Sequence[CodecStamp] | None,
    verify: bool,
) -> Snapshot:
    """See `Store.snapshot`."""
    found = find(core, identity, tokens, lossy, codecs)
    parts: list[SnapshotPart] = []
    miss: Miss | None = None
    try:
        block = 0
        for step in found.steps:
            assert found.chain is not None
            part, miss = open_part(core, step, found.chain, block)
            if part is not None:
                parts.append(part)
                if verify:
                    miss = verify_part(core, part)
                    if miss is not None:
                        parts.pop().close()
                block += part.n_tokens // core.block_tokens
            if miss is not None:
                break
        if miss is None and sum(part.n_tokens for part in parts) < len(tokens) // 4:
            miss = explain(core, identity, tokens, lossy, codecs, found, n_compared=1)
    except BaseException:
        for part in parts:
            part.close()
        raise
    if miss is None:
        core.counters.n_hits += 1
    elif parts:
        core.counters.n_partial += 1
    else:
        core.counters.n_misses += 1
    if core.mode == "w" and parts:
        now_ms = core._now_ms()
        core._uses.update((part.prefix.key, now_ms) for part in parts)
        if len(core._uses) > _MAX_UNNOTED_USES:
            note_uses(core)
    return Snapshot(parts, miss)
