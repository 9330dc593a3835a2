"""One sequence of an engine's context: prefill, save, restore, generate."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import _binding, session_store
from ._archive_calls import Cancel, ComponentCapability
from ._binding import ffi, lib, llama
from ._timing import ms_since
from .archive_file import ARCHIVE_MAGIC, ArchiveFile
from .codec.profiles import Profile
from .engine import Engine
from .errors import ContextError, DecodeError, MissReason, PageMismatchError
from .page import ComponentKind, Page, PageComponent
from .page_file import MAGIC, open_regular
from .page_identity import compare_identity
from .receipts import (
    FirstTokenTiming,
    Outcome,
    PrefillTiming,
    RestoreReceipt,
    SaveReceipt,
    StoreRestoreReceipt,
    StoreSaveReceipt,
)
from .session_archives import restore_archive, save_archive

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .store import CodecStamp, SaveResult, Store
    from .store.later import WhenFull

__all__ = ["Session"]

_BACKEND = "CPU"

Progress = Callable[[int, int], None]
"""progress(n_done, n_total), in tokens."""


def _is_archive(path: str | os.PathLike[str]) -> bool:
    fd = open_regular(os.fsdecode(path))
    try:
        head = os.pread(fd, len(ARCHIVE_MAGIC), 0)
    finally:
        os.close(fd)
    # a file cut short within its magic counts too, unless it could be a page file as well
    return ARCHIVE_MAGIC.startswith(head) and not MAGIC.startswith(head)


def _token_row(tokens: Sequence[int] | NDArray[np.int32]) -> NDArray[Any]:
    """Tokens as they were given; nothing is wrapped or rounded.

    Raises:
        ContextError: not one row of integers.
    """
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ContextError(f"tokens must be one row of integers, not {array.dtype} of shape {array.shape}")
    return array


def component_types(components: Sequence[PageComponent | ComponentCapability]) -> dict[str, str]:
    """The ggml types of K, V and others, several joined by "+", from the components themselves."""
    types: dict[str, list[str]] = {}
    for component in components:
        names = types.setdefault(component.kind.name, [])
        if component.type_name not in names:
            names.append(component.type_name)
    return {kind: "+".join(names) for kind, names in types.items()}


class Session:
    """One sequence. Made by `Engine.session()`; not thread-safe, nor are two sessions of one engine at the same time.

    After any exception the sequence holds exactly `tokens`, as before the call or as far as a prefill came.
    """

    def __init__(self, engine: Engine, seq_id: int) -> None:
        self.engine = engine
        self.seq_id = seq_id
        self.n_evaluated = 0
        """Tokens that were evaluated for this session, restored ones not counted."""
        self._tokens: list[int] = []
        self._logits: NDArray[np.float32] | None = None
        self._inexact_from: int | None = None
        self._closed = False

    # state

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        return len(self._tokens)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """A copy of the tokens, shape [n_tokens], int32."""
        return np.array(self._tokens, dtype=np.int32)

    @property
    def n_exact_tokens(self) -> int:
        """Tokens, from the first one on, whose K and V are those of their evaluation, bit for bit.

        Fewer than `n_tokens` after a lossy restore, or one into another type; what is evaluated then is not either.
        """
        return self.n_tokens if self._inexact_from is None else self._inexact_from

    @property
    def pos_max(self) -> int:
        """The last position llama.cpp holds for the sequence, -1 if it is empty."""
        self._check_open()
        return int(llama.llama_memory_seq_pos_max(self.engine._memory, self.seq_id))

    def _check_open(self) -> None:
        if self._closed:
            raise ContextError("the session is closed")
        self.engine._check_open()

    def _truncate(self, n_tokens: int) -> None:
        """Make the sequence hold exactly the first n_tokens tokens; none if a recurrent state has gone past them."""
        n_left = n_tokens
        try:
            if not llama.llama_memory_seq_rm(self.engine._memory, self.seq_id, n_tokens, -1):
                n_left = 0
                llama.llama_memory_seq_rm(self.engine._memory, self.seq_id, 0, -1)
        finally:  # Ctrl-C during the call is raised after it
            del self._tokens[n_left:]
            self._logits = None
            if self._inexact_from is not None and n_left <= self._inexact_from:
                self._inexact_from = None

    def _check_can_cut(self, n_tokens: int) -> None:
        """Raises ContextError unless the sequence can go on after its first n_tokens tokens."""
        if n_tokens in (0, self.n_tokens):
            return
        if self.engine.has_state:
            raise ContextError(
                f"the model keeps a recurrent state after token {self.n_tokens - 1} only: the sequence cannot be cut "
                f"back to {n_tokens} tokens; clear it, and prefill or restore what is wanted"
            )
        pos_min = int(llama.llama_memory_seq_pos_min(self.engine._memory, self.seq_id))
        n_swa = int(llama.llama_model_n_swa(self.engine._model))
        if n_swa > 0 and pos_min > max(0, n_tokens - n_swa):
            raise ContextError(
                f"the sliding window of {n_swa} tokens begins at position {pos_min}: what the sequence attends to "
                f"after {n_tokens} tokens is gone; create the engine with swa_full=True to cut back that far"
            )

    @contextlib.contextmanager
    def _appending(self) -> Iterator[None]:
        """If what happens inside fails, make the sequence hold what it held, whatever had been appended."""
        n_before, logits, inexact_from = self.n_tokens, self._logits, self._inexact_from
        try:
            yield
        except BaseException:
            if self.pos_max != n_before - 1:
                self._truncate(n_before)
            del self._tokens[n_before:]
            self._logits = logits
            if self.n_tokens == n_before:
                self._inexact_from = inexact_from
            raise

    def _append(self, tokens: NDArray[np.int32], *, is_exact: bool = True) -> None:
        """Note tokens that llama.cpp now holds."""
        if not is_exact and self._inexact_from is None:
            self._inexact_from = self.n_tokens
        self._tokens.extend(int(token) for token in tokens)
        self._logits = None

    def clear(self) -> None:
        """Remove every token of the sequence."""
        self._check_open()
        self._truncate(0)

    def truncate(self, n_tokens: int) -> None:
        """Keep the first n_tokens tokens.

        Raises:
            ContextError: the sequence has fewer, or cannot be cut back: a recurrent state is one after the last token,
                a sliding window has the last positions only.
        """
        self._check_open()
        if not 0 <= n_tokens <= self.n_tokens:
            raise ContextError(f"cannot keep {n_tokens} of {self.n_tokens} tokens")
        self._check_can_cut(n_tokens)
        self._truncate(n_tokens)

    # evaluation

    def _evaluate(self, tokens: NDArray[np.int32]) -> None:
        """Evaluate at most n_batch tokens; on failure the sequence is cut back to what it held."""
        n_before = self.n_tokens
        n = len(tokens)
        batch = llama.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            np.ctypeslib.as_array(batch.token, (n,))[:] = tokens
            np.ctypeslib.as_array(batch.pos, (n,))[:] = np.arange(n_before, n_before + n, dtype=np.int32)
            np.ctypeslib.as_array(batch.n_seq_id, (n,))[:] = 1
            for i in range(n):
                batch.seq_id[i][0] = self.seq_id
            logits = np.ctypeslib.as_array(batch.logits, (n,))
            logits[:] = 0
            logits[n - 1] = 1
            self._logits = None
            status = int(llama.llama_decode(self.engine._ctx, batch))
            if status != 0:
                self._truncate(n_before)
                hint = "; no room in the cache, raise n_ctx" if status == 1 else ""
                raise DecodeError(
                    f"llama_decode returned {status} for positions {n_before} .. {n_before + n - 1} of sequence "
                    f"{self.seq_id}{hint}"
                )
            row = llama.llama_get_logits_ith(self.engine._ctx, n - 1)
            self._logits = np.ctypeslib.as_array(row, (self.engine.n_vocab,)).copy()
            self._tokens.extend(int(token) for token in tokens)
            self.n_evaluated += n
        except BaseException:
            self._truncate(min(n_before, self.n_tokens))
            raise
        finally:
            llama.llama_batch_free(batch)

    def prefill(self, tokens: Sequence[int] | NDArray[np.int32], *, progress: Progress | None = None) -> PrefillTiming:
        """Append tokens to the sequence by evaluating them.

        Args:
            tokens: token ids, shape [n].
            progress: called as progress(n_done, n_total) before the first batch and after every batch. An exception
                from it ends the prefill; the sequence keeps the batches done so far.

        Raises:
            ContextError: the tokens are none of this model's, or more than the context holds.
            DecodeError: llama.cpp failed.
        """
        self._check_open()
        array = _token_row(tokens)
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self.engine.n_vocab):
            raise ContextError(f"token ids must be in 0 .. {self.engine.n_vocab - 1}")
        if self.n_tokens + array.size > self.engine.n_ctx_seq:
            raise ContextError(
                f"{self.n_tokens} + {array.size} tokens do not fit into {self.engine.n_ctx_seq}; raise n_ctx"
            )
        array = array.astype(np.int32)
        t_start = time.perf_counter()
        if progress is not None:
            progress(0, len(array))
        for begin in range(0, len(array), self.engine.n_batch):
            chunk = array[begin : begin + self.engine.n_batch]
            self._evaluate(chunk)
            if progress is not None:
                progress(begin + len(chunk), len(array))
        return PrefillTiming(n_evaluated=len(array), total_ms=ms_since(t_start))

    def logits(self) -> NDArray[np.float32]:
        """Logits after the last token, shape [n_vocab], float32.

        After a restore nothing has been evaluated, so the last token is evaluated again. A recurrent state cannot be
        taken back by a token, so there a restore is to be followed by a prefill of at least one token.

        Raises:
            ContextError: the sequence is empty, or restored with a recurrent state and nothing was evaluated since.
            DecodeError: llama.cpp failed.
        """
        self._check_open()
        if not self._tokens:
            raise ContextError("an empty sequence has no logits; prefill or restore first")
        if self._logits is None:
            if self.engine.has_state:
                raise ContextError(
                    "nothing was evaluated since the restore, and a recurrent state cannot be taken back to evaluate "
                    "the last token again; prefill the next token, or save the sequence without its last one"
                )
            last = np.array(self._tokens[-1:], dtype=np.int32)
            self._truncate(self.n_tokens - 1)
            self._evaluate(last)
        assert self._logits is not None
        return self._logits

    def first_token(self) -> tuple[int, FirstTokenTiming]:
        """The most likely next token, and how long it took. The token is not appended."""
        n_before = self.n_evaluated
        t_start = time.perf_counter()
        logits = self.logits()
        decode_ms = ms_since(t_start)
        t_sample = time.perf_counter()
        token = int(np.argmax(logits))
        sample_ms = ms_since(t_sample)
        return token, FirstTokenTiming(
            n_evaluated=self.n_evaluated - n_before,
            decode_ms=decode_ms,
            sample_ms=sample_ms,
            total_ms=ms_since(t_start),
        )

    def generate(self, n_tokens: int, *, stop: bool = True) -> Iterator[int]:
        """Greedy continuation, token by token; each is part of the sequence once the next is asked for.

        Args:
            n_tokens: at most this many.
            stop: end after an end-of-generation token.
        """
        for i in range(n_tokens):
            token, _ = self.first_token()
            yield token
            if i + 1 == n_tokens or (stop and self.engine.is_end_of_generation(token)):
                return
            self.prefill([token])

    # pages

    def export_page(self, p0: int = 0, p1: int | None = None, *, n_threads: int = 0) -> Page:
        """The K and V data of positions [p0, p1) as a page in memory; p1 defaults to the end.

        Raises:
            ContextError: the range is empty or not in the sequence.
            UnsupportedMemoryError: this model's memory cannot be paged.
            PageRangeError: llama.cpp does not hold every position of the range.
        """
        return self._export(p0, p1, n_threads)[0]

    def _export(self, p0: int, p1: int | None, n_threads: int) -> tuple[Page, Any]:
        self._check_open()
        if p1 is None:
            p1 = self.n_tokens
        if not 0 <= p0 < p1 <= self.n_tokens:
            raise ContextError(f"positions [{p0}, {p1}) are not a range of the {self.n_tokens} tokens of the session")
        ctx = self.engine._native_ctx
        info = _binding.describe(ctx, self.seq_id, p0, p1)
        records = ffi.new("struct llama_kv_page_component[]", info.n_components)
        payload = np.empty(info.payload_bytes, dtype=np.uint8)
        options = _binding.new_options(n_threads)
        stats = _binding.new_struct("llama_kv_page_stats")
        destination = ffi.from_buffer(payload, require_writable=True)
        _binding.check(
            lib.llama_kv_page_export(
                ctx, self.seq_id, p0, p1, destination, payload.nbytes, records, info.n_components, options, stats
            )
        )
        payload.flags.writeable = False
        page = Page(
            identity=self.engine.identity,
            pos_begin=p0,
            tokens=np.array(self._tokens[p0:p1], dtype=np.int32),
            components=[component_from_record(record) for record in records],
            payload=payload,
        )
        return page, stats

    def import_page(self, page: Page, *, n_threads: int = 0) -> RestoreReceipt:
        """Append a page to the sequence, all or nothing.

        Raises:
            PageMismatchError: the page is of another model, type, rotation, layout, ...; `reason` says which.
            PageRangeError: the page does not begin where the sequence ends.
            NoCellsError: the context is too small.
            PageDigestError: payload bytes are damaged.
            UnsupportedMemoryError: this model's memory cannot be paged.
        """
        self._check_open()
        t_start = time.perf_counter()
        compare_identity(page.identity, self.engine.identity)
        records = ffi.new("struct llama_kv_page_component[]", len(page.components))
        for record, component in zip(records, page.components, strict=True):
            _fill_record(record, component)
        options = _binding.new_options(n_threads)
        stats = _binding.new_struct("llama_kv_page_stats")
        source = ffi.from_buffer(page.payload)
        compare_ms = ms_since(t_start)
        try:
            with self._appending():
                _binding.check(
                    lib.llama_kv_page_import(
                        self.engine._native_ctx,
                        self.seq_id,
                        page.pos_begin,
                        records,
                        len(page.components),
                        source,
                        page.payload.nbytes,
                        options,
                        stats,
                    )
                )
                self._append(page.tokens)
        finally:
            ffi.release(source)
        return RestoreReceipt(
            outcome=Outcome.RESTORED,
            reason=None,
            detail=f"{page.n_tokens} tokens restored at positions {page.pos_begin} .. {self.n_tokens - 1}",
            archive=page.identity.format,
            backend=_BACKEND,
            n_tokens=page.n_tokens,
            payload_bytes=stats.payload_bytes,
            component_types=component_types(page.components),
            n_cell_runs=stats.n_cell_runs,
            n_threads=stats.n_threads,
            transient_bytes=stats.transient_bytes,
            open_ms=0.0,
            reserve_ms=compare_ms + stats.reserve_ms,
            copy_ms=stats.copy_ms,
            commit_ms=stats.commit_ms,
            total_ms=ms_since(t_start),
            component_backends=(_BACKEND,) * len(page.components),
        )

    def save(
        self,
        path: str | os.PathLike[str],
        profile: str | Profile | None = None,
        *,
        n_threads: int = 0,
        cancel: Cancel | None = None,
        host_staged: bool = False,
    ) -> SaveReceipt:
        """Write the whole sequence to a file; an older file of that name is replaced only when all is on disk.

        Args:
            path: the file.
            profile: None: a page file with the bytes as the cache has them. A profile of the codec or its name: an
                archive page file, encoded where the cache lies.
            n_threads: 0: as many as the context decodes with.
            cancel: of an archive: set it, from another thread, to stop between two pieces.
            host_staged: of an archive: components whose backend has no encoder go by way of host memory, a few blocks
                at a time. Without it they are refused.

        Raises:
            ContextError: the sequence is empty.
            ValueError: there is no profile of that name.
            UnsupportedMemoryError: this model's memory cannot be paged, or its backend has no encoder for a type.
            NonFiniteError: the cache holds a NaN or an infinity, which a lossy profile cannot keep.
            CancelledError: `cancel` was set; no file was written.
            OSError: the file cannot be written; an older file is still there.
        """
        t_start = time.perf_counter()
        if profile is not None:
            self._check_open()
            return save_archive(self, path, profile, n_threads, cancel, host_staged)
        page, stats = self._export(0, None, n_threads)
        export_ms = ms_since(t_start)
        written = page.write(path)
        return SaveReceipt(
            path=os.fspath(path),
            n_tokens=page.n_tokens,
            payload_bytes=page.payload_bytes,
            file_bytes=written.file_bytes,
            component_types=component_types(page.components),
            n_cell_runs=stats.n_cell_runs,
            export_ms=export_ms,
            write_ms=written.write_ms,
            fsync_ms=written.fsync_ms,
            total_ms=ms_since(t_start),
            component_backends=(_BACKEND,) * len(page.components),
            transient_bytes=page.payload_bytes + stats.transient_bytes,
        )

    def restore(
        self,
        path: str | os.PathLike[str],
        tokens: Sequence[int] | NDArray[np.int32] | None = None,
        *,
        n_threads: int = 0,
        cancel: Cancel | None = None,
        host_staged: bool = False,
    ) -> RestoreReceipt:
        """Append the page of a file to the sequence, or say why it does not belong here.

        Args:
            path: a page file, or an archive page file. An archive restores into caches of other types too.
            tokens: the prompt. If given, the page's tokens must be what comes next in it; else the page is a miss. Of
                an archive, as many tokens are restored as the prompt has in common with it; none is a miss.
            n_threads: 0: as many as the context decodes with.
            cancel: of an archive: set it, from another thread, to stop between two blocks.
            host_staged: of an archive: components whose backend has no decoder go by way of host memory, a few blocks
                at a time. Without it they are refused.

        Returns:
            A receipt: restored, or a miss with its reason. A miss leaves the session as it was.

        Raises:
            ContextError: the prompt is not one row of integers.
            PageFileError: the file is missing, damaged, or no page file.
            PageRangeError, NoCellsError, PageDigestError, UnsupportedMemoryError: as `import_page`.
            ArchiveImportError: the archive is damaged, or of a format this version does not read.
            CancelledError: `cancel` was set. The session is as it was.
        """
        self._check_open()
        t_start = time.perf_counter()
        prompt = None if tokens is None else _token_row(tokens)
        if _is_archive(path):
            with ArchiveFile(path) as file:
                open_ms = ms_since(t_start)
                receipt = restore_archive(self, file, prompt, n_threads, cancel, host_staged)
            return dataclasses.replace(receipt, open_ms=open_ms, total_ms=ms_since(t_start))
        with Page.open(path) as page:
            open_ms = ms_since(t_start)
            try:
                if prompt is not None:
                    self._compare_tokens(page, prompt)
                receipt = self.import_page(page, n_threads=n_threads)
            except PageMismatchError as miss:
                return RestoreReceipt.miss(miss.reason, miss.detail, open_ms=open_ms, total_ms=ms_since(t_start))
        return dataclasses.replace(receipt, open_ms=open_ms, total_ms=ms_since(t_start))

    # stores

    def save_to(
        self,
        store: Store,
        tokens: Sequence[int] | NDArray[np.int32] | None = None,
        profile: str | Profile = "exact",
        *,
        n_threads: int = 0,
        cancel: Cancel | None = None,
        host_staged: bool = False,
    ) -> StoreSaveReceipt:
        """Save what the store lacks of the sequence, as an archive that continues what it has.

        Args:
            store: open for writing.
            tokens: the first tokens of the sequence, to save no more than them; None: all.
            profile: of the codec, or its name; "exact" is lossless. What was evaluated after a lossy restore is saved
                as lossy whatever the profile.
            n_threads, cancel, host_staged: as `save`.

        Raises:
            ContextError: the sequence is empty, or does not begin with these tokens.
            UnsupportedMemoryError, NonFiniteError, CancelledError, PageRangeError: as `save`; of a recurrent state only
                the whole sequence can be saved.
            StoreError, OSError: as `Store.save`.
        """
        return session_store.save_to(self, store, tokens, profile, n_threads, cancel, host_staged)

    def save_to_later(
        self,
        store: Store,
        tokens: Sequence[int] | NDArray[np.int32] | None = None,
        profile: str | Profile = "exact",
        *,
        when_full: WhenFull = "refuse",
        wait_timeout_s: float | None = None,
        n_threads: int = 0,
        cancel: Cancel | None = None,
        host_staged: bool = False,
    ) -> Future[SaveResult]:
        """Encode what the store lacks now, between two decode calls, and let the store's thread write it.

        The entry is the sequence as it is at this call. When this returns, decoding can go on.

        Args:
            when_full, wait_timeout_s: as `Store.save_later`.
            The others: as `save_to`.

        Raises:
            StoreQueueFullError, StoreReadOnlyError: as `Store.save_later`. What the store's thread meets is raised by
                the future.
            The others: as `save_to`.
        """
        return session_store.save_to_later(
            self, store, tokens, profile, when_full, wait_timeout_s, n_threads, cancel, host_staged
        )

    def restore_from(
        self,
        store: Store,
        tokens: Sequence[int] | NDArray[np.int32],
        *,
        lossy: bool = False,
        codecs: Sequence[CodecStamp] | None = None,
        n_threads: int = 0,
        cancel: Cancel | None = None,
        host_staged: bool = False,
    ) -> StoreRestoreReceipt:
        """Append what the store has of a prompt, from the sequence's end on, as far as it goes without a gap.

        Args:
            store: any mode.
            tokens: the prompt from position 0 on; the sequence must be empty or hold the first tokens of it.
            lossy: whether lossy entries may answer. Without it an exact question gets no lossy answer.
            codecs: only entries of these, the first ones preferred.
            n_threads, cancel, host_staged: as `restore`.

        Returns:
            A receipt: restored, partial or a miss; the last two with the reason, and where it ended.

        Raises:
            ContextError: the sequence holds other tokens than the prompt.
            NoCellsError, UnsupportedMemoryError, CancelledError: as `restore`. The session is as it was.
            StoreError: the store is closed, or its index cannot be made.
        """
        return session_store.restore_from(self, store, tokens, lossy, codecs, n_threads, cancel, host_staged)

    def _compare_tokens(self, page: Page, prompt: NDArray[Any]) -> None:
        begin, end = page.pos_begin, page.pos_begin + page.n_tokens
        if end > len(prompt):
            raise PageMismatchError(
                MissReason.TOKENS,
                f"the page ends at position {end}, the prompt at {len(prompt)}",
                expected=len(prompt),
                actual=end,
            )
        differs = np.flatnonzero(prompt[begin:end] != page.tokens)
        if differs.size:
            position = begin + int(differs[0])
            expected, actual = int(prompt[position]), int(page.tokens[differs[0]])
            raise PageMismatchError(
                MissReason.TOKENS,
                f"token {position} is {actual} in the page and {expected} in the prompt",
                expected=expected,
                actual=actual,
            )

    # life

    def close(self) -> None:
        """Remove the sequence from the cache and give its id back."""
        if not self._closed:
            self._closed = True
            self._logits = None
            self.engine._release(self.seq_id)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


_KINDS = {ComponentKind.K: lib.LLAMA_KV_PAGE_KIND_K, ComponentKind.V: lib.LLAMA_KV_PAGE_KIND_V}
_KIND_OF = {number: kind for kind, number in _KINDS.items()}


def component_from_record(record: Any) -> PageComponent:
    return PageComponent(
        layer=record.layer,
        kind=_KIND_OF[record.kind],
        type=record.type,
        transposed=bool(record.transposed),
        n_rot=record.n_rot,
        n_tokens=record.n_tokens,
        n_channels=record.n_channels,
        row_bytes=record.row_bytes,
        offset=record.offset,
        n_bytes=record.n_bytes,
        xxh3=record.xxh3,
    )


def _fill_record(record: Any, component: PageComponent) -> None:
    record.layer = component.layer
    record.kind = _KINDS[component.kind]
    record.type = component.type
    record.transposed = component.transposed
    record.n_rot = component.n_rot
    record.n_tokens = component.n_tokens
    record.n_channels = component.n_channels
    record.row_bytes = component.row_bytes
    record.offset = component.offset
    record.n_bytes = component.n_bytes
    record.xxh3 = component.xxh3
