"""A local store with tiers behind it, shared with other hosts or only slower or faster than the disk."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import StoreReadOnlyError
from ..core import as_bytes
from ..identity import CodecStamp, StoreIdentity
from ..index import Row
from ..reports import Lookup, SaveResult
from ..snapshot import Snapshot
from ..store import Store
from .behind import WriteBehind
from .fetching import FetchReport, fetch_chain
from .guard import GuardedTier, TierCounters, TierLimits
from .names import name_of_row
from .tier import Tier
from .uploading import Outcome, upload

__all__ = ["PushReport", "TieredStore"]

Tokens = Sequence[int] | NDArray[np.integer[Any]]


@dataclasses.dataclass
class PushReport:
    """Segments given to one tier, by what came of them; see `Outcome`."""

    tier: str
    outcomes: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """None failed."""
        return not self.outcomes.get(Outcome.FAILED.value)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.outcomes[outcome.value] = self.outcomes.get(outcome.value, 0) + 1


class TieredStore:
    """Asks the local store first, then the tiers in order, and keeps locally what they have. A context manager.

    Whatever happens to a tier, the local store works as without it: a failure is a miss within the deadline, counted.
    Several hosts, each with a store of its own, share a tier without a server of ours.

    Args:
        store: the local store, open for writing. It stays open when this is closed.
        tiers: in the order in which they are asked; each is guarded with the default limits unless it is a
            `GuardedTier` already.
        codecs: of the entries that tiers are asked for if a question names none; the first ones preferred.
        write: "through": a save returns when the tiers have the entry or have failed; "back": they get it afterwards;
            "none": tiers are only read.
        deadline_s: of all that one question asks of tiers.
        max_waiting: segments that wait to be written back; more are dropped, and counted.
        close_timeout_s: what `close` waits for those.

    Attributes:
        store, tiers: see above, guarded.

    Raises:
        StoreReadOnlyError: the store is open for reading.
        ValueError: a value is not possible.
    """

    def __init__(
        self,
        store: Store,
        tiers: Sequence[Tier | GuardedTier],
        *,
        codecs: Sequence[CodecStamp],
        write: Literal["through", "back", "none"] = "back",
        deadline_s: float = 5.0,
        max_waiting: int = 4096,
        close_timeout_s: float = 10.0,
    ) -> None:
        if store.mode != "w":
            raise StoreReadOnlyError(f"{store.path} was opened for reading; what tiers give could not be kept")
        if write not in ("through", "back", "none") or not deadline_s > 0 or max_waiting < 1 or close_timeout_s < 0:
            raise ValueError("write is 'through', 'back' or 'none'; deadline_s and max_waiting are more than 0")
        self.store = store
        self.tiers = tuple(one if isinstance(one, GuardedTier) else GuardedTier(one, TierLimits()) for one in tiers)
        self.deadline_s = deadline_s
        self._codecs = tuple(codecs)
        self._write = write
        self._close_timeout_s = close_timeout_s
        self._behind = WriteBehind(self._upload_to_all, max_waiting)

    # lookup

    def fetch(
        self,
        identity: StoreIdentity,
        tokens: Tokens,
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
        deadline_s: float | None = None,
    ) -> FetchReport:
        """Bring what the local store lacks of a prompt, as far as tiers have it.

        Args:
            identity, tokens, lossy: as `Store.lookup`.
            codecs: of the entries asked for; None: those given to the class.
            deadline_s: of all of it; None: the one given to the class.

        Returns:
            of the codec that goes furthest: what there was and what came. What tiers failed to give is counted there.

        Raises:
            As `Store.lookup`.
        """
        deadline = time.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        data = as_bytes(tokens)
        local = self.store.lookup(identity, tokens, lossy=lossy, codecs=codecs)
        best = FetchReport(local.n_tokens, local.n_tokens)
        for codec in self._codecs if codecs is None else codecs:
            if best.n_tokens == len(data) // 4:
                break
            if codec.is_exact or lossy:
                root = self.store._root(identity, codec)
                report = fetch_chain(self.store, root, data, self.tiers, deadline)
                if report.n_tokens > best.n_tokens or report.n_segments:
                    best = report
                best.is_late = best.is_late or report.is_late
                best.not_kept = best.not_kept or report.not_kept
        return best

    def snapshot(
        self,
        identity: StoreIdentity,
        tokens: Tokens,
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
        verify: bool = True,
        deadline_s: float | None = None,
    ) -> Snapshot:
        """`fetch`, then `Store.snapshot`: what the local store has now.

        Args and raises: as these.
        """
        self.fetch(identity, tokens, lossy=lossy, codecs=codecs, deadline_s=deadline_s)
        return self.store.snapshot(identity, tokens, lossy=lossy, codecs=codecs, verify=verify)

    def lookup(self, identity: StoreIdentity, tokens: Tokens, **options: Any) -> Lookup:
        """How much of a prompt is there after a `fetch`; options, and what it raises, as `Store.lookup`."""
        fetched = {name: value for name, value in options.items() if name in ("lossy", "codecs")}
        self.fetch(identity, tokens, **fetched)
        return self.store.lookup(identity, tokens, **options)

    # save

    def missing_from(self, identity: StoreIdentity, codec: CodecStamp, tokens: Tokens) -> int:
        """As `Store.missing_from`, after a `fetch`: what a tier has need not be computed, and is not saved twice."""
        self.fetch(identity, tokens, lossy=True, codecs=[codec])
        return self.store.missing_from(identity, codec, tokens)

    def save(
        self,
        identity: StoreIdentity,
        codec: CodecStamp,
        tokens: Tokens,
        payload: bytes | bytearray | memoryview,
        **options: Any,
    ) -> SaveResult:
        """As `Store.save`; then tiers get it, with what it continues as far as they lack it, as `write` says.

        Args and raises: as `Store.save`. No failure of a tier is raised; see `counters`.
        """
        result = self.store.save(identity, codec, tokens, payload, **options)
        self.offer(result.key)
        return result

    def offer(self, key: str) -> None:
        """Give tiers, as `write` says, what the local store got by `Session.save_to` or `Store.save_later`.

        Args:
            key: of the segment, hexadecimal. What it continues goes along.

        Raises:
            StoreError: the local store has no such segment, or is closed.
        """
        keys = self._path(key)
        if self._write == "back":
            self._behind.add(keys)
        elif self._write == "through":
            for tier in self.tiers:
                self._upload_path(keys, tier)

    def _path(self, key: str) -> list[bytes]:
        """Keys from the beginning of a chain to a segment."""
        with self.store._mutex:
            row: Row | None = self.store.entry(key)
            keys: list[bytes] = []
            while row is not None and row.key not in keys:
                keys.append(row.key)
                parent_key = row.parent_key or b""
                row = self.store._asking(lambda index, parent_key=parent_key: index.get(parent_key))  # type: ignore[misc]
        return keys[::-1]

    def _upload_path(self, keys: Sequence[bytes], tier: GuardedTier) -> PushReport:
        """Give a tier what it lacks of these."""
        report = PushReport(tier.title)
        store = self.store
        deadline = time.monotonic() + self.deadline_s
        with store._mutex:
            rows = [row for row in store._asking(lambda index: [index.get(key) for key in keys]) if row is not None]
        names = {row.key: name_of_row(row, store.block_tokens) for row in rows}
        there = tier.contains(list(names.values()), tier.deadline(deadline))
        for key, name in names.items():
            if there is not None and name in there and key != keys[-1] and tier.why_broken(name) is None:
                report.add(Outcome.PRESENT)
            elif there is None:
                report.add(Outcome.FAILED)
            else:
                report.add(upload(store, key, tier, tier.deadline()))
        return report

    def _upload_to_all(self, key: bytes) -> None:
        for tier in self.tiers:
            upload(self.store, key, tier, tier.deadline())

    def push(self, keys: Sequence[str] | None = None) -> list[PushReport]:
        """Give tiers local segments, now.

        Args:
            keys: hexadecimal; None: every segment.

        Returns:
            for each tier, what came of them.

        Raises:
            StoreError: the local store has no segment of a key, or is closed.
        """
        if keys is None:
            found = sorted((row.pos_begin, row.key) for row, _ in self.store.entries())
        else:
            found = sorted((row.pos_begin, row.key) for row in map(self.store.entry, keys))
        reports = []
        for tier in self.tiers:
            report = PushReport(tier.title)
            for _, key in found:
                report.add(upload(self.store, key, tier, tier.deadline()))
            reports.append(report)
        return reports

    # what happened

    @property
    def counters(self) -> dict[str, TierCounters]:
        """By the title of each tier."""
        return {tier.title: tier.counters for tier in self.tiers}

    @property
    def n_dropped(self) -> int:
        """Segments that were to be written back and found the queue full, or were left when it was closed."""
        return self._behind.n_dropped

    def flush(self, timeout_s: float) -> bool:
        """Wait until tiers have, or refused, all that was to be written back. Returns whether that came in time."""
        return self._behind.flush(timeout_s)

    def close(self) -> None:
        """Write back what waits, for close_timeout_s at most, and close the tiers. The store stays open."""
        self._behind.close(self._close_timeout_s)
        for tier in self.tiers:
            tier.close()

    def __enter__(self) -> TieredStore:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
