"""What a tier is: a place that holds segments by name, and may fail at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .names import SegmentName

__all__ = ["Tier"]


class Tier(Protocol):
    """Holds segments by name. Its methods may be called from several threads.

    Every call gets `timeout_s`, the seconds that are left for it, and gives up by then as well as its library can;
    `GuardedTier` holds to them whatever it does. What a tier gives is not trusted: see `check_segment`.

    Every method raises, besides what it says itself:
        TierUnavailableError: it failed, and may succeed later.

    Attributes:
        title: for people and metrics, for example "s3://bucket/prefix"; no secrets.
        is_near: in this host's memory: what farther tiers give is kept there too.
    """

    title: str
    is_near: bool

    def head(self, name: SegmentName, n_bytes: int, *, timeout_s: float) -> bytes:
        """The first bytes of a segment; fewer only if it has no more.

        Raises:
            TierMissingError: there is none of that name.
            TierDamagedError: what is there is not complete.
        """
        ...

    def get(self, name: SegmentName, max_bytes: int, *, timeout_s: float) -> bytes:
        """All of a segment.

        Raises:
            TierMissingError: there is none of that name.
            TierDamagedError: what is there is not complete, or has more than max_bytes, which are then not read.
        """
        ...

    def put(self, name: SegmentName, data: bytes, *, replace: bool, timeout_s: float) -> bool:
        """Store a segment, so that others see all of it or nothing.

        Args:
            name: see above.
            data: all of its bytes.
            replace: take the place of what has the name; otherwise the first one keeps it.

        Returns:
            whether these bytes are there now; False: the name was taken.

        Raises:
            TierFullError: there is no room for it.
        """
        ...

    def contains(self, names: Sequence[SegmentName], *, timeout_s: float) -> set[SegmentName]:
        """Which of these are there, as far as their names tell."""
        ...

    def list_group(self, group: str, limit: int, *, timeout_s: float) -> list[SegmentName]:
        """Up to `limit` segments of a group, in no order. Some may be gone meanwhile."""
        ...

    def delete(self, name: SegmentName, *, timeout_s: float) -> None:
        """Remove a segment; nothing happens if there is none of that name."""
        ...

    def close(self) -> None:
        """Give connections and memory back. A second call does nothing."""
        ...
