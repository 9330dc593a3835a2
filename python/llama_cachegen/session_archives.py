"""Archives of a session's sequence: encoded where the cache lies, and decoded back into it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _binding
from ._archive_calls import (
    Cancel,
    ComponentCapability,
    FileSink,
    component_capabilities,
    import_options,
    native_profile,
)
from ._binding import ffi, lib
from ._timing import ms_since
from .archive_file import ArchiveFile, archive_offset_of, encode_archive_prefix
from .codec.archive import Archive
from .codec.errors import CodecError
from .codec.profiles import Profile, get_profile
from .errors import ContextError, MissReason, PageMismatchError
from .page_file import replace_file
from .page_identity import ARCHIVE_FORMAT, compare_identity, encode_identity, with_format
from .receipts import Outcome, RestoreReceipt, SaveReceipt

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Encoded", "backends_of", "decode_range", "encode_range", "restore_archive", "save_archive"]


def _writes_by_itself(components: Sequence[ComponentCapability]) -> bool:
    """A device's encoder is faster than one thread writes: the library then writes to the file, on several threads."""
    return any(one.backend != "CPU" for one in components)


def backends_of(components: Sequence[ComponentCapability]) -> str:
    return "+".join(sorted({one.backend for one in components}))


class Encoded(NamedTuple):
    """An archive that was written; stats is a struct llama_cachegen_stats."""

    archive_bytes: int
    export_ms: float
    stats: Any


