"""Counters and contents of a store, and counters of the tiers behind it, for Prometheus. Needs the extra [prometheus].

from prometheus_client import REGISTRY
REGISTRY.register(StoreCollector(store, {"store": "pages"}))
REGISTRY.register(TierCollector(tiered_store, {"store": "pages"}))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("prometheus_client is missing; pip install 'llama-cachegen[prometheus]'") from error

from ..errors import StoreError
from .store import Store
from .tiers import TieredStore

__all__ = ["StoreCollector", "TierCollector"]

PREFIX = "llama_cachegen_store_"
TIER_PREFIX = "llama_cachegen_tier_"

_COUNTERS = {
    "n_saves": ("saves", "Entries written."),
    "n_present": ("saves_present", "Saves that found all of it there."),
    "n_hits": ("hits", "Prompts of which all was there."),
    "n_partial": ("partial_hits", "Prompts of which some was there."),
    "n_misses": ("misses", "Prompts of which nothing was there."),
    "payload_bytes_saved": ("payload_saved_bytes", "Bytes given to be saved."),
    "bytes_written": ("written_bytes", "Bytes of the files written for them."),
    "payload_bytes_read": ("payload_read_bytes", "Bytes of payloads mapped for reading."),
    "n_evicted": ("evicted", "Segments removed for want of room."),
    "bytes_evicted": ("evicted_bytes", "Their bytes."),
    "n_evicted_never_read": ("evicted_never_read", "Of these, segments that were never read."),
    "bytes_evicted_never_read": ("evicted_never_read_bytes", "Their bytes."),
    "n_quarantined": ("quarantined", "Segments found damaged and put aside."),
    "n_unreadable": ("unreadable", "Times the system refused to read a segment."),
    "n_refused": ("refused", "Saves refused for want of room or disk."),
    "n_index_failures": ("index_failures", "Times the index was made anew in use."),
    "n_queued": ("queued", "Saves given to the store's thread."),
    "n_queue_refused": ("queue_refused", "Saves refused for want of room in its queue."),
    "n_queue_cancelled": ("queue_cancelled", "Queued saves cancelled before they began."),
    "n_queue_failed": ("queue_failed", "Queued saves that failed."),
    "n_prefetched": ("prefetched", "Segments read ahead."),
    "bytes_prefetched": ("prefetched_bytes", "Their bytes."),
}
_GAUGES = {
    "n_segments": ("segments", "Segments there are."),
    "n_bytes": ("bytes", "Bytes of their files."),
    "n_never_read": ("never_read_segments", "Segments not read since they were saved."),
    "bytes_never_read": ("never_read_bytes", "Their bytes."),
    "n_pinned": ("pinned_segments", "Segments that are never evicted."),
    "n_quarantined": ("quarantined_segments", "Damaged segments kept aside."),
    "bytes_quarantined": ("quarantined_bytes", "Their bytes."),
    "budget_bytes": ("budget_bytes", "What the files may take."),
    "min_free_bytes": ("min_free_bytes", "What is left free of the disk."),
    "free_bytes": ("disk_free_bytes", "What is free of it."),
    "is_low_on_disk": ("low_on_disk", "1: nothing is saved until more is free."),
}
_TIER_COUNTERS = {
    "n_gets": ("gets", "Segments asked for."),
    "n_hits": ("hits", "Segments that came."),
    "n_absent": ("absent", "Segments that the tier said it does not have."),
    "n_puts": ("puts", "Segments given."),
    "n_present": ("puts_present", "Segments given that were there."),
    "n_full": ("full", "Segments given for which there was no room."),
    "n_timeouts": ("timeouts", "Calls without an answer in time."),
    "n_failures": ("failures", "Calls that failed."),
    "n_retries": ("retries", "Attempts after the first."),
    "n_not_asked": ("not_asked", "Calls not made, as the tier kept failing."),
    "n_broken": ("broken", "Segments that came damaged, forged or incomplete."),
    "n_unreadable": ("unreadable", "Segments that came of another version or key."),
    "n_known_broken": ("known_broken", "Questions answered by the memory of what was broken."),
    "n_replaced": ("replaced", "Broken segments that sound ones took the place of."),
    "n_lost_races": ("lost_races", "Segments that another host had put there first."),
    "bytes_got": ("got_bytes", "Bytes of segments that came."),
    "bytes_put": ("put_bytes", "Bytes of segments given."),
}


class StoreCollector(Collector):
    """Reads the store when it is asked; a closed store has its counters only.

    Args:
        store: open.
        labels: of every metric, for example {"store": "pages"}, to tell several stores apart.
    """

    def __init__(self, store: Store, labels: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._labels = dict(labels or {})

    def collect(self) -> Iterable[Metric]:
        """The metrics, as prometheus_client asks for them."""
        names, values = list(self._labels), list(self._labels.values())
        counters = dataclasses.asdict(self._store.counters)
        for field, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}{name}", text, labels=names)
            counter.add_metric(values, counters[field])
            yield counter
        gauges: dict[str, tuple[str, float]] = {}
        try:
            stats = dataclasses.asdict(self._store.stats())
        except StoreError:
            pass
        else:
            gauges = {name: (text, float(stats[field])) for field, (name, text) in _GAUGES.items()}
        amplification = self._store.counters.write_amplification
        if amplification is not None:
            gauges["write_amplification"] = ("Bytes written for each byte that was to be saved.", amplification)
        gauges["queue_bytes"] = ("Payloads that wait for the store's thread.", float(self._store.queued_bytes))
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=names)
            gauge.add_metric(values, value)
            yield gauge


class TierCollector(Collector):
    """Reads the tiers' counters when it is asked. Every metric has the label "tier", the tier's title.

    Args:
        tiered: the store whose tiers these are.
        labels: of every metric too, to tell several stores apart.
    """

    def __init__(self, tiered: TieredStore, labels: Mapping[str, str] | None = None) -> None:
        self._tiered = tiered
        self._labels = dict(labels or {})

    def collect(self) -> Iterable[Metric]:
        """The metrics, as prometheus_client asks for them."""
        names, values = [*self._labels, "tier"], list(self._labels.values())
        counters = {tier.title: dataclasses.asdict(tier.counters) for tier in self._tiered.tiers}
        for field, (name, text) in _TIER_COUNTERS.items():
            counter = CounterMetricFamily(f"{TIER_PREFIX}{name}", text, labels=names)
            for title, counted in counters.items():
                counter.add_metric([*values, title], counted[field])
            yield counter
        given_up = GaugeMetricFamily(f"{TIER_PREFIX}given_up", "1: it kept failing and is not asked.", labels=names)
        for tier in self._tiered.tiers:
            given_up.add_metric([*values, tier.title], float(tier.is_open))
        yield given_up
        dropped = CounterMetricFamily(
            f"{TIER_PREFIX}dropped", "Segments that were to be written back and were not.", labels=list(self._labels)
        )
        dropped.add_metric(values, self._tiered.n_dropped)
        yield dropped
