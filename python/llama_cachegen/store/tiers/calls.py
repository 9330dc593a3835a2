"""Calls that end by their deadline, whatever the library below them does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ...errors import TierTimeoutError

__all__ = ["BoundedCalls"]

_Answer = TypeVar("_Answer")


class _Outcome(Generic[_Answer]):
    """Of one call; the first to write it wins, and a caller that has left does not look."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.answer: _Answer
        self.error: BaseException | None = None


class BoundedCalls:
    """Runs calls on threads that may be left behind. A context's worth of them at a time, so that they do not pile up.

    The threads do not keep the process from ending.

    Args:
        max_calls: calls under way at a time, those left behind included.
        title: for messages.
    """

    def __init__(self, max_calls: int, title: str) -> None:
        self._free = threading.BoundedSemaphore(max_calls)
        self._max_calls = max_calls
        self._title = title
        self._mutex = threading.Lock()
        self._n_left_behind = 0

    @property
    def n_left_behind(self) -> int:
        """Calls whose caller has left and that have not ended."""
        with self._mutex:
            return self._n_left_behind

    def run(self, call: Callable[[], _Answer], timeout_s: float) -> _Answer:
        """The call's answer.

        Raises:
            TierTimeoutError: there was none in time, or no call ended that this one could follow.
            What the call raises.
        """
        deadline = time.monotonic() + timeout_s
        if not self._free.acquire(timeout=max(0.0, timeout_s)):
            raise TierTimeoutError(f"{self._title}: {self._max_calls} earlier calls have no answer yet")
        outcome: _Outcome[_Answer] = _Outcome()
        is_left = False

        def work() -> None:
            try:
                outcome.answer = call()
            except BaseException as error:
                outcome.error = error
            finally:
                outcome.is_done.set()
                with self._mutex:
                    self._n_left_behind -= is_left
                self._free.release()

        try:
            threading.Thread(target=work, name="store-tier", daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        if not outcome.is_done.wait(max(0.0, deadline - time.monotonic())):
            with self._mutex:
                if not outcome.is_done.is_set():
                    is_left = True
                    self._n_left_behind += 1
            if is_left:
                raise TierTimeoutError(f"{self._title}: no answer within {timeout_s:.3f} s")
        if outcome.error is not None:
            raise outcome.error
        return outcome.answer
