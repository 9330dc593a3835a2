"""Reading ahead: the segments of prompts that are asked for soon brought into the page cache, on threads."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError

from .core import StoreCore
from .layout import segment_name

__all__ = ["Prefetch", "PrefetchReport", "start_prefetch"]

_PIECE_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class PrefetchReport:
    """What a prefetch did.

    Attributes:
        n_tokens: of each prompt, tokens from the first on that the store has.
        n_segments, n_bytes: segments whose bytes the system was asked to read, each once; their size.
        n_failed: segments that could not be opened.
        is_cancelled: it was told to stop before it had asked for all.
    """

    n_tokens: tuple[int, ...]
    n_segments: int
    n_bytes: int
    n_failed: int
    is_cancelled: bool


class Prefetch:
    """A prefetch in progress, made by `Store.prefetch`."""

    def __init__(self) -> None:
        self._cancel = threading.Event()
        self._future: Future[PrefetchReport] = Future()

    @property
    def done(self) -> bool:
        """It has ended."""
        return self._future.done()

    def cancel(self) -> None:
        """Stop before the next piece of a segment."""
        self._cancel.set()

    def wait(self) -> None:
        """Until it has ended, well or not."""
        wait([self._future])

    def result(self, timeout_s: float | None = None) -> PrefetchReport:
        """What it did, waited for.

        Raises:
            TimeoutError: it takes longer.
        """
        try:
            return self._future.result(timeout_s)
        except FutureTimeoutError:  # another class than TimeoutError before Python 3.11
            raise TimeoutError(f"the prefetch takes longer than {timeout_s} s") from None


def start_prefetch(
    core: StoreCore,
    n_tokens: Sequence[int],
    keys: Sequence[bytes],
    n_threads: int,
    progress: Callable[[int, int], None] | None,
) -> Prefetch:
    """Ask the system to read the files of these segments, in order, on so many threads. Does not wait."""
    prefetch = Prefetch()
    keys = list(dict.fromkeys(keys))

    def one(key: bytes) -> tuple[int, int, int]:
        if prefetch._cancel.is_set():
            return 0, 0, 0
        try:
            return 1, _read_ahead(core, key, prefetch._cancel), 0
        except OSError:
            return 0, 0, 1

    def all_of_them() -> None:
        n_segments = n_bytes = n_failed = 0
        n_done = 0
        try:
            with ThreadPoolExecutor(n_threads, thread_name_prefix="store-prefetch") as pool:
                left = {pool.submit(one, key) for key in keys}
                while left:
                    ended, left = wait(left, return_when=FIRST_COMPLETED)
                    for future in ended:
                        one_read, one_bytes, one_failed = future.result()
                        n_segments += one_read
                        n_bytes += one_bytes
                        n_failed += one_failed
                        n_done += 1
                        if progress is not None:
                            progress(n_done, len(keys))
        except BaseException as error:
            prefetch._cancel.set()
            prefetch._future.set_exception(error)
            return
        with core._mutex:
            core.counters.n_prefetched += n_segments
            core.counters.bytes_prefetched += n_bytes
        is_cancelled = prefetch._cancel.is_set() and n_segments + n_failed < len(keys)
        prefetch._future.set_result(PrefetchReport(tuple(n_tokens), n_segments, n_bytes, n_failed, is_cancelled))

    threading.Thread(target=all_of_them, name="store-prefetch", daemon=True).start()
    return prefetch


def _read_ahead(core: StoreCore, key: bytes, cancel: threading.Event) -> int:
    """Returns the bytes asked for."""
    files = core._files
    fd = files.open_read(segment_name(key))
    try:
        size = files.facts_of(fd).size
        n_asked = 0
        for offset in range(0, size, _PIECE_BYTES):
            if cancel.is_set():
                break
            n_bytes = min(_PIECE_BYTES, size - offset)
            files.will_need(fd, offset, n_bytes)
            n_asked += n_bytes
        return n_asked
    finally:
        with contextlib.suppress(OSError):
            files.close_file(fd)
