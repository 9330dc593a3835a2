"""The one seam between Python and the native library.

* loads the patched libllama, once, for llama-cpp-python's ctypes bindings and for our cffi module;
* checks that it is the library this package was built with, also when something else loaded a libllama first;
* turns every native status into an exception of `llama_cachegen.errors`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from . import errors
from .errors import LibraryMismatchError, MissReason

LIB_DIR = Path(__file__).resolve().parent / "lib"

_ADVICE = (
    "import llama_cachegen before llama_cpp and leave LLAMA_CPP_LIB_PATH unset, or point LLAMA_CPP_LIB_PATH at a "
    "library built from the same patch stack"
)


def _load_bindings() -> Any:
    """llama-cpp-python's ctypes module, on our library unless the user named another."""
    if "llama_cpp" not in sys.modules:
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(LIB_DIR))
    try:
        import llama_cpp.llama_cpp as bindings
    except (FileNotFoundError, RuntimeError) as error:
        raise LibraryMismatchError(
            f"llama-cpp-python could not load libllama from {os.environ.get('LLAMA_CPP_LIB_PATH')}: {error}; {_ADVICE}"
        ) from error
    return bindings


def check_stamp(library: ctypes.CDLL, patch_digest: str, llama_commit: str, abi_version: int) -> None:
    """Compare the stamp of a loaded libllama with what this package was built with.

    Raises:
        LibraryMismatchError: the library is unpatched, or from another stack, commit or ABI.
    """
    path = getattr(library, "_name", "libllama")
    try:
        library_digest = library.llama_kv_page_patch_digest
        library_commit = library.llama_kv_page_llama_commit
        library_abi = library.llama_kv_page_abi_version
    except AttributeError:
        raise LibraryMismatchError(
            f"{path} is an unpatched libllama: it has no KV page functions; expected patch stack "
            f"{patch_digest[:12]} on llama.cpp {llama_commit[:12]}; {_ADVICE}"
        ) from None
    library_digest.restype = ctypes.c_char_p
    library_commit.restype = ctypes.c_char_p
    library_abi.restype = ctypes.c_uint32
    for what, expected, actual in (
        ("ABI version", str(abi_version), str(library_abi())),
        ("llama.cpp commit", llama_commit, library_commit().decode()),
        ("patch stack digest", patch_digest, library_digest().decode()),
    ):
        if expected != actual:
            raise LibraryMismatchError(
                f"{path} is not the library this package was built with: {what} is {actual}, expected {expected}; "
                f"{_ADVICE}"
            )


def _load() -> tuple[Any, Any, Any]:
    bindings = _load_bindings()
    try:
        from ._native import ffi, lib
    except ImportError as error:
        # an unpatched libllama of the same name is already loaded: the module's symbols cannot be found in it
        loaded = getattr(bindings._lib, "_name", "libllama")
        if not hasattr(bindings._lib, "llama_kv_page_abi_version"):
            raise LibraryMismatchError(f"{loaded} is an unpatched libllama and was loaded first; {_ADVICE}") from error
        raise LibraryMismatchError(f"the native module could not be loaded: {error}; {_ADVICE}") from error

    check_stamp(
        bindings._lib,
        ffi.string(lib.BUILD_PATCH_DIGEST).decode(),
        ffi.string(lib.BUILD_LLAMA_COMMIT).decode(),
        int(lib.LLAMA_KV_PAGE_ABI_VERSION),
    )

    # two copies of one library would each have their own contexts and their own log callback
    # (addressof() of a cffi function is that of its wrapper, so the address of a static string tells them apart)
    digest_address = bindings._lib.llama_kv_page_patch_digest
    digest_address.restype = ctypes.c_void_p
    by_ctypes = digest_address()
    by_cffi = int(ffi.cast("uintptr_t", lib.llama_kv_page_patch_digest()))
    if by_ctypes != by_cffi:
        raise LibraryMismatchError(
            f"two copies of libllama are in this process: {bindings._lib._name} and the one in {LIB_DIR}; {_ADVICE}"
        )
    return bindings, ffi, lib


llama, ffi, lib = _load()

