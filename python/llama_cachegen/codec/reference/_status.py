"""The statuses of native/codec/cachegen.h that the reference reports, by name."""

from __future__ import annotations

from ..errors import ArchiveError, CodecError, EncodeError, UnsupportedArchiveError

__all__ = ["argument_error", "bad_archive", "cannot_encode", "unsupported"]

_STATUS = {
    "ARGUMENT": 1,
    "NON_FINITE": 10,
    "TRUNCATED": 20,
    "TRAILING": 21,
    "MAGIC": 22,
    "VERSION": 23,
    "RESERVED": 24,
    "GEOMETRY": 25,
    "COVERAGE": 26,
    "TABLE": 27,
    "STREAM": 28,
    "LIMIT": 30,
    "UNSUPPORTED": 40,
    "MISMATCH": 41,
}


def argument_error(message: str) -> CodecError:
    """The call is wrong."""
    return CodecError(_STATUS["ARGUMENT"], "ERR_ARGUMENT", message)


def cannot_encode(status: str, message: str) -> EncodeError:
    """The values cannot be encoded; status is a name without ERR_."""
    return EncodeError(_STATUS[status], f"ERR_{status}", message)


def bad_archive(status: str, message: str) -> ArchiveError:
    """The archive is damaged or hostile; status is a name without ERR_."""
    return ArchiveError(_STATUS[status], f"ERR_{status}", message)


def unsupported(status: str, message: str) -> UnsupportedArchiveError:
    """The archive is sound, but not for this library or this call; status is a name without ERR_."""
    return UnsupportedArchiveError(_STATUS[status], f"ERR_{status}", message)
