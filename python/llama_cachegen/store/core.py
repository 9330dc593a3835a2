"""What every part of an open store works on: its files, its index, its times, and what it counts."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import filelock
import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError, StoreReadOnlyError
from . import recovery
from .chain import Chain, context_hash, root_hash, token_bytes
from .files import FileFacts, Files
from .identity import CodecStamp, StoreIdentity
from .index import Index
from .recovery import QuarantineNote
from .reports import Counters

__all__ = ["StoreCore", "as_bytes"]

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class StoreCore:
    """An open store without its verbs. The functions of this package that take one are called with its mutex held.

    Who changes files holds `_changes` too, taken first and for the whole change; a save waits for the disk with only
    that, so that lookups go on meanwhile.

    Attributes:
        path, mode, budget_bytes, min_free_bytes, block_tokens: as given to `Store`.
        counters: what was done since it was opened.
        opened_by: how the index came: "opened", "rebuilt" or "in memory".
    """

    path: str
    mode: Literal["r", "w"]
    budget_bytes: int
    min_free_bytes: int
    block_tokens: int
    opened_by: str
    counters: Counters
    _files: Files
    _key: bytes | None
    _clock: Callable[[], float]
    _last_ms: int
    _mutex: threading.RLock
    _changes: threading.RLock
    _lock: filelock.BaseFileLock | None
    _index: Index | None
    _uses: dict[bytes, int]
    """When segments were last read, not yet noted in the index and as the files' times."""
    _broken: dict[bytes, tuple[FileFacts | None, str]]
    """Segments found damaged: the file as it then was, and why."""
    _quarantined: dict[str, tuple[QuarantineNote, int]]

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

    # hashes

    def _chain(self, root: bytes, tokens: bytes) -> Chain:
        return Chain(root, tokens, self.block_tokens, self._key)

    def _root(self, identity: StoreIdentity, codec: CodecStamp) -> bytes:
        return root_hash(context_hash(identity, self._key), codec, self.block_tokens, self._key)


def as_bytes(tokens: Any | NDArray[np.integer[Any]]) -> bytes:
    """Little-endian i32. Numbers that do not fit are refused, never wrapped or rounded.

    Raises:
        ValueError: no row of 32-bit integers.
    """
    given = np.asarray(tokens)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"tokens must be one row of integers, not {given.dtype} of shape {given.shape}")
    if given.size and (int(given.min()) < -(2**31) or int(given.max()) >= 2**31):
        raise ValueError("a token does not fit into 32 bits")
    return token_bytes(given)
