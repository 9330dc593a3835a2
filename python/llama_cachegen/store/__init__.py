"""Durable pages with prefix reuse: a directory of self-describing segment files.

`Store` saves and finds them, `Snapshot` is what a lookup found, open. docs/store.md says what it promises, and
docs/formats/store-segment.md what is in a file.
"""

from __future__ import annotations

from .identity import Adapter, CodecStamp, ComponentGroup, StoreIdentity, component_groups, store_identity
from .prefetch import Prefetch, PrefetchReport
from .reports import Counters, Lookup, SaveResult, StoreStats
from .segment import MeasuredError
from .sizes import format_size, parse_size
from .snapshot import Miss, Snapshot, SnapshotPart
from .store import Store

__all__ = [
    "Adapter",
    "CodecStamp",
    "ComponentGroup",
    "Counters",
    "Lookup",
    "MeasuredError",
    "Miss",
    "Prefetch",
    "PrefetchReport",
    "SaveResult",
    "Snapshot",
    "SnapshotPart",
    "Store",
    "StoreIdentity",
    "StoreStats",
    "component_groups",
    "format_size",
    "parse_size",
    "store_identity",
]
