"""Segments in this host's memory, the ones used longest ago going first."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence

from ...errors import TierDamagedError, TierFullError, TierMissingError
from .names import SegmentName

__all__ = ["MemoryTier"]


class MemoryTier:
    """A tier of at most so many bytes of memory.

    Args:
        budget_bytes: of the segments; names and tables come on top.
    """

    is_near = True

    def __init__(self, budget_bytes: int) -> None:
        if budget_bytes < 0:
            raise ValueError("a size is negative")
        self.title = "memory"
        self.budget_bytes = budget_bytes
        self._mutex = threading.Lock()
        self._data: collections.OrderedDict[SegmentName, bytes] = collections.OrderedDict()
        self._groups: dict[str, set[SegmentName]] = {}
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """Of the segments held."""
        with self._mutex:
            return self._n_bytes

    def _find(self, name: SegmentName) -> bytes:
        data = self._data.get(name)
        if data is None:
            raise TierMissingError(f"{self.title} has no {name.path}")
        self._data.move_to_end(name)
        return data

    def _drop(self, name: SegmentName) -> None:
        self._n_bytes -= len(self._data.pop(name))
        group = self._groups[name.group]
        group.remove(name)
        if not group:
            del self._groups[name.group]

    def head(self, name: SegmentName, n_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        with self._mutex:
            return self._find(name)[:n_bytes]

    def get(self, name: SegmentName, max_bytes: int, *, timeout_s: float) -> bytes:
        """See `Tier`."""
        with self._mutex:
            data = self._find(name)
        if len(data) > max_bytes:
            raise TierDamagedError(f"{self.title}: {name.path} has {len(data)} bytes, more than {max_bytes}")
        return data

    def put(self, name: SegmentName, data: bytes, *, replace: bool, timeout_s: float) -> bool:
        """See `Tier`."""
        with self._mutex:
            if name in self._data:
                if not replace:
                    self._data.move_to_end(name)
                    return False
                self._drop(name)
            if len(data) > self.budget_bytes:
                raise TierFullError(f"{len(data)} bytes do not fit into the {self.budget_bytes} of {self.title}")
            while self._n_bytes + len(data) > self.budget_bytes:
                self._drop(next(iter(self._data)))
            self._data[name] = data
            self._groups.setdefault(name.group, set()).add(name)
            self._n_bytes += len(data)
            return True

    def contains(self, names: Sequence[SegmentName], *, timeout_s: float) -> set[SegmentName]:
        """See `Tier`."""
        with self._mutex:
            return {name for name in names if name in self._data}

    def list_group(self, group: str, limit: int, *, timeout_s: float) -> list[SegmentName]:
        """See `Tier`."""
        with self._mutex:
            return sorted(self._groups.get(group, ()))[:limit]

    def delete(self, name: SegmentName, *, timeout_s: float) -> None:
        """See `Tier`."""
        with self._mutex:
            if name in self._data:
                self._drop(name)

    def close(self) -> None:
        """See `Tier`."""
        with self._mutex:
            self._data.clear()
            self._groups.clear()
            self._n_bytes = 0
