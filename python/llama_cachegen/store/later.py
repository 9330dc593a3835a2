"""Saves on a thread of their own: a queue that is bounded in bytes, in the order they were asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple

from ..errors import StoreError, StoreQueueFullError
from .identity import CodecStamp, StoreIdentity
from .reports import Counters, SaveResult

__all__ = ["DEFAULT_QUEUE_BYTES", "Queued", "SaveQueue", "WhenFull"]

DEFAULT_QUEUE_BYTES = 1 << 30

WhenFull = Literal["refuse", "wait"]

_log = logging.getLogger(__name__)


class Queued(NamedTuple):
    """A save that is still to come, or in progress: what it will add to a chain."""

    identity: StoreIdentity
    codec: CodecStamp
    tokens: bytes
    pos_begin: int
    divisible: bool
    n_bytes: int


class SaveQueue:
    """One worker. Thread-safe.

    Args:
        max_bytes: payloads that wait or are being saved take no more.
        counters: of the store.
    """

    def __init__(self, max_bytes: int, counters: Counters) -> None:
        self.max_bytes = max_bytes
        self._counters = counters
        self._changed = threading.Condition()
        self._waiting: dict[int, Queued] = {}
        self._n_submitted = 0
        self._is_closed = False
        self._worker: ThreadPoolExecutor | None = None

    @property
    def n_bytes(self) -> int:
        """Of the payloads that wait or are being saved."""
        return sum(one.n_bytes for one in self._waiting.values())

    @property
    def waiting(self) -> list[Queued]:
        """What was not saved yet, in order."""
        with self._changed:
            return list(self._waiting.values())

    def submit(
        self,
        queued: Queued,
        take: Callable[[], None],
        save: Callable[[], SaveResult],
        when_full: WhenFull,
        timeout_s: float | None,
    ) -> Future[SaveResult]:
        """Save it after all that came before. `take` is called once there is room for it.

        Raises:
            StoreQueueFullError: there is no room for it, or none came in time.
            StoreError: the queue is closed.
        """
        with self._changed:
            self._make_room(queued.n_bytes, when_full, timeout_s)
            take()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="store-save")
            number = self._n_submitted
            self._n_submitted += 1
            self._waiting[number] = queued
            self._counters.n_queued += 1
            future = self._worker.submit(save)
        future.add_done_callback(lambda done: self._finished(number, done))
        return future

    def _make_room(self, n_bytes: int, when_full: WhenFull, timeout_s: float | None) -> None:
        if n_bytes > self.max_bytes:
            self._refuse(f"a payload of {n_bytes} bytes is larger than the whole queue of {self.max_bytes}")
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_closed and (over := self.n_bytes + n_bytes - self.max_bytes) > 0:
            left_s = None if until is None else until - time.monotonic()
            if when_full == "refuse" or (left_s is not None and left_s <= 0):
                self._refuse(f"{n_bytes} bytes are {over} more than the queue of {self.max_bytes} has room for")
            self._changed.wait(left_s)
        if self._is_closed:
            raise StoreError("the store is closed")

    def _refuse(self, what: str) -> None:
        self._counters.n_queue_refused += 1
        raise StoreQueueFullError(f"{what}; save it now, wait with when_full='wait', or raise queue_bytes")

    def _finished(self, number: int, future: Future[SaveResult]) -> None:
        with self._changed:
            del self._waiting[number]
            if future.cancelled():
                self._counters.n_queue_cancelled += 1
            elif (error := future.exception()) is not None:
                self._counters.n_queue_failed += 1
                _log.warning("a save on the store's thread failed: %s", error)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all that was submitted is saved, or failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Take nothing more, and wait for what was taken. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=True)
