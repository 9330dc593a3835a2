"""A directory of durable pages: one writer, many readers, prefixes shared."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import filelock
import numpy as np
from numpy.typing import NDArray

from ..errors import (
    SegmentError,
    StoreChainError,
    StoreError,
    StoreLayoutError,
    StoreLockedError,
    StoreLowDiskError,
    StoreMissingError,
    StoreReadOnlyError,
)
from . import layout, recovery
from .chain import DEFAULT_BLOCK_TOKENS, HASH_BYTES, Chain, context_hash, root_hash, token_bytes
from .explain import explain
from .files import FileFacts, Files, LinkError
from .identity import CodecStamp, StoreIdentity
from .index import Index, Root, Row
from .lookup import continue_at, walk
from .parts import open_part, verify_part
from .reports import Counters, Found, Lookup, SaveResult, StoreStats
from .room import choose, make_room, remove_rows, taken
from .segment import (
    MAX_BLOCK_TOKENS,
    Manifest,
    MeasuredError,
    PayloadFormat,
    SegmentPrefix,
    check_payload_kind,
    encode_prefix,
    payload_digest,
    read_prefix,
)
from .snapshot import Miss, Snapshot, SnapshotPart
from .verify import VerifyReport, verify

__all__ = ["Counters", "Lookup", "SaveResult", "Store", "StoreStats"]

DEFAULT_BUDGET_BYTES = 32 << 30
DEFAULT_MIN_FREE_BYTES = 1 << 30
_MAX_UNNOTED_USES = 1024
_MAX_COMPARED = 64
"""Entries whose tokens `why_miss` reads to find the one that goes furthest; a snapshot reads those of one."""

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
Tokens = Sequence[int] | NDArray[np.integer[Any]]


class Store:
    """A store, open. A context manager; its methods may be called from several threads.

    Args:
        path: its directory, made with mode 0700 if mode is "w" and there is none.
        mode: "w": the one writer; "r": a reader that changes nothing, for example on a read-only mount.
        budget_bytes: what its files may take. Entries used longest ago go first.
        min_free_bytes: what is left free of the disk; with less, nothing is saved.
        block_tokens: tokens of a block of a new store: prompts share whole blocks.
        key: 32 bytes that key every digest and name, for a store on a disk that others can write to.
        lock_timeout_s: seconds to wait for another writer.
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
        make_files: Callable[[str], Files] = Files,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if mode not in ("r", "w"):
            raise ValueError(f"mode {mode!r}; choose 'r' or 'w'")
        if budget_bytes < 0 or min_free_bytes < 0:
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
        self.opened_by: str
        self._key = key
        self._clock = clock
        self._mutex = threading.RLock()
        self._uses: dict[bytes, int] = {}
        self._broken: dict[bytes, tuple[FileFacts | None, str]] = {}
        self._lock: filelock.BaseFileLock | None = None
        self._index: Index | None = None
        self._files = layout.open_root(self.path, make_files, create=mode == "w", is_keyed=key is not None)
        try:
            if mode == "w":
                self._take_lock(lock_timeout_s)
            store_file = self._read_store_file(block_tokens)
            layout.check_key(store_file, self.path, key)
            layout.check_layout(self._files, self.path, create=mode == "w")
            self.block_tokens = store_file.block_tokens
            if mode == "w":
                layout.clean_temporary(self._files)
            self._index, report, self.opened_by = recovery.open_index(
                self._files, key, self._now_ns, read_only=mode == "r"
            )
            self._last_ms = self._index.last_used_ms()
            self._quarantined = recovery.quarantined(self._files)
            if mode == "w":
                for name, why in report.damaged.items():
                    self._put_aside(name, why)
        except BaseException:
            self.close()
            raise

    def _take_lock(self, timeout_s: float) -> None:
        path = os.path.join(self.path, layout.LOCK_FILE)
        with contextlib.suppress(FileNotFoundError):
            if os.path.islink(path):
                raise StoreLayoutError(f"{path} is a symbolic link")
        lock = filelock.FileLock(path, timeout=timeout_s, mode=0o600)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise StoreLockedError(
                f"{self.path} is open for writing in another process; open it with mode 'r', or wait for it"
            ) from None
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES):
                raise StoreReadOnlyError(f"{self.path} cannot be written: {error.strerror}; use mode 'r'") from None
            raise
        self._lock = lock

    def _read_store_file(self, block_tokens: int) -> layout.StoreFile:
        files, path = self._files, self.path
        try:
            store_file = layout.read_store_file(files, path)
        except (StoreLayoutError, LinkError):
            if self.mode == "r":
                raise
            store_file = None
            with contextlib.suppress(OSError):
                files.remove(layout.STORE_FILE)
        if store_file is not None:
            return store_file
        if self.mode == "r":
            raise StoreMissingError(errno.ENOENT, f"there is no store: {layout.STORE_FILE} is missing", path)
        return layout.make_layout(files, path, self._block_tokens_of_segments() or block_tokens, self._key)

    def _block_tokens_of_segments(self) -> int | None:
        """Of a store whose store.json was lost, what its segments say."""
        with contextlib.suppress(FileNotFoundError):
            for shard in self._files.list(layout.SEGMENTS):
                for entry in self._files.list(f"{layout.SEGMENTS}/{shard.name}") if shard.is_dir else ():
                    with contextlib.suppress(SegmentError, OSError):
                        name = f"{layout.SEGMENTS}/{shard.name}/{entry.name}"
                        return recovery.read_head(self._files, name, self._key).prefix.block_tokens
        return None

    # time

    def _now_ns(self) -> int:
        return int(self._clock() * 1e9)

    def _now_ms(self) -> int:
        """Never earlier than any use that the store knows of, whatever the clock does."""
        self._last_ms = max(self._last_ms + 1, int(self._clock() * 1000))
        return self._last_ms

    # the index

    def _open_index(self) -> Index:
        if self._index is None:
            raise StoreError("the store is closed")
        return self._index

    def _writable(self) -> Index:
        index = self._open_index()
        if self.mode == "r":
            raise StoreReadOnlyError(f"{self.path} was opened for reading; open it with mode 'w' to change it")
        return index

    def _replace_index(self, error: sqlite3.Error) -> None:
        """The index failed: make it anew, in memory if the disk does not take it."""
        _log.warning("the index of %s cannot be used and is made anew: %s", self.path, error)
        self.counters.n_index_failures += 1
        if self._index is not None:
            with contextlib.suppress(sqlite3.Error):
                self._index.close()
        if self.mode == "w":
            with contextlib.suppress(OSError, sqlite3.Error):
                self._index, _ = recovery.rebuild(self._files, self._key, self._now_ns())
                return
        self._index = Index.create(":memory:")
        recovery.fill(self._files, self._index, self._key, self._now_ns())

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Index]:
        """A change of the index. If it fails, the index is made anew from the files, which are as they shall be."""
        index = self._open_index()
        try:
            index.begin()
        except sqlite3.Error as error:
            self._replace_index(error)
            index = self._open_index()
            index.begin()
        try:
            yield index
            index.commit()
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                index.rollback()
            self._replace_index(error)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                index.rollback()
            raise

    def _refresh(self) -> None:
        """An index in memory has no writer that keeps it up to date."""
        index = self._open_index()
        if index.in_memory and self.mode == "r":
            recovery.reconcile(self._files, index, self._key, self._now_ns())

    def _asking(self, question: Callable[[Index], _Answer]) -> _Answer:
        """Ask the index, made anew once if it fails.

        Raises:
            StoreError: it fails again.
        """
        try:
            return question(self._open_index())
        except sqlite3.Error as error:
            self._replace_index(error)
        try:
            return question(self._open_index())
        except sqlite3.Error as error:
            raise StoreError(f"the index of {self.path} cannot be used: {error}") from error

    # lookup

    def _chain(self, root: bytes, tokens: bytes) -> Chain:
        return Chain(root, tokens, self.block_tokens, self._key)

    def _roots_for(
        self, index: Index, identity: StoreIdentity, lossy: bool, codecs: Sequence[CodecStamp] | None
    ) -> list[Root]:
        """Roots that may answer, the better ones first: in the caller's order, or exact ones before lossy ones."""
        context = context_hash(identity, self._key)
        roots = [
            root
            for root in index.roots().values()
            if root.context == context
            and root.block_tokens == self.block_tokens
            and (root.codec.is_exact or lossy)
            and (codecs is None or root.codec in codecs)
        ]
        if codecs is not None:
            order = list(codecs)
            return sorted(roots, key=lambda root: order.index(root.codec))
        return sorted(roots, key=lambda root: (not root.codec.is_exact, root.id))

    def _find(self, identity: StoreIdentity, tokens: bytes, lossy: bool, codecs: Sequence[CodecStamp] | None) -> Found:
        self._refresh()

        def question(index: Index) -> Found:
            best = Found([])
            for root in self._roots_for(index, identity, lossy, codecs):
                chain = self._chain(root.root, tokens)
                found = Found(walk(index, chain), chain, root)
                if best.root is None or found.n_tokens > best.n_tokens:
                    best = found
            return best

        return self._asking(question)

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
            found = self._find(identity, _as_bytes(tokens), lossy, codecs)
            return Lookup(
                found.n_tokens,
                tuple(step.row.key.hex() for step in found.steps),
                found.root.codec if found.root and found.steps else None,
            )

    def missing_from(self, identity: StoreIdentity, codec: CodecStamp, tokens: Tokens) -> int:
        """Where an entry has to begin so that the store has all of these tokens with it: `pos_begin` of `save`.

        Returns:
            a multiple of block_tokens, or the number of tokens if nothing is missing.

        Raises:
            As `lookup`.
        """
        with self._mutex:
            data = _as_bytes(tokens)
            found = self._find(identity, data, True, [codec])
            if found.steps and found.n_tokens == len(data) // 4:
                return found.n_tokens
            return continue_at(found.steps, self.block_tokens)[0]

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
            data = _as_bytes(tokens)
            found = self._find(identity, data, lossy, codecs)
            parts: list[SnapshotPart] = []
            miss: Miss | None = None
            try:
                block = 0
                for step in found.steps:
                    assert found.chain is not None
                    part, miss = open_part(self, step, found.chain, block)
                    if part is not None:
                        parts.append(part)
                        if verify:
                            miss = verify_part(self, part)
                            if miss is not None:
                                parts.pop().close()
                        block += part.n_tokens // self.block_tokens
                    if miss is not None:
                        break
                if miss is None and sum(part.n_tokens for part in parts) < len(data) // 4:
                    miss = explain(self, identity, data, lossy, codecs, found, n_compared=1)
            except BaseException:
                for part in parts:
                    part.close()
                raise
            if miss is None:
                self.counters.n_hits += 1
            elif parts:
                self.counters.n_partial += 1
            else:
                self.counters.n_misses += 1
            if self.mode == "w" and parts:
                now_ms = self._now_ms()
                self._uses.update((part.prefix.key, now_ms) for part in parts)
                if len(self._uses) > _MAX_UNNOTED_USES:
                    self._note_uses()
            return Snapshot(parts, miss)

    def _count_read(self, n_bytes: int) -> None:
        self.counters.payload_bytes_read += n_bytes

    def _damaged(self, key: bytes, facts: FileFacts | None, why: str, first: bytes) -> None:
        """Put a damaged segment aside; where that is not possible, remember it so that it is not read again."""
        self._broken[key] = (facts, why)
        name = layout.segment_name(key)
        if self.mode == "w":
            with contextlib.suppress(OSError):  # still there, then: the next who reads it finds it damaged again
                if facts is None or self._files.facts(name) == facts:
                    self._put_aside(name, why, first)

    def _put_aside(self, name: str, why: str, first: bytes = b"") -> None:
        key = layout.key_of(name.rpartition("/")[2])
        if key is None:
            return
        note = recovery.QuarantineNote(key=key.hex(), first=first.hex(), reason=why, when_ms=self._now_ms())
        _log.warning("%s: put aside: %s", self.path, why)
        recovery.quarantine(self._files, name, note)
        self.counters.n_quarantined += 1
        self._quarantined = recovery.quarantined(self._files)
        with self._changing() as index:
            index.remove(key)
            index.forget_other(name)

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
            data = _as_bytes(tokens)
            found = self._find(identity, data, lossy, codecs)
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

        Raises:
            StoreChainError: what is before pos_begin is not in the store, or more is; ask `missing_from` again.
            StoreFullError: it does not fit into the budget, with all gone that may go.
            StoreLowDiskError: less of the disk would be left free than has to be.
            StoreReadOnlyError: mode "r", or a read-only mount.
            ValueError: a value is not possible.
            OSError: the system refuses; nothing was saved.
        """
        view = memoryview(payload).cast("B")
        data = _as_bytes(tokens)
        with self._mutex:
            self._writable()
            self._note_uses()
            check_payload_kind(payload_format, bytes(view[:16]))
            found = self._find(identity, data, True, [codec])
            n_tokens = len(data) // 4
            if found.steps and found.n_tokens == n_tokens:
                self.counters.n_present += 1
                last = found.steps[-1].row
                return SaveResult(last.key.hex(), False, last.file_bytes, 0)
            available, parent_row = continue_at(found.steps, self.block_tokens)
            if pos_begin != available or pos_begin >= n_tokens:
                raise StoreChainError(
                    f"the store has the first {available} tokens of this chain; an entry from {pos_begin} on does not "
                    "continue them"
                )
            manifest = self._manifest(
                identity,
                codec,
                data,
                view,
                pos_begin=pos_begin,
                payload_format=payload_format,
                decoded_bytes=decoded_bytes,
                component_types=dict(sorted(component_types.items())),
                divisible=divisible,
                measured_error=tuple(measured_error),
            )
            prefix = encode_prefix(manifest, data[4 * pos_begin :], self._key)
            file_bytes = len(prefix) + view.nbytes
            n_evicted = make_room(self, file_bytes, {step.row.key for step in found.steps})
            self._check_disk(file_bytes)
            self._publish(manifest, prefix, view)
            self.counters.n_saves += 1
            self.counters.payload_bytes_saved += view.nbytes
            self.counters.bytes_written += file_bytes
            checked = read_prefix(lambda n, offset: prefix[offset : offset + n], file_bytes, self._key)
            with self._changing() as index:
                index.add(
                    checked,
                    used_ms=manifest.created_ms,
                    parent_key=parent_row.key if parent_row is not None else None,
                    is_pinned=manifest.key in recovery.pins(self._files),
                )
                index.set_shard(layout.shard_of(manifest.key), 0)
            return SaveResult(manifest.key.hex(), True, file_bytes, n_evicted)

    def _manifest(
        self, identity: StoreIdentity, codec: CodecStamp, data: bytes, view: memoryview, **values: Any
    ) -> Manifest:
        root = self._root(identity, codec)
        pos_begin: int = values["pos_begin"]
        before = self._chain(root, data).before(pos_begin // self.block_tokens)
        part = self._chain(before, data[4 * pos_begin :])
        return Manifest(
            identity=identity,
            codec=codec,
            block_tokens=self.block_tokens,
            n_tokens=part.n_tokens,
            parent=before.hex(),
            chain=tuple(value.hex() for value in part.hashes()),
            payload_bytes=view.nbytes,
            payload_blake3=payload_digest(view, self._key),
            created_ms=self._now_ms(),
            **values,
        )

    def _root(self, identity: StoreIdentity, codec: CodecStamp) -> bytes:
        return root_hash(context_hash(identity, self._key), codec, self.block_tokens, self._key)

    def _publish(self, manifest: Manifest, prefix: bytes, payload: memoryview) -> None:
        key = manifest.key
        files = self._files
        shard = f"{layout.SEGMENTS}/{layout.shard_of(key)}"
        try:
            with contextlib.suppress(FileExistsError):
                files.make_dir(shard)
                files.sync_dir(layout.SEGMENTS)
            files.publish(
                f"{layout.TEMPORARY}/{secrets.token_hex(8)}",
                layout.segment_name(key),
                [prefix, payload],
                mtime_ns=manifest.created_ms * 1_000_000,
            )
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.counters.n_refused += 1
                raise StoreLowDiskError(f"{self.path}: {error.strerror}; nothing was saved") from None
            if error.errno == errno.EROFS:
                raise StoreReadOnlyError(f"{self.path} lies on a read-only file system; nothing was saved") from None
            raise

    def _check_disk(self, n_bytes: int) -> None:
        free = self._files.free_bytes()
        if free - n_bytes < self.min_free_bytes:
            self.counters.n_refused += 1
            raise StoreLowDiskError(
                f"{self.path}: {n_bytes} bytes would leave {max(0, free - n_bytes)} of the disk free, at least "
                f"{self.min_free_bytes} have to be left; free some, or lower min_free_bytes"
            )

    # room

    def _note_uses(self) -> None:
        """Write down what was read, in the index and as the files' times. Only the order of eviction depends on it."""
        if not self._uses or self.mode == "r":
            return
        uses, self._uses = self._uses, {}
        for key, used_ms in uses.items():
            with contextlib.suppress(OSError):
                self._files.touch(layout.segment_name(key), used_ms * 1_000_000)
        with self._changing() as index:
            index.used([(used_ms, key) for key, used_ms in uses.items()])

    def prune(self, target_bytes: int, *, dry_run: bool = False) -> list[Row]:
        """Remove entries used longest ago until the store takes at most so many bytes.

        Args:
            target_bytes: see above.
            dry_run: only say which would go.

        Returns:
            what was removed, in order; less than needed if the rest is pinned.

        Raises:
            StoreReadOnlyError: mode "r". OSError: the system refuses.
        """
        with self._mutex:
            if not dry_run:
                self._writable()
                self._note_uses()
            removed = choose(self._asking(lambda index: list(index.rows())), taken(self) - target_bytes)
            if removed and not dry_run:
                remove_rows(self, removed)
            return removed

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
        with self._mutex:
            if not dry_run:
                self._writable()
            rows = [self.entry(key)]
            rows += self._asking(lambda index: index.descendants_of(rows[0].key))
            rows.reverse()
            if not dry_run:
                remove_rows(self, rows)
            return rows

    def pin(self, key: str) -> None:
        """Keep a segment, and so all that it continues, from being evicted.

        Raises:
            As `remove`.
        """
        with self._mutex:
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
        with self._mutex:
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
            self._refresh()

            def question(index: Index) -> list[tuple[Row, Root]]:
                by_id = {root.id: root for root in index.roots().values()}
                return [(row, by_id[row.root_id]) for row in index.rows()]

            return self._asking(question)

    def entry(self, key: str) -> Row:
        """The segment of a key, or of the beginning of one.

        Raises:
            StoreError: there is none, or several.
        """
        with self._mutex:
            try:
                whole = bytes.fromhex(key) if len(key) == 2 * HASH_BYTES else b""
            except ValueError:
                whole = b""
            if whole:
                row: Row | None = self._asking(lambda index: index.get(whole))
                rows = [] if row is None else [row]
            else:
                rows = [row for row, _ in self.entries() if key and row.key.hex().startswith(key)]
            if len(rows) != 1:
                raise StoreError(f"{len(rows)} segments of {self.path} have a key that begins with {key!r}")
            return rows[0]

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
            self._quarantined = recovery.quarantined(self._files)
            return dict(self._quarantined)

    def stats(self) -> StoreStats:
        """What the store holds now.

        Raises:
            StoreError: the store is closed, or its index cannot be made.
        """
        with self._mutex:
            self._refresh()
            self._note_uses()
            n_segments, n_bytes = self._asking(lambda index: index.totals())
            n_never, bytes_never = self._asking(lambda index: index.never_read())
            free = self._files.free_bytes()
            return StoreStats(
                n_segments=n_segments,
                n_bytes=n_bytes,
                n_never_read=n_never,
                bytes_never_read=bytes_never,
                n_pinned=len(self._asking(lambda index: index.pinned())),
                n_quarantined=len(self._quarantined),
                bytes_quarantined=sum(n for _, n in self._quarantined.values()),
                budget_bytes=self.budget_bytes,
                min_free_bytes=self.min_free_bytes,
                free_bytes=free,
                is_low_on_disk=free < self.min_free_bytes,
            )

    # checking

    def verify(
        self,
        *,
        quarantine: bool = False,
        repair: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """Check every byte of every segment, and the index against the files.

        Args:
            quarantine: put damaged segments aside.
            repair: the same; also remove what no lookup can reach, and make the index anew if it is wrong.
            progress: progress(n_done, n_total), in segments.

        Raises:
            StoreReadOnlyError: quarantine or repair in mode "r".
            OSError: a directory cannot be read, or the system refuses to mend.
        """
        with self._mutex:
            if quarantine or repair:
                self._writable()
            return verify(self, quarantine=quarantine or repair, repair=repair, progress=progress)

    # life

    def close(self) -> None:
        """Note what was read, and let another writer in. Open snapshots stay readable. A second call does nothing."""
        with self._mutex:
            index = self._index
            if index is not None:
                try:
                    self._note_uses()
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


def _as_bytes(tokens: Tokens) -> bytes:
    """Little-endian i32. Numbers that do not fit are refused, never wrapped or rounded."""
    given = np.asarray(tokens)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"tokens must be one row of integers, not {given.dtype} of shape {given.shape}")
    if given.size and (int(given.min()) < -(2**31) or int(given.max()) >= 2**31):
        raise ValueError("a token does not fit into 32 bits")
    return token_bytes(given)
