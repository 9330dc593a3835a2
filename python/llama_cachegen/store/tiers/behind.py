"""Segments on their way to tiers while the caller goes on: a bounded queue of their keys, and one thread."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable

__all__ = ["WriteBehind"]

_log = logging.getLogger(__name__)


class WriteBehind:
    """Hands keys, one after another, to a function on a thread of its own. Keys are all that waits; bytes stay on disk.

    Args:
        work: called with each key.
        max_keys: that wait at a time; more are dropped, and counted.

    Attributes:
        n_dropped: keys that found no room.
    """

    def __init__(self, work: Callable[[bytes], None], max_keys: int) -> None:
        self._work = work
        self._max_keys = max_keys
        self._keys: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.n_dropped = 0

    @property
    def n_waiting(self) -> int:
        """Keys that wait or are under way."""
        with self._changed:
            return len(self._keys) + self._is_busy

    def add(self, keys: list[bytes]) -> None:
        """Queue keys; one that waits already does so once."""
        with self._changed:
            for key in keys:
                if self._is_closed or (key not in self._keys and len(self._keys) >= self._max_keys):
                    self.n_dropped += 1
                    _log.warning("segment %s waits for no tier: the queue is full or closed", key.hex()[:12])
                else:
                    self._keys[key] = None
            if self._thread is None and self._keys:
                self._thread = threading.Thread(target=self._run, name="store-write-behind", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while not self._keys:
                    if self._is_closed:
                        return
                    self._changed.wait()
                key, _ = self._keys.popitem(last=False)
                self._is_busy = True
            try:
                self._work(key)
            except Exception:
                _log.exception("segment %s was given to no tier", key.hex()[:12])

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing waits. Returns whether that came in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._keys or self._is_busy:
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                self._changed.wait(rest)
        return True

    def close(self, timeout_s: float) -> bool:
        """Flush, take nothing more, and end the thread. What is left after that is dropped, and counted."""
        is_done = self.flush(timeout_s)
        with self._changed:
            self._is_closed = True
            self.n_dropped += len(self._keys)
            self._keys.clear()
            self._changed.notify_all()
        return is_done
