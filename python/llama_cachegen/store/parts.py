"""Opening one segment of a snapshot, with all that can be wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..errors import MissReason, SegmentCorruptError, SegmentError
from . import layout, recovery
from .aside import found_damaged
from .chain import Chain
from .core import StoreCore
from .files import FileFacts, LinkError
from .lookup import Step, common_tokens
from .segment import SegmentPrefix, read_prefix, read_tokens
from .snapshot import Miss, SnapshotPart

__all__ = ["open_part", "verify_part"]


def verify_part(core: StoreCore, part: SnapshotPart) -> Miss | None:
    """Compare the digest of a part's payload. Returns the miss if it cannot be used."""
    try:
        part.payload  # noqa: B018
    except SegmentCorruptError as error:
        return Miss(MissReason.DAMAGED, "", str(error), part.pos_begin)
    except (OSError, MemoryError) as error:
        core.counters.n_unreadable += 1
        return Miss(MissReason.UNREADABLE, "", f"{error}; the segment is kept", part.pos_begin)
    return None


def open_part(core: StoreCore, step: Step, chain: Chain, block: int) -> tuple[SnapshotPart | None, Miss | None]:
    """Open a segment and check all but its payload."""
    key = step.row.key
    name = layout.segment_name(key)
    position = block * core.block_tokens
    files = core._files
    fd = -1
    try:
        fd = files.open_read(name)
        facts = files.facts_of(fd)
        broken = core._broken.get(key)
        if broken is not None and broken[0] == facts:
            raise SegmentCorruptError(broken[1])

        def read(n_bytes: int, offset: int) -> bytes:
            return files.read(fd, n_bytes, offset)

        prefix = read_prefix(read, facts.size, core._key, name)
        recovery.check_name(prefix, name)
        tokens = read_tokens(prefix, read, core._key, name)
        n_tokens = min(step.n_tokens, common_tokens(prefix.chain, prefix.n_tokens, chain, block))
        if (
            prefix.parent != chain.before(block)
            or n_tokens == 0
            or not (prefix.divisible or n_tokens == prefix.n_tokens)
        ):
            # another segment took the name since the index was asked
            files.close_file(fd)
            return None, Miss(MissReason.ABSENT, "", f"{name} was replaced meanwhile", position)
    except (SegmentCorruptError, LinkError) as error:
        broken_facts = None
        if fd >= 0:
            with contextlib.suppress(OSError):
                broken_facts = files.facts_of(fd)
            files.close_file(fd)
        found_damaged(core, key, broken_facts, str(error), step.row.first)
        return None, Miss(MissReason.DAMAGED, "", str(error), position)
    except FileNotFoundError:
        if core.mode == "w":
            with core._changing() as index:
                index.remove(key)
        return None, Miss(MissReason.ABSENT, "", f"{name} is gone", position)
    except (OSError, MemoryError, SegmentError) as error:
        if fd >= 0:
            files.close_file(fd)
        core.counters.n_unreadable += 1
        return None, Miss(MissReason.UNREADABLE, "", f"{name}: {error}; the segment is kept", position)
    except BaseException:
        if fd >= 0:
            files.close_file(fd)
        raise
    part = SnapshotPart(
        prefix, tokens, n_tokens, fd, read, core._key, _damaged_part(core, prefix, facts), _counted(core)
    )
    if n_tokens < step.n_tokens:
        return part, Miss(MissReason.ABSENT, "", f"{name} was replaced meanwhile", position + n_tokens)
    return part, None


def _counted(core: StoreCore) -> Callable[[int], None]:
    def counted(n_bytes: int) -> None:
        core.counters.payload_bytes_read += n_bytes

    return counted


def _damaged_part(core: StoreCore, prefix: SegmentPrefix, facts: FileFacts) -> Callable[[SegmentCorruptError], None]:
    def damaged(error: SegmentCorruptError) -> None:
        with core._mutex:
            if core._index is not None:
                found_damaged(core, prefix.key, facts, str(error), prefix.first)

    return damaged
