"""Stops asking a tier that keeps failing, and tries again after a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Closed: calls pass. Open after so many failures in a row: none do. After a while one may try.

    Args:
        n_failures: in a row, that open it.
        open_s: seconds until one call may try; doubled after each failed trial, up to max_open_s.
        max_open_s: see there.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        n_failures: int = 3,
        open_s: float = 5.0,
        max_open_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = n_failures
        self._first_open_s = open_s
        self._max_open_s = max_open_s
        self._clock = clock
        self._mutex = threading.Lock()
        self._n_failures = 0
        self._open_s = open_s
        self._retry_at: float | None = None
        self._trial_until = 0.0
        self.n_opened = 0

    @property
    def is_open(self) -> bool:
        """Calls are refused, or only one is let through to try."""
        with self._mutex:
            return self._retry_at is not None

    def allows(self, timeout_s: float) -> bool:
        """Whether a call may be made now. One that tries an open breaker holds it for timeout_s at most."""
        with self._mutex:
            now = self._clock()
            if self._retry_at is None:
                return True
            if now < self._retry_at or now < self._trial_until:
                return False
            self._trial_until = now + timeout_s
            return True

    def succeeded(self) -> None:
        """The tier answered."""
        with self._mutex:
            self._n_failures = 0
            self._retry_at = None
            self._trial_until = 0.0
            self._open_s = self._first_open_s

    def failed(self) -> None:
        """It did not."""
        with self._mutex:
            self._n_failures += 1
            if self._retry_at is not None:
                self._open_s = min(2 * self._open_s, self._max_open_s)
            elif self._n_failures < self._limit:
                return
            else:
                self.n_opened += 1
            self._retry_at = self._clock() + self._open_s
            self._trial_until = 0.0
