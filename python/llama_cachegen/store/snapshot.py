"""What a lookup found, open: the bytes stay readable whatever a writer removes meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
from collections.abc import Callable
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import MissReason, SegmentCorruptError, StoreError
from .segment import SegmentPrefix, read_payload_digest

__all__ = ["Miss", "Snapshot", "SnapshotPart"]


@dataclasses.dataclass(frozen=True)
class Miss:
    """Why a store has no more of a prompt than it gave.

    Attributes:
        reason: what differs, or what is wrong.
        field: the first field that differs, "" if it is not about one.
        detail: the same in words, with both values.
        position: of the first token that the store does not give.
    """

    reason: MissReason
    field: str
    detail: str
    position: int


class SnapshotPart:
    """One segment, open. Header, manifest and tokens have been checked; the payload is when it is first asked for.

    Attributes:
        prefix: what its header and manifest say.
        tokens: int32 [prefix.n_tokens], read-only.
        n_tokens: how many of them the prompt has too. All, unless `prefix.divisible`.
    """

    def __init__(
        self,
        prefix: SegmentPrefix,
        tokens: NDArray[np.int32],
        n_tokens: int,
        fd: int,
        read: Callable[[int, int], bytes],
        key: bytes | None,
        damaged: Callable[[SegmentCorruptError], None],
        counted: Callable[[int], None],
    ) -> None:
        self.prefix = prefix
        self.tokens = tokens
        self.n_tokens = n_tokens
        self._fd = fd
        self._read = read
        self._key = key
        self._damaged = damaged
        self._counted = counted
        self._mapping: mmap.mmap | None = None
        self._payload: memoryview | None = None
        self._is_verified = False

    @property
    def pos_begin(self) -> int:
        """Position of the first token."""
        return self.prefix.pos_begin

    @property
    def place(self) -> tuple[int, int, int]:
        """A descriptor of the file, open until the snapshot is closed; offset and size of the payload in it.

        Who reads there has to check the bytes: the digests of an archive or of a page do.

        Raises:
            StoreError: the snapshot is closed.
        """
        if self._fd < 0:
            raise StoreError("the snapshot is closed")
        return self._fd, self.prefix.plan.payload_offset, self.prefix.payload_bytes

    @property
    def payload(self) -> memoryview:
        """The payload's bytes, read-only, checked against their digest the first time.

        Raises:
            SegmentCorruptError: they do not match it; the segment has been put aside if the store may write.
            StoreError: the snapshot is closed.
            OSError: the system cannot read them.
        """
        self.check()
        return self._map()

    def check(self, *, beside_others: bool = False) -> None:
        """Compare the payload with its digest, once.

        Args:
            beside_others: take one core only: what decodes the payload meanwhile takes the others.

        Raises:
            As `payload`.
        """
        _ = self.place
        if self._is_verified:
            return
        # not by way of the mapping, where an error of the disk would end the process
        digest = read_payload_digest(self.prefix, self._read, self._key, beside_others=beside_others)
        if digest != self.prefix.payload_blake3:
            error = SegmentCorruptError(
                f"segment {self.prefix.key.hex()}: the payload has digest {digest[:12]}, its manifest says "
                f"{self.prefix.payload_blake3[:12]}; bytes are damaged"
            )
            self._damaged(error)
            raise error
        self._is_verified = True

    @property
    def unchecked_payload(self) -> memoryview:
        """The payload's bytes, read-only, not compared with their digest: for who calls `check` beside it.

        Raises:
            SegmentCorruptError: the file became shorter.
            StoreError: the snapshot is closed.
            OSError: the system cannot read them.
        """
        return self._map()

    def _map(self) -> memoryview:
        fd, offset, n_bytes = self.place
        if self._payload is None:
            if os.fstat(fd).st_size < offset + n_bytes:  # reading such a mapping would end the process
                error = SegmentCorruptError(f"segment {self.prefix.key.hex()} became shorter while it was open")
                self._damaged(error)
                raise error
            self._mapping = mmap.mmap(fd, offset + n_bytes, access=mmap.ACCESS_READ)
            self._payload = memoryview(self._mapping)[offset:]
            self._counted(n_bytes)
        return self._payload

    def close(self) -> None:
        """Give file and mapping back, the mapping with the last view of it. A second call does nothing."""
        payload, self._payload = self._payload, None
        mapping, self._mapping = self._mapping, None
        fd, self._fd = self._fd, -1
        if payload is not None:
            with contextlib.suppress(BufferError):
                payload.release()
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()
        if fd >= 0:
            os.close(fd)


class Snapshot:
    """The longest prefix of a prompt that the store has, in parts to be restored in order. A context manager.

    Attributes:
        parts: segment after segment, without a gap from position 0 on.
        miss: why it does not hold the whole prompt; None if it does.
    """

    def __init__(self, parts: list[SnapshotPart], miss: Miss | None) -> None:
        self.parts = tuple(parts)
        self.miss = miss

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt, from the first on, that the parts hold."""
        return sum(part.n_tokens for part in self.parts)

    @property
    def is_exact(self) -> bool:
        """Every bit of the cache comes back."""
        return all(part.prefix.codec.is_exact for part in self.parts)

    def close(self) -> None:
        """Give all files back."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
