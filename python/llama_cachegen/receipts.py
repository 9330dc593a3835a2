"""What a save, a restore or a first token did, and how long each phase took."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from .errors import MissReason


class Outcome(str, enum.Enum):
    """How a restore ended. Damaged files and wrong calls are exceptions, not outcomes.

    PARTIAL: out of a store, some first tokens of the prompt.
    """

    RESTORED = "restored"
    PARTIAL = "partial"
    MISS = "miss"


def _as_dict(receipt: Any) -> dict[str, Any]:
    return {key: getattr(value, "value", value) for key, value in dataclasses.asdict(receipt).items()}


@dataclasses.dataclass(frozen=True)
class SaveReceipt:
    """A page was written.

    Attributes:
        path: the file, or None if the page stayed in memory.
        n_tokens: tokens of the page.
        payload_bytes, file_bytes: without and with header, identity, tokens and component table. The payload of an
            archive is the archive.
        component_types: ggml types of the K and the V components, for example {"K": "q8_0", "V": "f16"}.
        n_cell_runs: 1 if the cells were adjacent.
        export_ms: copying out of the cache, digests included; encoding an archive, its writes included.
        write_ms, fsync_ms: writing the file, and waiting until it is on the disk.
        archive: format of the file, "native/1" or "lcg3/1".
        profile: of an archive; None for native bytes.
        is_exact: every bit of the cache comes back.
        backend: what encoded an archive or copied the page.
        component_backends: name of the backend that holds each component, in the order of the page.
        transient_bytes: native memory taken at most besides the cache: of an archive, what encodes it
            (`peak_transient_bytes` in llama-cachegen.h says what counts); of native bytes, the page is in it.
        n_host_staged: components of an archive that went by way of host memory.
    """

    path: str | None
    n_tokens: int
    payload_bytes: int
    file_bytes: int
    component_types: dict[str, str]
    n_cell_runs: int
    export_ms: float
    write_ms: float
    fsync_ms: float
    total_ms: float
    archive: str = "native/1"
    profile: str | None = None
    is_exact: bool = True
    backend: str = "CPU"
    component_backends: tuple[str, ...] = ()
    transient_bytes: int = 0
    n_host_staged: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _as_dict(self)


@dataclasses.dataclass(frozen=True)
class RestoreReceipt:
    """A page was restored, or is a miss.

    Attributes:
        outcome: RESTORED or MISS.
        reason: of a miss: what differs; else None.
        detail: the same in words, with both values.
        archive: format of the page, "native/1" or "lcg3/1".
        profile: of an archive; None for native bytes.
        is_exact: the restored values are those that were saved, bit for bit, if the types are the same.
        backend: where the tensors are that were written.
        n_tokens: tokens restored, 0 for a miss.
        payload_bytes: bytes written to the cache.
        component_types: ggml types of the K and the V components they were written to.
        n_cell_runs: 1 if the free cells were adjacent.
        n_threads: threads that copied.
        component_backends: name of the backend that holds each component, in the order of the page.
        transient_bytes: native memory taken at most besides the page or archive and the cache; of an archive, what
            decodes it (`peak_transient_bytes` in llama-cachegen.h says what counts).
        n_host_staged: components of an archive that went by way of host memory.
        open_ms: opening and checking the file.
        reserve_ms: comparing layouts, waiting for compute, finding cells.
        copy_ms: copying or decoding into the cache, digests included.
        commit_ms: making the cells part of the sequence.
    """

    outcome: Outcome
    reason: MissReason | None
    detail: str
    archive: str
    backend: str
    n_tokens: int
    payload_bytes: int
    component_types: dict[str, str]
    n_cell_runs: int
    n_threads: int
    transient_bytes: int
    open_ms: float
    reserve_ms: float
    copy_ms: float
    commit_ms: float
    total_ms: float
    profile: str | None = None
    is_exact: bool = True
    component_backends: tuple[str, ...] = ()
    n_host_staged: int = 0

    @property
    def restored(self) -> bool:
        """True if the page is now part of the sequence."""
        return self.outcome is Outcome.RESTORED

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _as_dict(self)

    @classmethod
    def miss(
        cls, reason: MissReason, detail: str, *, open_ms: float, total_ms: float, archive: str = "native/1"
    ) -> RestoreReceipt:
        """The receipt of a page that does not belong here."""
        return cls(
            outcome=Outcome.MISS,
            reason=reason,
            detail=detail,
            archive=archive,
            backend="",
            n_tokens=0,
            payload_bytes=0,
            component_types={},
            n_cell_runs=0,
            n_threads=0,
            transient_bytes=0,
            open_ms=open_ms,
            reserve_ms=0.0,
            copy_ms=0.0,
            commit_ms=0.0,
            total_ms=total_ms,
        )


@dataclasses.dataclass(frozen=True)
class FirstTokenTiming:
    """Phases of a first token.

    Attributes:
        n_evaluated: tokens evaluated for it: 0 after a prefill, 1 after a restore.
        decode_ms: evaluating them.
        sample_ms: choosing the token from the logits.
    """

    n_evaluated: int
    decode_ms: float
    sample_ms: float
    total_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _as_dict(self)


@dataclasses.dataclass(frozen=True)
class PrefillTiming:
    """Evaluation of a prompt. `n_evaluated` tokens in `total_ms`."""

    n_evaluated: int
    total_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _as_dict(self)


@dataclasses.dataclass(frozen=True)
class StoreSaveReceipt:
    """A sequence was saved to a store.

    Attributes:
        key: of the segment that ends with the sequence's last token, hexadecimal.
        written: False if the store had all of it.
        n_tokens: tokens of the sequence that the store now has.
        pos_begin: the segment written begins there; what is before was in the store.
        payload_bytes, file_bytes: of the archive, and of the segment around it.
        n_evicted: segments removed to make room.
        codec: name, version and profile, and whether it is exact, in words.
        is_exact: every bit of the cache comes back.
        backend: what encoded it; "" if nothing was.
        n_host_staged: components that went by way of host memory.
        encode_ms: encoding, into memory.
        store_ms: digest, write and syncs.
    """

    key: str
    written: bool
    n_tokens: int
    pos_begin: int
    payload_bytes: int
    file_bytes: int
    n_evicted: int
    codec: str
    is_exact: bool
    backend: str
    n_host_staged: int
    encode_ms: float
    store_ms: float
    total_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _as_dict(self)


@dataclasses.dataclass(frozen=True)
class StoreRestoreReceipt:
    """A prompt was asked for in a store.

    Attributes:
        outcome: RESTORED: the sequence holds the whole prompt. PARTIAL: its first `n_held` tokens. MISS: nothing was
            added.
        reason, field, detail: of a partial restore or a miss: what differs or is wrong, the first field that differs,
            and the same in words; else None and "".
        n_prompt_tokens: of the prompt.
        n_tokens: tokens that were added.
        n_held: tokens of the prompt that the sequence now holds.
        n_parts: segments they came from.
        is_exact: all that was added is as it was saved, bit for bit.
        codec: of the segments, in words; "" for a miss.
        backend: where the tensors are that were written.
        payload_bytes: bytes written to the cache.
        archive_bytes: bytes of the archives that were read, as a whole.
        n_threads, n_host_staged: threads that decoded; components that went by way of host memory.
        lookup_ms: asking the store, opening segments and checking all but their payloads.
        decode_ms: the restore itself, digests included.
    """

    outcome: Outcome
    reason: MissReason | None
    field: str
    detail: str
    n_prompt_tokens: int
    n_tokens: int
    n_held: int
    n_parts: int
    is_exact: bool
    codec: str
    backend: str
    payload_bytes: int
    archive_bytes: int
    n_threads: int
    n_host_staged: int
    lookup_ms: float
    decode_ms: float
    total_ms: float

    @property
    def restored(self) -> bool:
        """True if the sequence now holds the whole prompt."""
        return self.outcome is Outcome.RESTORED

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _as_dict(self)
