"""A tier behind deadlines, bounded retries, a circuit breaker and a memory of what was broken.

Nothing it is asked raises a TierError: a failure is a miss, counted.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import (
    TierDamagedError,
    TierError,
    TierFullError,
    TierMissingError,
    TierTimeoutError,
    TierUnavailableError,
)
from .breaker import Breaker
from .calls import BoundedCalls
from .names import SegmentName
from .tier import Tier

__all__ = ["GuardedTier", "TierCounters", "TierLimits"]

_log = logging.getLogger(__name__)
_MAX_BROKEN = 4096

_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True)
class TierLimits:
    """How patient a tier's guard is.

    Attributes:
        deadline_s: for one question or transfer, all attempts and pauses included.
        n_attempts: of one call; the later ones only after TierUnavailableError.
        pause_s: before the second attempt; doubled before each further one.
        max_calls: calls under way at a time.
        breaker_failures, breaker_open_s: failures in a row after which the tier is not asked, and how long at first.
        broken_s: how long a segment found broken is not asked for again.
        max_object_bytes: larger segments are neither read nor written.

    Raises:
        ValueError: a value is not possible.
    """

    deadline_s: float = 2.0
    n_attempts: int = 3
    pause_s: float = 0.05
    max_calls: int = 8
    breaker_failures: int = 3
    breaker_open_s: float = 5.0
    broken_s: float = 600.0
    max_object_bytes: int = 1 << 32

    def __post_init__(self) -> None:
        counts = (self.n_attempts, self.max_calls, self.breaker_failures, self.max_object_bytes)
        if min(counts) < 1 or not self.deadline_s > 0 or min(self.pause_s, self.breaker_open_s, self.broken_s) < 0:
            raise ValueError(f"{self} is not possible")


@dataclasses.dataclass
class TierCounters:
    """What a tier was asked since it was opened, and what came of it.

    Attributes:
        n_gets, n_hits, n_absent: segments asked for; that came; that the tier said it does not have.
        n_puts, n_present, n_full: segments given; that were there; for which there was no room.
        n_timeouts, n_failures, n_retries: calls without an answer in time; that failed; attempts after the first.
        n_not_asked: calls not made, as the tier kept failing.
        n_broken, n_unreadable: segments that came and were refused: damaged, forged or incomplete; of another version
            or key.
        n_known_broken: questions answered by the memory of that.
        n_replaced: broken segments of the tier that sound ones took the place of.
        n_lost_races: segments another host had put there first; its bytes were taken over.
        bytes_got, bytes_put: of segments.
    """

    n_gets: int = 0
    n_hits: int = 0
    n_absent: int = 0
    n_puts: int = 0
    n_present: int = 0
    n_full: int = 0
    n_timeouts: int = 0
    n_failures: int = 0
    n_retries: int = 0
    n_not_asked: int = 0
    n_broken: int = 0
    n_unreadable: int = 0
    n_known_broken: int = 0
    n_replaced: int = 0
    n_lost_races: int = 0
    bytes_got: int = 0
    bytes_put: int = 0


class GuardedTier:
    """A tier, guarded. Its methods may be called from several threads.

    Args:
        tier: see above.
        limits: see there.
        clock: seconds, monotonic.

    Attributes:
        counters: what was asked and what came of it.
        last_error: the latest failure in words, "" if there was none.
    """

    def __init__(
        self, tier: Tier, limits: TierLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tier = tier
        self.limits = limits or TierLimits()
        self.counters = TierCounters()
        self.last_error = ""
        self._clock = clock
        self._calls = BoundedCalls(self.limits.max_calls, tier.title)
        self._breaker = Breaker(self.limits.breaker_failures, self.limits.breaker_open_s, clock=clock)
        self._mutex = threading.Lock()
        self._broken: collections.OrderedDict[SegmentName, tuple[float, str]] = collections.OrderedDict()

    @property
    def title(self) -> str:
        """Of the tier."""
        return self.tier.title

    @property
    def is_near(self) -> bool:
        """In this host's memory."""
        return self.tier.is_near

    @property
    def is_open(self) -> bool:
        """The tier kept failing and is not asked, but for a trial now and then."""
        return self._breaker.is_open

    def deadline(self, at_most: float | None = None) -> float:
        """When a question asked now has to be answered, on this guard's clock; not later than at_most."""
        own = self._clock() + self.limits.deadline_s
        return own if at_most is None else min(own, at_most)

    def count(self, **changes: int) -> None:
        """Add to counters."""
        with self._mutex:
            for name, n in changes.items():
                setattr(self.counters, name, getattr(self.counters, name) + n)

    # what was broken

    def mark_broken(self, name: SegmentName, why: str) -> None:
        """Do not ask for a segment again for a while."""
        _log.warning("%s: %s; it is not asked for again for %g s", self.title, why, self.limits.broken_s)
        with self._mutex:
            self.last_error = why
            self._broken[name] = (self._clock() + self.limits.broken_s, why)
            self._broken.move_to_end(name)
            while len(self._broken) > _MAX_BROKEN:
                self._broken.popitem(last=False)

    def why_broken(self, name: SegmentName) -> str | None:
        """Why a segment is not asked for; None if it is."""
        with self._mutex:
            found = self._broken.get(name)
            if found is None:
                return None
            if found[0] <= self._clock():
                del self._broken[name]
                return None
            return found[1]

    # questions

    def head(self, name: SegmentName, n_bytes: int, deadline: float) -> bytes | None:
        """The first bytes of a segment, None if there are none to be had in time."""
        try:
            return self._ask(lambda rest: self.tier.head(name, n_bytes, timeout_s=rest), deadline)
        except TierDamagedError as error:
            self.count(n_broken=1)
            self.mark_broken(name, str(error))
        except TierError:
            pass
        return None

    def get(self, name: SegmentName, deadline: float) -> bytes | None:
        """All of a segment, None if it is not to be had in time, or known to be broken."""
        if self.why_broken(name) is not None:
            self.count(n_known_broken=1)
            return None
        self.count(n_gets=1)
        limit = self.limits.max_object_bytes
        try:
            data = self._ask(lambda rest: self.tier.get(name, limit, timeout_s=rest), deadline)
        except TierMissingError:
            self.count(n_absent=1)
            return None
        except TierDamagedError as error:
            self.count(n_broken=1)
            self.mark_broken(name, str(error))
            return None
        except TierError:
            return None
        self.count(n_hits=1, bytes_got=len(data))
        return data

    def put(self, name: SegmentName, data: bytes, deadline: float, *, replace: bool = False) -> bool | None:
        """Store a segment: True if its bytes are there now, False if the name was taken, None if it failed."""
        self.count(n_puts=1)
        if len(data) > self.limits.max_object_bytes:
            self.count(n_full=1)
            return None
        try:
            is_written = self._ask(lambda rest: self.tier.put(name, data, replace=replace, timeout_s=rest), deadline)
        except TierFullError:
            self.count(n_full=1)
            return None
        except TierError:
            return None
        if is_written:
            self.count(bytes_put=len(data))
            with self._mutex:
                self._broken.pop(name, None)
        else:
            self.count(n_present=1)
        return is_written

    def contains(self, names: Sequence[SegmentName], deadline: float) -> set[SegmentName] | None:
        """Which of these are there, None if there is no answer in time."""
        try:
            return self._ask(lambda rest: self.tier.contains(names, timeout_s=rest), deadline)
        except TierError:
            return None

    def list_group(self, group: str, limit: int, deadline: float) -> list[SegmentName]:
        """Segments of a group that are not known to be broken, none if there is no answer in time."""
        try:
            found = self._ask(lambda rest: self.tier.list_group(group, limit, timeout_s=rest), deadline)
        except TierError:
            return []
        sound = [name for name in found if name.group == group and self.why_broken(name) is None]
        self.count(n_known_broken=len(found) - len(sound))
        return sound

    def delete(self, name: SegmentName, deadline: float) -> bool:
        """Remove a segment. Returns whether the tier said it is gone."""
        try:
            self._ask(lambda rest: self.tier.delete(name, timeout_s=rest), deadline)
        except TierError:
            return False
        return True

    def close(self) -> None:
        """Close the tier, if it does so by its deadline."""
        try:
            self._calls.run(self.tier.close, self.limits.deadline_s)
        except Exception as error:
            self._failed(error)

    # calls

    def _failed(self, error: Exception) -> None:
        with self._mutex:
            self.last_error = str(error)
        _log.info("%s: %s", self.title, error)

    def _ask(self, call: Callable[[float], _Answer], deadline: float) -> _Answer:
        """The answer of a call that is given the seconds left.

        Raises:
            TierError: there is none; counted.
        """
        pause_s = self.limits.pause_s
        for attempt in range(1, self.limits.n_attempts + 1):
            rest = deadline - self._clock()
            if rest <= 0:
                self.count(n_timeouts=1)
                raise TierTimeoutError(f"{self.title}: the deadline has passed")
            if not self._breaker.allows(rest):
                self.count(n_not_asked=1)
                raise TierUnavailableError(f"{self.title} kept failing and is not asked for a while")
            self.count(n_retries=attempt > 1)
            try:
                answer = self._calls.run(lambda rest=rest: call(rest), rest)  # type: ignore[misc]
                self._breaker.succeeded()
                return answer
            except (TierMissingError, TierFullError, TierDamagedError) as error:
                self._breaker.succeeded()  # it answered
                if not isinstance(error, TierMissingError):
                    self._failed(error)
                raise
            except TierTimeoutError as error:
                self._breaker.failed()
                self.count(n_timeouts=1)
                self._failed(error)
                raise
            except Exception as error:
                self._breaker.failed()
                self.count(n_failures=1)
                self._failed(error)
                if attempt == self.limits.n_attempts or self._clock() + pause_s >= deadline:
                    raise TierUnavailableError(f"{self.title}: {error}") from error
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")
