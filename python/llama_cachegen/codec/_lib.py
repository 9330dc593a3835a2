"""The one seam between Python and libcachegen: the cffi module, its statuses, its threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .._codec import ffi, lib
from .errors import ArchiveError, CodecError, EncodeError, UnsupportedArchiveError

__all__ = ["check", "error_for", "executor", "ffi", "lib", "new_struct"]

_ENCODE = {lib.CACHEGEN_ERR_NON_FINITE, lib.CACHEGEN_ERR_ALPHABET}
_UNSUPPORTED = {lib.CACHEGEN_ERR_VERSION, lib.CACHEGEN_ERR_UNSUPPORTED, lib.CACHEGEN_ERR_MISMATCH}


def error_for(status: int, message: str) -> CodecError:
    """The exception that stands for a native status other than OK."""
    name = str(ffi.string(lib.cachegen_status_name(status)).decode())
    if status in _ENCODE:
        return EncodeError(status, name, message)
    if status in _UNSUPPORTED:
        return UnsupportedArchiveError(status, name, message)
    if lib.CACHEGEN_ERR_TRUNCATED <= status <= lib.CACHEGEN_ERR_LIMIT:
        return ArchiveError(status, name, message)
    return CodecError(status, name, message)


def check(status: int) -> None:
    """Raise the exception that belongs to a native status; do nothing for OK."""
    if status != lib.CACHEGEN_OK:
        raise error_for(status, ffi.string(lib.cachegen_last_message()).decode("utf-8", "replace"))


def new_struct(name: str) -> Any:
    """A zeroed sized struct."""
    struct = ffi.new(f"struct {name} *")
    struct.struct_size = ffi.sizeof(f"struct {name}")
    return struct


@contextlib.contextmanager
def executor(n_threads: int) -> Iterator[Any]:
    """A pool of n_threads threads, NULL (the calling thread alone) for 1.

    Raises:
        CodecError: n_threads is not 1 to 1,024.
    """
    if n_threads == 1:
        yield ffi.NULL
        return
    pool = ffi.new("struct cachegen_executor **")
    check(lib.cachegen_executor_new(max(0, n_threads), pool))
    try:
        yield pool[0]
    finally:
        lib.cachegen_executor_free(pool[0])