def encode_range(
    session: Session,
    components: Sequence[ComponentCapability],
    profile: Profile,
    p0: int,
    p1: int,
    fd: int,
    offset: int,
    *,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> Encoded:
    """Encode positions [p0, p1) of a session into a file, from an offset on.

    Raises:
        NativeError, OSError: as `Session.save`.
    """
    native, codings = native_profile(profile, components)
    archive_bytes = ffi.new("uint64_t *")
    stats = _binding.new_struct("llama_cachegen_stats")
    t_start = time.perf_counter()
    place = (fd, offset) if _writes_by_itself(components) else None
    sink = FileSink(fd, offset)
    with import_options(n_threads, cancel, sink, host_staged=host_staged, place=place) as (options, handle):
        status = lib.llama_cachegen_export(
            session.engine._native_ctx,
            session.seq_id,
            p0,
            p1,
            native,
            codings,
            len(codings),
            lib.py_cachegen_write,
            handle,
            options,
            archive_bytes,
            stats,
        )
        if stats.system_error:
            raise OSError(stats.system_error, os.strerror(stats.system_error))
        _binding.check(status)
    return Encoded(int(archive_bytes[0]), ms_since(t_start), stats)


def decode_range(
    session: Session,
    archive: memoryview,
    p0: int,
    first_token: int,
    tokens: NDArray[np.int32],
    place: tuple[int, int],
    *,
    is_exact: bool,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> Any:
    """Append some of an archive to a session, all or nothing.

    Args:
        archive: all of it.
        p0: position of the first one to append.
        first_token: the first one to append, counted from the archive's first.
        tokens: ids of those to append.
        place: a descriptor of the file that the archive is a mapping of, and its offset there.
        is_exact: what is appended is as it was evaluated.

    Returns:
        struct llama_cachegen_stats.

    Raises:
        PageMismatchError, NativeError: as `Session.restore`.
    """
    stats = _binding.new_struct("llama_cachegen_stats")
    source = ffi.from_buffer(archive)
    try:
        ids = np.ascontiguousarray(tokens, dtype=np.int32)
        with (
            session._appending(),
            import_options(n_threads, cancel, tokens=ids, host_staged=host_staged, place=place) as (options, _handle),
        ):
            _binding.check(
                lib.llama_cachegen_import_archive(
                    session.engine._native_ctx,
                    session.seq_id,
                    p0,
                    source,
                    len(source),
                    first_token,
                    len(ids),
                    options,
                    stats,
                )
            )
            session._append(ids, is_exact=is_exact)
    finally:
        ffi.release(source)
    return stats


def save_archive(
    session: Session,
    path: str | os.PathLike[str],
    profile: str | Profile,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> SaveReceipt:
    """See `Session.save`."""
    from .session import component_types

    t_start = time.perf_counter()
    one = get_profile(profile)
    n_tokens = session.n_tokens
    if n_tokens == 0:
        raise ContextError("an empty sequence cannot be saved; prefill first")
    components = component_capabilities(session.engine._native_ctx)
    identity = with_format(session.engine.identity, ARCHIVE_FORMAT)
    tokens = session.tokens
    offset = archive_offset_of(len(encode_identity(identity, ARCHIVE_FORMAT)), n_tokens)
    encoded: list[Encoded] = []

    def write(fd: int) -> int:
        encoded.append(
            encode_range(
                session, components, one, 0, n_tokens, fd, offset,
                n_threads=n_threads, cancel=cancel, host_staged=host_staged,
            )
        )  # fmt: skip
        n_bytes = encoded[0].archive_bytes
        prefix = encode_archive_prefix(identity, 0, tokens, is_exact=one.is_exact, archive_bytes=n_bytes)
        FileSink(fd, 0).write(0, memoryview(prefix))
        return offset + n_bytes

    written = replace_file(path, write)
    stats = encoded[0].stats
    return SaveReceipt(
        path=os.fspath(path),
        n_tokens=n_tokens,
        payload_bytes=encoded[0].archive_bytes,
        file_bytes=written.file_bytes,
        component_types=component_types(components),
        n_cell_runs=stats.n_cell_runs,
        export_ms=encoded[0].export_ms,
        write_ms=stats.write_ms,
        fsync_ms=written.fsync_ms,
        total_ms=ms_since(t_start),
        archive=ARCHIVE_FORMAT,
        profile=one.name,
        is_exact=one.is_exact,
        backend=backends_of(components),
        component_backends=tuple(one.backend for one in components),
        transient_bytes=stats.peak_transient_bytes,
        n_host_staged=stats.n_host_staged,
    )


def restore_archive(
    session: Session,
    file: ArchiveFile,
    prompt: NDArray[Any] | None,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> RestoreReceipt:
    """See `Session.restore`. The tokens restored are those of the file, or the part of them that the prompt has."""
    t_start = time.perf_counter()
    try:
        return _restore(session, file, prompt, n_threads, cancel, host_staged)
    except PageMismatchError as miss:
        receipt = RestoreReceipt.miss(
            miss.reason, miss.detail, open_ms=0.0, total_ms=ms_since(t_start), archive=ARCHIVE_FORMAT
        )
        return dataclasses.replace(receipt, profile=_profile_name(file), is_exact=file.is_exact)


def _restore(
    session: Session,
    file: ArchiveFile,
    prompt: NDArray[Any] | None,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> RestoreReceipt:
    """The same; a miss is a PageMismatchError."""
    from .session import component_types

    t_start = time.perf_counter()
    compare_identity(file.identity, session.engine.identity)
    n_tokens = file.n_tokens
    if prompt is not None:
        n_tokens = _common_tokens(file, prompt)
    # The import says what is wrong with the archive. A payload that is not in memory yet is read where it is decoded.
    components = component_capabilities(session.engine._native_ctx)
    is_same_type = False
    with contextlib.suppress(CodecError), Archive(file.archive, metadata_only=True) as archive:
        file.check_archive(archive)
        is_same_type = [int(one.type) for one in archive.planes] == [one.type for one in components]
    compare_ms = ms_since(t_start)
    stats = decode_range(
        session, file.archive, file.pos_begin, 0, file.tokens[:n_tokens], file.place,
        is_exact=file.is_exact and is_same_type, n_threads=n_threads, cancel=cancel, host_staged=host_staged,
    )  # fmt: skip
    detail = f"{n_tokens} tokens restored at positions {file.pos_begin} .. {session.n_tokens - 1}"
    if n_tokens < file.n_tokens:
        detail += f"; the file has {file.n_tokens}, the prompt has no more of them"
    return RestoreReceipt(
        outcome=Outcome.RESTORED,
        reason=None,
        detail=detail,
        archive=ARCHIVE_FORMAT,
        backend=backends_of(components),
        n_tokens=n_tokens,
        payload_bytes=stats.native_bytes,
        component_types=component_types(components),
        n_cell_runs=stats.n_cell_runs,
        n_threads=stats.n_threads,
        transient_bytes=stats.peak_transient_bytes,
        open_ms=0.0,
        reserve_ms=compare_ms + stats.drain_ms + stats.reserve_ms,
        copy_ms=stats.code_ms,
        commit_ms=stats.commit_ms,
        total_ms=ms_since(t_start),
        profile=_profile_name(file),
        is_exact=file.is_exact,
        component_backends=tuple(one.backend for one in components),
        n_host_staged=stats.n_host_staged,
    )


def _common_tokens(file: ArchiveFile, prompt: NDArray[Any]) -> int:
    """How many of the file's tokens, from its first one on, come next in the prompt.

    Raises:
        PageMismatchError: none.
    """
    wanted = prompt[file.pos_begin : file.pos_begin + file.n_tokens]
    differs = np.flatnonzero(wanted != file.tokens[: len(wanted)])
    n_tokens = int(differs[0]) if differs.size else len(wanted)
    if n_tokens == 0:
        actual = int(file.tokens[0])
        if not len(wanted):
            raise PageMismatchError(
                MissReason.TOKENS,
                f"the archive begins at position {file.pos_begin}, the prompt has {len(prompt)} tokens",
                actual=actual,
            )
        expected = int(wanted[0])
        raise PageMismatchError(
            MissReason.TOKENS,
            f"token {file.pos_begin} is {actual} in the archive and {expected} in the prompt",
            expected=expected,
            actual=actual,
        )
    return n_tokens


def _profile_name(file: ArchiveFile) -> str:
    # bytes 48 .. 63 of an LCG3 header
    name = bytes(file.archive[48:64]).rstrip(b"\0").decode("latin-1")
    return name if name.isascii() and name.isprintable() else ""
