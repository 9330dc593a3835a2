"""Every exception of the package.

`CachegenError` is the root. Errors that come from the native library carry the status code and its name; the one place
that raises them is `llama_cachegen._binding.check`.
"""

from __future__ import annotations

import enum

__all__ = [
    "ArchiveImportError",
    "CachegenError",
    "CancelledError",
    "CertificateError",
    "ClaimError",
    "ContextError",
    "DecodeError",
    "JournalError",
    "LibraryMismatchError",
    "MissReason",
    "ModelFetchError",
    "NativeError",
    "NoCellsError",
    "NonFiniteError",
    "PageDigestError",
    "PageFileCorruptError",
    "PageFileError",
    "PageFileMissingError",
    "PageFileNotRegularError",
    "PageFileTruncatedError",
    "PageFileVersionError",
    "PageMismatchError",
    "PageRangeError",
    "QualifyError",
    "ReservationError",
    "SegmentCorruptError",
    "SegmentError",
    "SegmentKeyError",
    "SegmentVersionError",
    "StoreChainError",
    "StoreError",
    "StoreFullError",
    "StoreKeyError",
    "StoreLayoutError",
    "StoreLockedError",
    "StoreLowDiskError",
    "StoreMissingError",
    "StoreQueueFullError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "TierDamagedError",
    "TierError",
    "TierFullError",
    "TierMissingError",
    "TierSetupError",
    "TierTimeoutError",
    "TierUnavailableError",
    "TranscodeError",
    "UnknownFileError",
    "UnsupportedMemoryError",
    "WorkloadError",
]


class MissReason(str, enum.Enum):
    """What differs between a sound page and the context it was offered to, or why a store has no page to offer.

    A store also says: HPARAMS, ADAPTERS, CODEC and EXACTNESS of its entries; ABSENT, it has none at all; DAMAGED, it
    had one whose bytes are not those that were saved; UNREADABLE, the system refused to read one, which was kept.
    """

    MODEL = "model"
    HPARAMS = "hparams"
    NAMESPACE = "namespace"
    TOKENS = "tokens"
    COMPONENTS = "components"
    TYPE = "type"
    ROTATION = "rotation"
    LAYOUT = "layout"
    WIDTH = "width"
    WINDOW = "window"
    ROPE = "rope"
    ADAPTERS = "adapters"
    LLAMA_COMMIT = "llama_commit"
    PATCH_DIGEST = "patch_digest"
    ABI = "abi"
    ENDIANNESS = "endianness"
    CODEC = "codec"
    EXACTNESS = "exactness"
    ABSENT = "absent"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


class CachegenError(Exception):
    """Root of the package's exceptions."""


class LibraryMismatchError(CachegenError, ImportError):
    """The libllama in this process is not the one this package was built with."""


class ModelFetchError(CachegenError):
    """A model could not be fetched, or what came is not what was pinned."""


class DecodeError(CachegenError):
    """llama.cpp could not evaluate a batch."""


class ContextError(CachegenError, ValueError):
    """llama.cpp could not load the model or create the context, or the session was asked for what it cannot do."""


class UnknownFileError(CachegenError):
    """The path is no regular file, or its first bytes are those of no known format."""


class TranscodeError(CachegenError):
    """A file cannot be turned into the wanted one. Nothing was written."""


class PageFileError(CachegenError):
    """A page file cannot be read. Nothing was written to any context."""


class PageFileMissingError(PageFileError, FileNotFoundError):
    """There is no such file."""


class PageFileNotRegularError(PageFileError):
    """The path is a directory, a FIFO, a device or a socket."""


class PageFileTruncatedError(PageFileError):
    """The file is shorter, or longer, than its header says."""


class PageFileCorruptError(PageFileError):
    """The file is not a page file, or bytes of it are damaged."""


class PageFileVersionError(PageFileError):
    """The file was written by a version whose format this one does not read."""


class StoreError(CachegenError):
    """A store refused. What it held before the call it still holds."""


class StoreMissingError(StoreError, FileNotFoundError):
    """There is no store at that path, and the mode does not make one."""


class StoreLayoutError(StoreError):
    """The path is no directory of a store: a link, another directory, or one that others may write to."""