PATCH_DIGEST: str = ffi.string(lib.llama_kv_page_patch_digest()).decode()
LLAMA_COMMIT: str = ffi.string(lib.llama_kv_page_llama_commit()).decode()
ABI_VERSION: int = int(lib.llama_kv_page_abi_version())

_MISS_REASONS = {
    lib.LLAMA_KV_PAGE_ERR_COMPONENTS: MissReason.COMPONENTS,
    lib.LLAMA_KV_PAGE_ERR_TYPE: MissReason.TYPE,
    lib.LLAMA_KV_PAGE_ERR_ROTATION: MissReason.ROTATION,
    lib.LLAMA_KV_PAGE_ERR_LAYOUT: MissReason.LAYOUT,
    lib.LLAMA_KV_PAGE_ERR_WIDTH: MissReason.WIDTH,
    lib.LLAMA_KV_PAGE_ERR_WINDOW: MissReason.WINDOW,
}

_ERRORS: dict[int, type[errors.NativeError]] = {
    lib.LLAMA_KV_PAGE_ERR_MISSING: errors.PageRangeError,
    lib.LLAMA_KV_PAGE_ERR_OCCUPIED: errors.PageRangeError,
    lib.LLAMA_KV_PAGE_ERR_GAP: errors.PageRangeError,
    lib.LLAMA_KV_PAGE_ERR_NO_CELLS: errors.NoCellsError,
    lib.LLAMA_KV_PAGE_ERR_BUSY: errors.ReservationError,
    lib.LLAMA_KV_PAGE_ERR_STALE: errors.ReservationError,
    lib.LLAMA_KV_PAGE_ERR_INCOMPLETE: errors.ReservationError,
    lib.LLAMA_KV_PAGE_ERR_CANCELLED: errors.CancelledError,
    lib.LLAMA_KV_PAGE_ERR_DIGEST: errors.PageDigestError,
    lib.LLAMA_KV_PAGE_ERR_ARCHIVE: errors.ArchiveImportError,
    lib.LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT: errors.ArchiveImportError,
    lib.LLAMA_KV_PAGE_ERR_NON_FINITE: errors.NonFiniteError,
}


def error_for(status: int, message: str) -> errors.CachegenError:
    """The exception that stands for a native status other than OK."""
    if status in _MISS_REASONS:
        return errors.PageMismatchError(_MISS_REASONS[status], message)
    name = ffi.string(lib.llama_kv_page_status_name(status)).decode()
    if name.startswith("REFUSED_"):
        return errors.UnsupportedMemoryError(status, name, message)
    return _ERRORS.get(status, errors.NativeError)(status, name, message)


def last_message() -> str:
    """The message of the last failed native call on this thread."""
    return str(ffi.string(lib.llama_kv_page_last_message()).decode("utf-8", "replace"))


def check(status: int) -> None:
    """Raise the exception that belongs to a native status; do nothing for OK."""
    if status != lib.LLAMA_KV_PAGE_OK:
        raise error_for(status, last_message())


def new_struct(name: str) -> Any:
    """A zeroed struct of the ABI with its size filled in."""
    struct = ffi.new(f"struct {name} *")
    struct.struct_size = ffi.sizeof(f"struct {name}")
    return struct


def describe(ctx: Any, seq_id: int, p0: int, p1: int) -> Any:
    """struct llama_kv_page_info of positions [p0, p1)."""
    info = new_struct("llama_kv_page_info")
    info.component_struct_size = ffi.sizeof("struct llama_kv_page_component")
    check(lib.llama_kv_page_describe(ctx, seq_id, p0, p1, info, ffi.NULL, 0))
    return info


def new_options(n_threads: int, *, digest: bool = True) -> Any:
    """struct llama_kv_page_options of a copy."""
    options = new_struct("llama_kv_page_options")
    options.n_threads = n_threads
    options.flags = lib.LLAMA_KV_PAGE_FLAG_DIGEST if digest else 0
    return options


def context_pointer(ctx: Any) -> Any:
    """llama-cpp-python's context handle as a cffi pointer to the same context."""
    address = ctx if isinstance(ctx, int) else ctypes.cast(ctx, ctypes.c_void_p).value
    return ffi.cast("struct llama_context *", address)
