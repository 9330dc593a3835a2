"""The codec: a page's values as a small checked archive, and back into typed rows.

`encode` and `Archive` work on planes, `encode_page` and `decode_page` on pages. `profiles` says how finely each layer
is quantised.
"""

from __future__ import annotations

from .archive import Archive, ArchiveInfo, ArchivePlane, Kind, Mode, Plane, encode
from .errors import ArchiveError, CodecError, EncodeError, UnsupportedArchiveError
from .pages import decode_page, encode_page, page_planes
from .profiles import BALANCED, EXACT, FINE, LMCACHE, PROFILES, Profile, Span, get_profile

__all__ = [
    "BALANCED",
    "EXACT",
    "FINE",
    "LMCACHE",
    "PROFILES",
    "Archive",
    "ArchiveError",
    "ArchiveInfo",
    "ArchivePlane",
    "CodecError",
    "EncodeError",
    "Kind",
    "Mode",
    "Plane",
    "Profile",
    "Span",
    "UnsupportedArchiveError",
    "decode_page",
    "encode",
    "encode_page",
    "get_profile",
    "page_planes",
]
