"""Exceptions of the codec. Native statuses become them in one place, `llama_cachegen.codec._lib.check`."""

from __future__ import annotations

from ..errors import CachegenError

__all__ = ["ArchiveError", "CodecError", "EncodeError", "UnsupportedArchiveError"]


class CodecError(CachegenError):
    """The codec refused.

    Attributes:
        status: enum cachegen_status.
        status_name: its name without the prefix, for example "ERR_TABLE".
        detail: what was wrong, where, and what to do.
    """

    def __init__(self, status: int, status_name: str, message: str) -> None:
        super().__init__(f"{message} [{status_name}]")
        self.status = status
        self.status_name = status_name
        self.detail = message


class ArchiveError(CodecError):
    """The archive is damaged, cut short, or made to do harm. What it was decoded into may have been written in part."""


class EncodeError(CodecError):
    """These values cannot be encoded in this format."""


class UnsupportedArchiveError(CodecError):
    """The archive is sound, but of a version, type or layout that this library or this destination does not take."""
