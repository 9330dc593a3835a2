"""Sessions and stores: what a store lacks of a sequence is encoded and saved, what it has of a prompt is restored."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import blake3
import msgspec
import numpy as np
from numpy.typing import NDArray

from . import _binding
from ._archive_calls import Cancel, component_capabilities
from ._binding import ffi, lib, llama
from ._timing import ms_since
from .codec.profiles import Profile, get_profile
from .errors import (
    ArchiveImportError,
    ContextError,
    MissReason,
    PageDigestError,
    PageMismatchError,
    SegmentError,
    UnsupportedMemoryError,
)
from .page import PageComponent
from .receipts import Outcome, StoreRestoreReceipt, StoreSaveReceipt
from .session_archives import Encoded, backends_of, decode_range, encode_range

if TYPE_CHECKING:
    from .engine import Engine
    from .session import Session
    from .store import CodecStamp, SaveResult, SnapshotPart, Store, StoreIdentity
    from .store.later import WhenFull

__all__ = ["codec_stamp", "identity_of", "restore_from", "save_to", "save_to_later"]

Tokens = Sequence[int] | NDArray[np.int32]


# identity


@functools.lru_cache(maxsize=64)
def codec_stamp(profile: Profile, is_exact: bool) -> CodecStamp:
    """The codec of an entry.

    Args:
        profile: that it is encoded with.
        is_exact: what is encoded is as it was evaluated.
    """
    from .store import CodecStamp

    calibration = ""
    if not profile.is_exact:
        numbers = {name: value for name, value in dataclasses.asdict(profile).items() if name != "name"}
        calibration = blake3.blake3(msgspec.json.encode(numbers, order="sorted")).hexdigest()
    return CodecStamp(
        name="lcg3",
        profile=profile.name,
        calibration=calibration,
        entry_class="exact" if profile.is_exact and is_exact else "lossy",
    )


def _geometry(engine: Engine) -> list[PageComponent]:
    """The components of a cache, whatever is in it.

    Of memories that native pages do not hold, rotation and channels are not known here. The restore compares them.
    """
    from .session import component_from_record

    ctx = engine._native_ctx
    try:
        info = _binding.describe(ctx, 0, 0, 1)
        records = ffi.new("struct llama_kv_page_component[]", info.n_components)
        _binding.check(lib.llama_kv_page_describe(ctx, 0, 0, 1, info, records, info.n_components))
        return [component_from_record(record) for record in records]
    except UnsupportedMemoryError:
        return [
            PageComponent(
                layer=one.layer, kind=one.kind, type=one.type, transposed=one.transposed, n_rot=0, n_tokens=1,
                n_channels=0, row_bytes=0, offset=0, n_bytes=0, xxh3=0,
            )
            for one in component_capabilities(ctx)
        ]  # fmt: skip


def identity_of(engine: Engine) -> StoreIdentity:
    """Everything besides tokens and codec that entries of an engine depend on.

    Raises:
        UnsupportedMemoryError: archives cannot hold the engine's memory.
    """
    found: StoreIdentity | None = engine._store_identity
    if found is None:
        from .store import store_identity

        n_swa = int(llama.llama_model_n_swa(engine._model))
        found = store_identity(
            engine.identity,
            _geometry(engine),
            swa_window=n_swa,
            swa_policy="none" if n_swa == 0 else "full" if engine.swa_full else "window",
        )
        engine._store_identity = found
    return found


def _is_divisible(engine: Engine) -> bool:
    """Whether the first tokens of an archive can be restored alone."""
    return not engine.has_state and (engine.swa_full or int(llama.llama_model_n_swa(engine._model)) == 0)


# saving


class _Missing(NamedTuple):
    """What a store lacks of a sequence."""

    identity: StoreIdentity
    codec: CodecStamp
    profile: Profile
    tokens: NDArray[np.int32]
    pos_begin: int


def _missing(
    session: Session, store: Store, tokens: Tokens | None, profile: str | Profile, *, with_queued: bool
) -> _Missing:
    from .session import _token_row

    session._check_open()
    one = get_profile(profile)
    have = session.tokens
    n_tokens = len(have)
    if tokens is not None:
        wanted = _token_row(tokens)
        n_tokens = len(wanted)
        if n_tokens > len(have) or not np.array_equal(wanted, have[:n_tokens]):
            raise ContextError(f"the sequence of {len(have)} tokens does not begin with the {n_tokens} to be saved")
    if n_tokens == 0:
        raise ContextError("an empty sequence cannot be saved; prefill first")
    codec = codec_stamp(one, session.n_exact_tokens >= n_tokens)
    identity = identity_of(session.engine)
    begin = store.missing_from(identity, codec, have[:n_tokens], with_queued=with_queued)
    return _Missing(identity, codec, one, have[:n_tokens], begin)


class _Payload(NamedTuple):
    """An archive in memory, and what encoded it."""

    bytes: memoryview
    backend: str
    encoded: Encoded
    facts: dict[str, Any]


def _encode(session: Session, missing: _Missing, n_threads: int, cancel: Cancel | None, host_staged: bool) -> _Payload:
    from .session import component_types

    components = component_capabilities(session.engine._native_ctx)
    fd = os.memfd_create("archive", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _unnamed_file()
    try:
        encoded = encode_range(
            session, components, missing.profile, missing.pos_begin, len(missing.tokens), fd, 0,
            n_threads=n_threads, cancel=cancel, host_staged=host_staged,
        )  # fmt: skip
        payload = memoryview(mmap.mmap(fd, encoded.archive_bytes, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)
    facts = {
        "pos_begin": missing.pos_begin,
        "payload_format": "lcg3",
        "decoded_bytes": encoded.stats.native_bytes,
        "component_types": component_types(components),
        "divisible": _is_divisible(session.engine),
    }
    return _Payload(payload, backends_of(components), encoded, facts)


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def save_to(
    session: Session,
    store: Store,
    tokens: Tokens | None,
    profile: str | Profile,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> StoreSaveReceipt:
    """See `Session.save_to`."""
    t_start = time.perf_counter()
    missing = _missing(session, store, tokens, profile, with_queued=False)
    backend, encode_ms, n_host_staged, payload_bytes = "", 0.0, 0, 0
    t_store = time.perf_counter()
    if missing.pos_begin == len(missing.tokens):
        found = store.lookup(missing.identity, missing.tokens, lossy=True, codecs=[missing.codec])
        key, written, file_bytes, n_evicted = found.keys[-1], False, 0, 0
    else:
        payload = _encode(session, missing, n_threads, cancel, host_staged)
        backend, encode_ms = payload.backend, payload.encoded.export_ms
        n_host_staged, payload_bytes = payload.encoded.stats.n_host_staged, payload.bytes.nbytes
        t_store = time.perf_counter()
        saved = store.save(missing.identity, missing.codec, missing.tokens, payload.bytes, **payload.facts)
        key, written, file_bytes, n_evicted = saved.key, saved.written, saved.file_bytes, saved.n_evicted
    return StoreSaveReceipt(
        key=key,
        written=written,
        n_tokens=len(missing.tokens),
        pos_begin=missing.pos_begin,
        payload_bytes=payload_bytes,
        file_bytes=file_bytes,
        n_evicted=n_evicted,
        codec=missing.codec.title,
        is_exact=missing.codec.is_exact,
        backend=backend,
        n_host_staged=n_host_staged,
        encode_ms=encode_ms,
        store_ms=ms_since(t_store),
        total_ms=ms_since(t_start),
    )


def save_to_later(
    session: Session,
    store: Store,
    tokens: Tokens | None,
    profile: str | Profile,
    when_full: WhenFull,
    wait_timeout_s: float | None,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> Future[SaveResult]:
    """See `Session.save_to_later`."""
    from .store import SaveResult

    missing = _missing(session, store, tokens, profile, with_queued=True)
    if missing.pos_begin == len(missing.tokens):
        present: Future[SaveResult] = Future()
        found = store.lookup(missing.identity, missing.tokens, lossy=True, codecs=[missing.codec])
        present.set_result(SaveResult(found.keys[-1] if found.keys else "", False, 0, 0))
        return present
    payload = _encode(session, missing, n_threads, cancel, host_staged)
    return store.save_later(
        missing.identity,
        missing.codec,
        missing.tokens,
        payload.bytes,
        **payload.facts,
        when_full=when_full,
        wait_timeout_s=wait_timeout_s,
        copy=False,
    )


# restoring


class _End(NamedTuple):
    """Why a restore ended before the prompt did."""

    reason: MissReason
    field: str
    detail: str


@dataclasses.dataclass
class _Done:
    """What was restored so far."""

    n_parts: int = 0
    n_tokens: int = 0
    payload_bytes: int = 0
    archive_bytes: int = 0
    n_threads: int = 0
    n_host_staged: int = 0
    is_exact: bool = True


def restore_from(
    session: Session,
    store: Store,
    tokens: Tokens,
    lossy: bool,
    codecs: Sequence[CodecStamp] | None,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> StoreRestoreReceipt:
    """See `Session.restore_from`."""
    from .session import _token_row

    t_start = time.perf_counter()
    session._check_open()
    prompt = _token_row(tokens)
    n_before = session.n_tokens
    if n_before > len(prompt) or not np.array_equal(prompt[:n_before], session.tokens):
        raise ContextError(
            f"the sequence holds {n_before} tokens that are not the first ones of the prompt of {len(prompt)}; clear it"
        )
    engine = session.engine
    # a keyed digest is compared before anything is decoded, another one meanwhile
    snapshot = store.snapshot(identity_of(engine), prompt, lossy=lossy, codecs=codecs, verify=store.is_keyed)
    lookup_ms = ms_since(t_start)
    done = _Done()
    end: _End | None = None
    with snapshot, session._appending():  # an error takes back what the parts before it gave
        for part in snapshot.parts:
            if part.pos_begin + part.n_tokens <= session.n_tokens:
                continue
            end = _restore_part(session, store, part, done, n_threads, cancel, host_staged)
            if end is not None:
                break
        if end is None and session.n_tokens < len(prompt) and snapshot.miss is not None:
            miss = snapshot.miss
            end = _End(miss.reason, miss.field, miss.detail)
        codec = snapshot.parts[0].prefix.codec.title if done.n_parts else ""
    is_whole = session.n_tokens == len(prompt)
    outcome = Outcome.RESTORED if is_whole else Outcome.PARTIAL if done.n_tokens else Outcome.MISS
    total_ms = ms_since(t_start)
    return StoreRestoreReceipt(
        outcome=outcome,
        reason=None if end is None else end.reason,
        field="" if end is None else end.field,
        detail=f"{done.n_tokens} tokens restored at positions {n_before} .. {session.n_tokens - 1}"
        if end is None
        else end.detail,
        n_prompt_tokens=len(prompt),
        n_tokens=done.n_tokens,
        n_held=session.n_tokens,
        n_parts=done.n_parts,
        is_exact=done.is_exact,
        codec=codec,
        backend=backends_of(component_capabilities(engine._native_ctx)) if done.n_parts else "",
        payload_bytes=done.payload_bytes,
        archive_bytes=done.archive_bytes,
        n_threads=done.n_threads,
        n_host_staged=done.n_host_staged,
        lookup_ms=lookup_ms,
        decode_ms=total_ms - lookup_ms,
        total_ms=total_ms,
    )


def _restore_part(
    session: Session,
    store: Store,
    part: SnapshotPart,
    done: _Done,
    n_threads: int,
    cancel: Cancel | None,
    host_staged: bool,
) -> _End | None:
    """Append what comes next of one segment. Returns why it could not be."""
    key = part.prefix.key.hex()
    first = session.n_tokens - part.pos_begin
    if part.prefix.payload_format != "lcg3":
        return _End(MissReason.CODEC, "payload_format", f"segment {key} holds no lcg3 archive")
    if first and not part.prefix.divisible:
        detail = f"segment {key} from position {part.pos_begin} on can only be restored as a whole"
        return _End(MissReason.TOKENS, "tokens", detail)
    fd, offset, n_bytes = part.place
    is_exact = part.prefix.codec.is_exact
    try:
        with session._appending(), _checked_meanwhile(part):
            stats = decode_range(
                session, part.unchecked_payload, session.n_tokens, first, part.tokens[first : part.n_tokens],
                (fd, offset), is_exact=is_exact, n_threads=n_threads, cancel=cancel, host_staged=host_staged,
            )  # fmt: skip
    except PageMismatchError as miss:
        return _End(miss.reason, "", miss.detail)
    except (ArchiveImportError, PageDigestError, SegmentError) as error:
        return _damaged(part, error)
    except OSError as error:
        return _End(MissReason.UNREADABLE, "", f"segment {key}: {error}; it is kept")
    done.n_parts += 1
    done.n_tokens += part.n_tokens - first
    done.payload_bytes += stats.native_bytes
    done.archive_bytes += n_bytes
    done.n_threads = max(done.n_threads, stats.n_threads)
    done.n_host_staged = max(done.n_host_staged, stats.n_host_staged)
    done.is_exact = done.is_exact and is_exact
    return None


@contextlib.contextmanager
def _checked_meanwhile(part: SnapshotPart) -> Iterator[None]:
    """Compare a part's payload with its digest while something is done with it; raises what that finds at the end."""
    errors: list[BaseException] = []

    def check() -> None:
        try:
            part.check(beside_others=True)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=check, name="store-digest")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]


def _damaged(part: SnapshotPart, error: Exception) -> _End:
    """The archive was refused. Its digest says whether its bytes are those that were saved; if not, it is put aside."""
    try:
        part.payload  # noqa: B018
    except SegmentError as damage:
        return _End(MissReason.DAMAGED, "", str(damage))
    except OSError as refusal:
        return _End(MissReason.UNREADABLE, "", f"{refusal}; the segment is kept")
    return _End(MissReason.UNREADABLE, "", f"segment {part.prefix.key.hex()} as it was saved: {error}; it is kept")
