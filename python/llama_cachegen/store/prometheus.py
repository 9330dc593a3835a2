"""A store's counters and contents as Prometheus metrics. Needs the extra [prometheus].

from prometheus_client import REGISTRY
REGISTRY.register(StoreCollector(store, {"store": "pages"}))
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

__all__ = ["StoreCollector"]

PREFIX = "llama_cachegen_store_"

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
