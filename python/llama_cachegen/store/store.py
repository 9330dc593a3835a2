"""A directory of durable pages: one writer, many readers, prefixes shared."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from . import asking, contents, layout, recovery, room, saving
from .chain import DEFAULT_BLOCK_TOKENS, HASH_BYTES
from .core import StoreCore, as_bytes
from .explain import explain
from .files import Files
from .identity import CodecStamp, StoreIdentity
from .index import Root, Row
from .later import DEFAULT_QUEUE_BYTES, Queued, SaveQueue, WhenFull
from .opening import open_core
from .prefetch import Prefetch, start_prefetch
from .reports import Counters, Lookup, SaveResult, StoreStats
from .saving import Progress
from .segment import MAX_BLOCK_TOKENS, MeasuredError, PayloadFormat, SegmentPrefix, check_payload_kind
from .snapshot import Miss, Snapshot
from .verify import VerifyReport, verify

__all__ = ["Counters", "Lookup", "SaveResult", "Store", "StoreStats"]

DEFAULT_BUDGET_BYTES = 32 << 30
DEFAULT_MIN_FREE_BYTES = 1 << 30
_MAX_COMPARED = 64
"""Entries whose tokens `why_miss` reads to find the one that goes furthest; a snapshot reads those of one."""

Tokens = Sequence[int] | NDArray[np.integer[Any]]


class Store(StoreCore):
    """A store, open. A context manager; its methods may be called from several threads.

    Args:
        path: its directory, made with mode 0700 if mode is "w" and there is none.
        mode: "w": the one writer; "r": a reader that changes nothing, for example on a read-only mount.
        budget_bytes: what its files may take. Entries used longest ago go first.
        min_free_bytes: what is left free of the disk; with less, nothing is saved.
        block_tokens: tokens of a block of a new store: prompts share whole blocks.
        key: 32 bytes that key every digest and name, for a store on a disk that others can write to.
        lock_timeout_s: seconds to wait for another writer.
        queue_bytes: payloads that wait for the store's thread take no more; see `save_later`.
        rebuild_progress: progress(n_done, n_total), in directories, if the index has to be made anew. What it raises
            ends the opening.
        make_files: the file layer.
        clock: seconds since 1970.

    Raises:
        StoreMissingError, StoreLayoutError, StoreVersionError, StoreKeyError, StoreLockedError, StoreReadOnlyError:
            see there.
        ValueError: a size is negative, or the key has not 32 bytes.
        OSError: the system refuses.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["r", "w"] = "w",
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        min_free_bytes: int = DEFAULT_MIN_FREE_BYTES,
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
        key: bytes | None = None,
        lock_timeout_s: float = 0.0,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        rebuild_progress: Progress | None = None,
        make_files: Callable[[str], Files] = Files,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if mode not in ("r", "w"):
            raise ValueError(f"mode {mode!r}; choose 'r' or 'w'")
        if budget_bytes < 0 or min_free_bytes < 0 or queue_bytes < 0:
            raise ValueError("a size is negative")
        if not 1 <= block_tokens <= MAX_BLOCK_TOKENS:
            raise ValueError(f"blocks of {block_tokens} tokens are not possible; 1 to {MAX_BLOCK_TOKENS} are")
        if key is not None and len(key) != HASH_BYTES:
            raise ValueError(f"the key has {len(key)} bytes; {HASH_BYTES} are needed")
        self.path = os.path.expanduser(os.fsdecode(path))
        self.mode = mode
        self.budget_bytes = budget_bytes
        self.min_free_bytes = min_free_bytes
        self.counters = Counters()
        self._key = key
        self._clock = clock
        self._mutex = threading.RLock()
        self._changes = threading.RLock()
        self._queue = SaveQueue(queue_bytes, self.counters)
        self._prefetches: weakref.WeakSet[Prefetch] = weakref.WeakSet()
        self._uses = {}
        self._broken = {}
        self._quarantined = {}
        self._lock = None
        self._index = None
        self._files = layout.open_root(self.path, make_files, create=mode == "w", is_keyed=key is not None)
        try:
            open_core(self, block_tokens=block_tokens, lock_timeout_s=lock_timeout_s, progress=rebuild_progress)
        except BaseException:
            self.close()
            raise

    @property
    def is_keyed(self) -> bool:
        """Its digests are keyed."""
        return self._key is not None

    # lookup

    def lookup(
        self,
        identity: StoreIdentity,
        tokens: Tokens,
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
    ) -> Lookup:
        """How much of a prompt the store has, by the index alone.

        Args:
            identity: of the context that asks.
            tokens: of the prompt.
            lossy: whether lossy entries may answer; exact ones always may.
            codecs: only entries of these, the first ones preferred; None: of any.

        Raises:
            ValueError: the tokens are no row of 32-bit integers.
            StoreError: the store is closed, or its index cannot be made.
        """
        with self._mutex:
            found = asking.find(self, identity, as_bytes(tokens), lossy, codecs)
            return Lookup(
                found.n_tokens,
                tuple(step.row.key.hex() for step in found.steps),
                found.root.codec if found.root and found.steps else None,
            )

    def missing_from(
        self, identity: StoreIdentity, codec: CodecStamp, tokens: Tokens, *, with_queued: bool = False
    ) -> int:
        """Where an entry has to begin so that the store has all of these tokens with it: `pos_begin` of `save`.

        Args:
            identity, codec, tokens: of the entry.
            with_queued: what `save_later` has taken and not saved yet counts as there: for another `save_later`.

        Returns:
            a multiple of block_tokens, or the number of tokens if nothing is missing.

        Raises:
            As `lookup`.
        """
        with self._mutex:
            data = as_bytes(tokens)
            # asked first: what is saved in between is then in the index
            waiting = self._queue.waiting if with_queued else []
            return asking.missing_from(self, identity, codec, data, waiting)

    def snapshot(
        self,
        identity: StoreIdentity,
        tokens: Tokens,
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
        verify: bool = True,
    ) -> Snapshot:
        """Open what the store has of a prompt.

        A damaged segment is put aside and ends the prefix before it; one that the system refuses to read ends it too,
        and is kept. `Snapshot.miss` says which.

        Args:
            identity, tokens, lossy, codecs: as `lookup`.
            verify: compare the digest of every payload now, not when it is first asked for.

        Raises:
            As `lookup`.
        """
        with self._mutex:
            return asking.take_snapshot(self, identity, as_bytes(tokens), lossy, codecs, verify)

    # why not

    def why_miss(
        self,
        identity: StoreIdentity,
        tokens: Tokens,
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
    ) -> Miss | None:
        """Why the store does not have all of a prompt; None if it has. The first field that differs is named.

        Args and raises: as `lookup`.
        """
        with self._mutex:
            data = as_bytes(tokens)
            found = asking.find(self, identity, data, lossy, codecs)
            if found.n_tokens == len(data) // 4 and found.steps:
                return None
            return explain(self, identity, data, lossy, codecs, found, n_compared=_MAX_COMPARED)

    # save

    def save(
        self,
        identity: StoreIdentity,
        codec: CodecStamp,
        tokens: Tokens,
        payload: bytes | bytearray | memoryview,
        *,
        pos_begin: int = 0,
        payload_format: PayloadFormat,
        decoded_bytes: int,
        component_types: dict[str, str],
        divisible: bool = True,
        measured_error: Sequence[MeasuredError] = (),
        progress: Progress | None = None,
    ) -> SaveResult:
        """Save the page of tokens[pos_begin:]. When it returns, the entry lasts; before, there is none of it.

        Args:
            identity, codec: of the entry.
            tokens: all tokens from position 0 on.
            payload: a page file or an archive of tokens[pos_begin:], as bytes.
            pos_begin: see `missing_from`.
            payload_format: "page", "archive-page" or "lcg3".
            decoded_bytes: native bytes it decodes to.
            component_types: ggml types by kind.
            divisible: False if only all of the payload can be restored.
            measured_error: of a lossy entry.
            progress: progress(n_done, n_total), in bytes of the file, before each piece is written and at the end.
                What it raises ends the save; nothing is saved then.

        Raises:
            StoreChainError: what is before pos_begin is not in the store, or more is; ask `missing_from` again.
            StoreFullError: it does not fit into the budget, with all gone that may go.
            StoreLowDiskError: less of the disk would be left free than has to be.
            StoreReadOnlyError: mode "r", or a read-only mount.
            ValueError: a value is not possible.
            OSError: the system refuses; nothing was saved.
        """
        facts = saving.PayloadFacts(payload_format, decoded_bytes, component_types, divisible, measured_error)
        data = as_bytes(tokens)
        view = memoryview(payload).cast("B")
        with self._changes:
            return saving.save(self, identity, codec, data, view, pos_begin, facts, progress)

    def save_later(
        self,
        identity: StoreIdentity,
        codec: CodecStamp,
        tokens: Tokens,
        payload: bytes | bytearray | memoryview,
        *,
        pos_begin: int = 0,
        payload_format: PayloadFormat,
        decoded_bytes: int,
        component_types: dict[str, str],
        divisible: bool = True,
        measured_error: Sequence[MeasuredError] = (),
        progress: Progress | None = None,
        when_full: WhenFull = "refuse",
        wait_timeout_s: float | None = None,
        copy: bool = True,
    ) -> Future[SaveResult]:
        """Save it on the store's own thread, after all that came before. Returns as soon as it has the payload.

        The page is that of the positions it was exported from, whatever is evaluated afterwards. An entry may continue
        one that still waits: ask `missing_from(..., with_queued=True)`; if that one fails, this one does too, with
        StoreChainError. Failures are raised by the future's `result()`, counted, and logged. `close` waits for all of
        them. A future can be cancelled until its save begins. While a save waits for the disk, lookups go on.

        Args:
            when_full: if the payloads that wait would take more than queue_bytes: "refuse", or "wait" for room.
            wait_timeout_s: wait no longer.
            copy: copy a payload that is not `bytes`, so that the caller may change it. False: it stays as it is until
                the future is done.
            The others: as `save`; progress is called on the store's thread.

        Raises:
            StoreQueueFullError: there is no room in the queue; larger payloads than all of it never have.
            StoreReadOnlyError: mode "r". StoreError: the store is closed.
            ValueError: a value is not possible.
        """
        facts = saving.PayloadFacts(payload_format, decoded_bytes, component_types, divisible, measured_error)
        data = as_bytes(tokens)
        view = memoryview(payload).cast("B")
        with self._mutex:
            self._writable()
        check_payload_kind(payload_format, bytes(view[:16]))
        if not 0 <= pos_begin < len(data) // 4:
            raise ValueError(f"position {pos_begin} is none of {len(data) // 4} tokens")
        # copied only once there is room: what waits outside of the queue takes no memory of the store
        held: list[memoryview] = [view]

        def save() -> SaveResult:
            with self._changes:
                return saving.save(self, identity, codec, data, held[0], pos_begin, facts, progress)

        def take() -> None:
            if copy and not isinstance(payload, bytes):
                held[0] = memoryview(bytes(view))

        queued = Queued(identity, codec, data, pos_begin, divisible, view.nbytes)
        return self._queue.submit(queued, take, save, when_full, wait_timeout_s)

    async def save_async(
        self,
        identity: StoreIdentity,
        codec: CodecStamp,
        tokens: Tokens,
        payload: bytes | bytearray | memoryview,
        **options: Any,
    ) -> SaveResult:
        """`save_later`, awaited. Waits for room in the queue without holding up the event loop.

        A cancelled task cancels the save if it has not begun.

        Args and raises: as `save_later` and `save`; when_full is "wait" unless given.
        """
        import asyncio  # who does not use it does not wait for its import

        options.setdefault("when_full", "wait")
        if options["when_full"] == "wait":
            future = await asyncio.to_thread(self.save_later, identity, codec, tokens, payload, **options)
        else:
            future = self.save_later(identity, codec, tokens, payload, **options)
        return await asyncio.wrap_future(future)

    @property
    def queued_bytes(self) -> int:
        """Of the payloads that `save_later` took and that are not saved yet."""
        return sum(one.n_bytes for one in self._queue.waiting)

    def drain(self) -> None:
        """Wait until all that `save_later` took is saved, or failed."""
        self._queue.drain()

    # reading ahead

    def prefetch(
        self,
        identity: StoreIdentity,
        prompts: Sequence[Tokens],
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
        n_threads: int = 4,
        progress: Progress | None = None,
    ) -> Prefetch:
        """Have the system read what the store has of prompts into memory. The files are read on threads.

        Args:
            identity, lossy, codecs: as `lookup`.
            prompts: what will be asked for, the first ones first; segments they share are read once.
            n_threads: that ask the system at a time.
            progress: progress(n_done, n_total), in segments, on a thread. What it raises ends the prefetch.

        Returns:
            the prefetch, to be waited for or cancelled; `close` cancels it.

        Raises:
            As `lookup`.
        """
        if n_threads < 1:
            raise ValueError(f"{n_threads} threads are not possible")
        found = [self.lookup(identity, tokens, lossy=lossy, codecs=codecs) for tokens in prompts]
        keys = [bytes.fromhex(key) for one in found for key in one.keys]
        prefetch = start_prefetch(self, [one.n_tokens for one in found], keys, n_threads, progress)
        self._prefetches.add(prefetch)
        return prefetch

    # room

    def prune(self, target_bytes: int, *, dry_run: bool = False, progress: Progress | None = None) -> list[Row]:
        """Remove entries used longest ago until the store takes at most so many bytes.

        Args:
            target_bytes: see above.
            dry_run: only say which would go.
            progress: progress(n_done, n_total), in segments. What it raises ends it; what is removed stays removed.

        Returns:
            what was removed, in order; less than needed if the rest is pinned.

        Raises:
            StoreReadOnlyError: mode "r". OSError: the system refuses.
        """
        with self._changes, self._mutex:
            return room.prune(self, target_bytes, dry_run, progress)

    def remove(self, key: str, *, dry_run: bool = False) -> list[Row]:
        """Remove a segment and all that continue it.

        Args:
            key: hexadecimal, or the beginning of it that no other has.
            dry_run: only say which would go.

        Returns:
            what was removed, children first.

        Raises:
            StoreError: no segment has that key, or several have.
            StoreReadOnlyError: mode "r". OSError: the system refuses.
        """
        with self._changes, self._mutex:
            if not dry_run:
                self._writable()
            rows = [self.entry(key)]
            rows += self._asking(lambda index: index.descendants_of(rows[0].key))
            rows.reverse()
            if not dry_run:
                room.remove_rows(self, rows)
            return rows

    def pin(self, key: str) -> None:
        """Keep a segment, and so all that it continues, from being evicted.

        Raises:
            As `remove`.
        """
        with self._changes, self._mutex:
            self._writable()
            row = self.entry(key)
            name = f"{row.key.hex()}{layout.SUFFIX}"
            self._files.publish(f"{layout.TEMPORARY}/{secrets.token_hex(8)}", f"{layout.PINS}/{name}", [])
            with self._changing() as index:
                index.pin(row.key, True)

    def unpin(self, key: str) -> None:
        """Let a segment be evicted again.

        Raises:
            As `remove`.
        """
        with self._changes, self._mutex:
            self._writable()
            row = self.entry(key)
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(f"{layout.PINS}/{row.key.hex()}{layout.SUFFIX}")
                self._files.sync_dir(layout.PINS)
            with self._changing() as index:
                index.pin(row.key, False)

    # what is there

    def entries(self) -> list[tuple[Row, Root]]:
        """Every segment and what it begins with, the one used longest ago first.

        Raises:
            StoreError: the store is closed, or its index cannot be made.
        """
        with self._mutex:
            return contents.all_entries(self)

    def entry(self, key: str) -> Row:
        """The segment of a key, or of the beginning of one.

        Raises:
            StoreError: there is none, or several.
        """
        with self._mutex:
            return contents.one_entry(self, key)

    def describe(self, key: str) -> SegmentPrefix:
        """Header and manifest of a segment, from its file.

        Raises:
            SegmentError, StoreError, OSError: it cannot be read, or there is none.
        """
        with self._mutex:
            row = self.entry(key)
            return recovery.read_head(self._files, layout.segment_name(row.key), self._key).prefix

    def quarantined(self) -> dict[str, tuple[recovery.QuarantineNote, int]]:
        """What was put aside: by key in hexadecimal, the note and the bytes kept."""
        with self._mutex:
            return contents.quarantined(self)

    def stats(self) -> StoreStats:
        """What the store holds now.

        Raises:
            StoreError: the store is closed, or its index cannot be made.
        """
        with self._mutex:
            return contents.stats(self)

    # checking

    def verify(
        self,
        *,
        quarantine: bool = False,
        repair: bool = False,
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Check every byte of every segment, and the index against the files. Lookups go on meanwhile, saves wait.

        Args:
            quarantine: put damaged segments aside.
            repair: the same; also remove what no lookup can reach, and make the index anew if it is wrong.
            progress: progress(n_done, n_total), in segments.

        Raises:
            StoreReadOnlyError: quarantine or repair in mode "r".
            OSError: a directory cannot be read, or the system refuses to mend.
        """
        with self._changes:
            with self._mutex:
                self._open_index()
                if quarantine or repair:
                    self._writable()
            return verify(self, quarantine=quarantine or repair, repair=repair, progress=progress)

    def rebuild_index(self, *, progress: Progress | None = None) -> None:
        """Make the index anew from the segments. What it raises, or progress does, leaves the old one in use.

        Args:
            progress: progress(n_done, n_total), in directories.

        Raises:
            StoreReadOnlyError: mode "r". OSError, StoreError: it cannot be written.
        """
        with self._changes, self._mutex:
            old = self._writable()
            try:
                self._index, _ = recovery.rebuild(self._files, self._key, self._now_ns(), progress)
            except sqlite3.Error as error:
                raise StoreError(f"the index of {self.path} cannot be made: {error}") from error
            old.close()

    # life

    def close(self) -> None:
        """Save what waits, note what was read, and let another writer in. A second call does nothing.

        Open snapshots stay readable.
        """
        self._queue.close()
        running = list(self._prefetches)
        for prefetch in running:
            prefetch.cancel()
        for prefetch in running:
            prefetch.wait()
        with self._changes, self._mutex:
            index = self._index
            if index is not None:
                try:
                    room.note_uses(self)
                    if self.mode == "w":
                        self._settle()
                except (OSError, StoreError, sqlite3.Error):
                    pass  # the next who opens the store reads the directories again
                finally:
                    if self._index is not None:
                        with contextlib.suppress(sqlite3.Error):
                            self._index.close()
                    self._index = None
            self._files.close()
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()

    def _settle(self) -> None:
        """Note the times of directories that no longer change: who opens the store next need not read them."""
        index = self._open_index()
        if index.in_memory or 0 not in index.shards().values():
            return
        recovery.reconcile(self._files, index, self._key, self._now_ns())

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
