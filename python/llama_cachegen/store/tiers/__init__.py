"""Places beside the local store that hold segments too: host memory, S3, Redis, Mooncake. docs/store-tiers.md.

`TieredStore` reads and writes through them; each is a `Tier` behind a `GuardedTier`.
"""

from __future__ import annotations

from .fetching import FetchReport
from .guard import GuardedTier, TierCounters, TierLimits
from .memory_tier import MemoryTier
from .mooncake_tier import MooncakeTier
from .names import SegmentName
from .object_tier import ObjectTier
from .redis_tier import RedisTier
from .tier import Tier
from .tiered_store import PushReport, TieredStore
from .uploading import Outcome
from .urls import open_tier

__all__ = [
    "FetchReport",
    "GuardedTier",
    "MemoryTier",
    "MooncakeTier",
    "ObjectTier",
    "Outcome",
    "PushReport",
    "RedisTier",
    "SegmentName",
    "Tier",
    "TierCounters",
    "TierLimits",
    "TieredStore",
    "open_tier",
]