class StoreVersionError(StoreError):
    """The store was made by a version whose layout this one does not read."""


class StoreKeyError(StoreError):
    """The store is keyed and the key is another or none, or it is not keyed and a key was given."""


class StoreLockedError(StoreError):
    """Another process has the store open for writing."""


class StoreReadOnlyError(StoreError):
    """The store was opened for reading, or lies where nothing can be written."""


class StoreLowDiskError(StoreReadOnlyError):
    """Less disk would be left than the store has to leave free. Reads go on; nothing is saved until there is more."""


class StoreFullError(StoreError):
    """The entry does not fit into the byte budget, even with all evicted that may be."""


class StoreQueueFullError(StoreError):
    """The store's thread has as much to save as its queue holds. Nothing was taken over."""


class StoreChainError(StoreError):
    """What comes before the entry is not in the store, or already is more than that."""


class SegmentError(StoreError):
    """A segment file cannot be read. Nothing was decoded."""


class SegmentCorruptError(SegmentError):
    """The file is not a segment, or bytes of it are damaged, or it has another segment's name."""


class SegmentVersionError(SegmentError):
    """The segment was written by a version, or with a codec, that this one does not read. It is kept."""


class SegmentKeyError(SegmentError):
    """The segment's digests are keyed and the store's are not, or the reverse. It is kept."""


class TierError(StoreError):
    """A tier did not do what it was asked to. What the local store held it still holds."""


class TierSetupError(TierError):
    """A tier cannot be opened: its package is not installed, its address is none, or it refuses."""


class TierMissingError(TierError):
    """The tier answered that it has no such segment."""


class TierUnavailableError(TierError):
    """The tier could not be asked, or failed. Another attempt may succeed."""


class TierTimeoutError(TierUnavailableError):
    """There was no answer within the deadline. What comes later is dropped."""


class TierFullError(TierError):
    """The tier has no room for it, or takes nothing of that size."""


class TierDamagedError(TierError):
    """What the tier has under that name is not what it says it is, or not all of it."""


class PageMismatchError(CachegenError):
    """A sound page that does not belong to this context: a miss.

    Attributes:
        reason: what differs.
        expected: its value in the context.
        actual: its value in the page.
    """

    def __init__(self, reason: MissReason, message: str, *, expected: object = None, actual: object = None) -> None:
        super().__init__(f"miss: {reason.value}: {message}")
        self.reason = reason
        self.detail = message
        self.expected = expected
        self.actual = actual


class NativeError(CachegenError):
    """A native call failed.

    Attributes:
        status: enum llama_kv_page_status.
        status_name: its name without the prefix, for example "ERR_NO_CELLS".
    """

    def __init__(self, status: int, status_name: str, message: str) -> None:
        super().__init__(f"{message} [{status_name}]")
        self.status = status
        self.status_name = status_name
        self.detail = message


class UnsupportedMemoryError(NativeError):
    """The context's memory cannot be paged, whatever the page. The status says which kind it is."""


class PageRangeError(NativeError):
    """The positions are not in the sequence, already are, do not begin where it ends, or miss some of a window."""


class NoCellsError(NativeError):
    """The context is too small, or other sequences take the room."""


class PageDigestError(NativeError):
    """Payload bytes do not match their digest. The context is as it was."""


class ArchiveImportError(NativeError):
    """An archive is damaged, or of a format that this library does not read. The context is as it was."""


class CancelledError(NativeError):
    """The caller asked to stop. The context is as it was."""


class NonFiniteError(NativeError):
    """The cache holds a NaN or an infinity, which a lossy archive cannot keep. Save it losslessly."""


class ReservationError(NativeError):
    """An import is already open, was overtaken, or is not complete."""


class QualifyError(CachegenError):
    """A qualification cannot be made or read."""


class WorkloadError(QualifyError):
    """A workload is not declared as it must be, or its model or text is not what it declares."""


class JournalError(QualifyError):
    """The finished samples of an interrupted run are of another setting, or in the way of a new run."""


class CertificateError(QualifyError):
    """A certificate is damaged, was edited, or contradicts itself."""


class ClaimError(QualifyError):
    """A document says something that no certificate shows."""
