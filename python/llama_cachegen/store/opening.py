"""Opening a store: the writer's lock, store.json, and the index brought up to date."""

from __future__ import annotations

import contextlib
import errno
import os

import filelock

from ..errors import SegmentError, StoreLayoutError, StoreLockedError, StoreMissingError, StoreReadOnlyError
from . import aside, layout, recovery
from .core import StoreCore
from .files import LinkError

__all__ = ["open_core", "take_lock"]


def open_core(core: StoreCore, *, block_tokens: int, lock_timeout_s: float, progress: recovery.Progress | None) -> None:
    """Open what is in the core's directory, or make it. The caller closes the core if this fails.

    Raises:
        As `Store`.
    """
    is_writer = core.mode == "w"
    if is_writer:
        core._lock = take_lock(core.path, lock_timeout_s)
    store_file = _read_store_file(core, block_tokens)
    layout.check_key(store_file, core.path, core._key)
    layout.check_layout(core._files, core.path, create=is_writer)
    core.block_tokens = store_file.block_tokens
    if is_writer:
        layout.clean_temporary(core._files)
    core._index, report, core.opened_by = recovery.open_index(
        core._files, core._key, core._now_ns, read_only=not is_writer, progress=progress
    )
    core._last_ms = core._index.last_used_ms()
    core._quarantined = recovery.quarantined(core._files)
    if is_writer:
        for name, why in report.damaged.items():
            aside.put_aside(core, name, why)


def take_lock(store_path: str, timeout_s: float) -> filelock.BaseFileLock:
    """The writer's lock of a store, held.

    Raises:
        StoreLockedError: another has it, for as long as was waited.
        StoreLayoutError: its name is that of a link.
        StoreReadOnlyError: nothing can be written there.
        OSError: the system refuses.
    """
    path = os.path.join(store_path, layout.LOCK_FILE)
    with contextlib.suppress(FileNotFoundError):
        if os.path.islink(path):
            raise StoreLayoutError(f"{path} is a symbolic link")
    lock = filelock.FileLock(path, timeout=timeout_s, mode=0o600)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StoreLockedError(
            f"{store_path} is open for writing in another process; open it with mode 'r', or wait for it"
        ) from None
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES):
            raise StoreReadOnlyError(f"{store_path} cannot be written: {error.strerror}; use mode 'r'") from None
        raise
    return lock


def _read_store_file(core: StoreCore, block_tokens: int) -> layout.StoreFile:
    files, path = core._files, core.path
    try:
        store_file = layout.read_store_file(files, path)
    except (StoreLayoutError, LinkError):
        if core.mode == "r":
            raise
        store_file = None
        with contextlib.suppress(OSError):
            files.remove(layout.STORE_FILE)
    if store_file is not None:
        return store_file
    if core.mode == "r":
        raise StoreMissingError(errno.ENOENT, f"there is no store: {layout.STORE_FILE} is missing", path)
    return layout.make_layout(files, path, _block_tokens_of_segments(core) or block_tokens, core._key)


def _block_tokens_of_segments(core: StoreCore) -> int | None:
    """Of a store whose store.json was lost, what its segments say."""
    with contextlib.suppress(FileNotFoundError):
        for shard in core._files.list(layout.SEGMENTS):
            for entry in core._files.list(f"{layout.SEGMENTS}/{shard.name}") if shard.is_dir else ():
                with contextlib.suppress(SegmentError, OSError):
                    name = f"{layout.SEGMENTS}/{shard.name}/{entry.name}"
                    return recovery.read_head(core._files, name, core._key).prefix.block_tokens
    return None
