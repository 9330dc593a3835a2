"""Slow and plain second implementations: what the native codec is compared with.

`lcg3` reads LCG3. The others are CacheGen as LMCache 0.5.6 has it: `encode` and `decode` a whole call, its container in
both directions. Pure numpy; nothing here uses compiled code of this package.
"""

from __future__ import annotations

from .lmcache import (
    MAX_ENCODE_TOKENS,
    CacheGenPayload,
    SubChunk,
    check_payload,
    decode,
    decode_symbols,
    encode,
    payload_from_container,
    payload_to_container,
)
from .quantizer import ValueType
from .schedule import Schedule, lmcache_schedule

__all__ = [
    "MAX_ENCODE_TOKENS",
    "CacheGenPayload",
    "Schedule",
    "SubChunk",
    "ValueType",
    "check_payload",
    "decode",
    "decode_symbols",
    "encode",
    "lmcache_schedule",
    "payload_from_container",
    "payload_to_container",
]
