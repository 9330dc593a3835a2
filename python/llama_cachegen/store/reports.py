"""What a store says of what it did and what it holds."""

from __future__ import annotations

import dataclasses

from .chain import Chain
from .identity import CodecStamp
from .index import Root
from .lookup import Step

__all__ = ["Counters", "Found", "Lookup", "SaveResult", "StoreStats"]


@dataclasses.dataclass
class Counters:
    """What a store did since it was opened.

    Attributes:
        n_saves, n_present, n_hits, n_partial, n_misses: saves that wrote and that found all there; snapshots of all,
            of some and of none of a prompt.
        payload_bytes_saved, bytes_written: bytes given to be saved, and bytes of the files written for them.
        payload_bytes_read: payloads mapped for reading.
        n_evicted, bytes_evicted, n_evicted_never_read, bytes_evicted_never_read: segments removed for want of room.
        n_quarantined: segments found damaged and put aside.
        n_unreadable: segments that the system refused to read, kept.
        n_refused: saves refused for want of room or disk.
        n_index_failures: times the index could not be used and was made anew.
        n_queued, n_queue_refused, n_queue_cancelled, n_queue_failed: saves given to the store's thread, refused for
            want of room in its queue, cancelled before they began, and failed.
        n_prefetched, bytes_prefetched: segments that the system was asked to read ahead.
    """

    n_saves: int = 0
    n_present: int = 0
    n_hits: int = 0
    n_partial: int = 0
    n_misses: int = 0
    payload_bytes_saved: int = 0
    bytes_written: int = 0
    payload_bytes_read: int = 0
    n_evicted: int = 0
    bytes_evicted: int = 0
    n_evicted_never_read: int = 0
    bytes_evicted_never_read: int = 0
    n_quarantined: int = 0
    n_unreadable: int = 0
    n_refused: int = 0
    n_index_failures: int = 0
    n_queued: int = 0
    n_queue_refused: int = 0
    n_queue_cancelled: int = 0
    n_queue_failed: int = 0
    n_prefetched: int = 0
    bytes_prefetched: int = 0

    @property
    def write_amplification(self) -> float | None:
        """Bytes written for each byte that was to be saved; None before the first save."""
        return self.bytes_written / self.payload_bytes_saved if self.payload_bytes_saved else None

    @property
    def written_per_read(self) -> float | None:
        """Payload bytes saved for each byte read; None before the first read."""
        return self.payload_bytes_saved / self.payload_bytes_read if self.payload_bytes_read else None

    def as_dict(self) -> dict[str, int | float | None]:
        """All of it, what is computed too, for JSON."""
        return {
            **dataclasses.asdict(self),
            "write_amplification": self.write_amplification,
            "written_per_read": self.written_per_read,
        }


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """What a store holds.

    Attributes:
        n_segments, n_bytes: segments; bytes of their files and of others that are kept beside them.
        n_never_read, bytes_never_read: of them, those that were not read since they were saved.
        n_pinned: segments that are never evicted.
        n_quarantined, bytes_quarantined: damaged ones, put aside; they count towards the budget.
        budget_bytes, min_free_bytes: limits; see `Store`.
        free_bytes: of the disk.
        is_low_on_disk: nothing is saved until more of the disk is free.
    """

    n_segments: int
    n_bytes: int
    n_never_read: int
    bytes_never_read: int
    n_pinned: int
    n_quarantined: int
    bytes_quarantined: int
    budget_bytes: int
    min_free_bytes: int
    free_bytes: int
    is_low_on_disk: bool


@dataclasses.dataclass(frozen=True)
class SaveResult:
    """A save.

    Attributes:
        key: name of the segment, hexadecimal.
        written: False if the store had all of it.
        file_bytes: of the segment.
        n_evicted: segments removed to make room.
    """

    key: str
    written: bool
    file_bytes: int
    n_evicted: int


@dataclasses.dataclass(frozen=True)
class Lookup:
    """What the index knows of a prompt. The segments themselves have not been read.

    Attributes:
        n_tokens: tokens of the prompt, from the first on, that the store has.
        keys: of the segments that hold them, hexadecimal, in order.
        codec: theirs; None if there is none.
    """

    n_tokens: int
    keys: tuple[str, ...]
    codec: CodecStamp | None


@dataclasses.dataclass
class Found:
    """What a walk through the index came to: of no root, nothing."""

    steps: list[Step]
    chain: Chain | None = None
    root: Root | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt that are there."""
        return sum(step.n_tokens for step in self.steps)
