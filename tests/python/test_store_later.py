"""Saving on the store's thread, reading ahead, progress, counters."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
import store_cases
from faulty_files import failing
from llama_cachegen.errors import StoreChainError, StoreError, StoreFullError, StoreQueueFullError, StoreReadOnlyError
from llama_cachegen.store import SaveResult, Store
from llama_cachegen.store.files import Files
from store_cases import EXACT, IDENTITY, held, open_store, payload_of, save, segment_files

tmp_path = store_cases.memory_path
FACTS: dict[str, Any] = {
    "payload_format": "lcg3",
    "decoded_bytes": 1000,
    "component_types": {"K": "f16", "V": "f16"},
}


def later(store: Store, tokens: Sequence[int], *, n_bytes: int = 200, **options: Any) -> Future[SaveResult]:
    begin = store.missing_from(IDENTITY, EXACT, tokens, with_queued=True) % len(tokens)
    payload = payload_of(tokens[begin:], n_bytes)
    return store.save_later(IDENTITY, EXACT, tokens, payload, pos_begin=begin, **{**FACTS, **options})


class Gate:
    """Files whose syncs wait until they are let through."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        gate = self

        class GatedFiles(Files):
            def sync(self, fd: int) -> None:
                gate.reached.set()
                assert gate.opened.wait(20)
                super().sync(fd)

        self.files = GatedFiles


def gated(path: Path, **options: Any) -> tuple[Store, Gate]:
    open_store(path).close()
    gate = Gate()
    return open_store(path, make_files=gate.files, **options), gate


def test_saved_off_the_callers_thread(tmp_path: Path) -> None:
    """The caller goes on, lookups too, while the store's thread waits for the disk; in the end it is there."""
    store, gate = gated(tmp_path / "s")
    with store:
        future = later(store, [1] * 8)
        assert gate.reached.wait(20)
        assert not future.done() and store.queued_bytes == 200
        t_start = time.perf_counter()
        assert held(store, [1] * 8) == 0 and store.stats().n_segments == 0
        assert time.perf_counter() - t_start < 5
        gate.opened.set()
        assert future.result(20).written and store.queued_bytes == 0
        assert held(store, [1] * 8) == 8
        assert (store.counters.n_queued, store.counters.n_saves) == (1, 1)


def test_what_waits_can_be_continued(tmp_path: Path) -> None:
    """A conversation saved every few tokens: each part continues the one before, which may still wait."""
    store, gate = gated(tmp_path / "s")
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    with store:
        futures = [later(store, tokens[:n]) for n in (4, 9, 13)]
        assert [one.pos_begin for one in store._queue.waiting] == [0, 4, 8]
        assert store.missing_from(IDENTITY, EXACT, tokens) == 0
        assert store.missing_from(IDENTITY, EXACT, tokens, with_queued=True) == 13
        assert store.missing_from(IDENTITY, EXACT, [*tokens[:6], 99], with_queued=True) == 4
        assert store.missing_from(store_cases.changed(namespace="x"), EXACT, tokens, with_queued=True) == 0
        gate.opened.set()
        assert all(one.result(20).written for one in futures)
        assert held(store, tokens) == 13


def test_the_payload_is_that_of_the_call(tmp_path: Path) -> None:
    """What the caller does with its memory afterwards changes nothing."""
    store, gate = gated(tmp_path / "s")
    with store:
        later(store, [9] * 8)
        memory = bytearray(payload_of([1] * 8))
        future = store.save_later(IDENTITY, EXACT, [1] * 8, memory, **FACTS)
        memory[:] = bytes(len(memory))
        gate.opened.set()
        future.result(20)
        assert held(store, [1] * 8) == 8


def test_the_queue_is_bounded(tmp_path: Path) -> None:
    store, gate = gated(tmp_path / "s", queue_bytes=500)
    with store:
        first, second = later(store, [1] * 8), later(store, [2] * 8)
        with pytest.raises(StoreQueueFullError, match="500"):
            later(store, [3] * 8)
        with pytest.raises(StoreQueueFullError, match="larger than the whole queue"):
            later(store, [3] * 8, n_bytes=501, when_full="wait")
        t_start = time.monotonic()
        with pytest.raises(StoreQueueFullError):
            later(store, [3] * 8, when_full="wait", wait_timeout_s=0.2)
        assert 0.2 <= time.monotonic() - t_start < 10
        assert store.counters.n_queue_refused == 3
        threading.Timer(0.2, gate.opened.set).start()
        third = later(store, [3] * 8, when_full="wait")
        assert first.done()
        for future in (second, third):
            assert future.result(20).written
        assert store.stats().n_segments == 3


def test_errors_come_with_the_future_and_are_counted(tmp_path: Path) -> None:
    layer = failing(errno.EIO, lasting=True, kinds=frozenset(["write"]))
    with open_store(tmp_path / "s", make_files=layer) as store:
        layer.fail_at = layer.n_calls + 1
        future = later(store, [1] * 8)
        with pytest.raises(OSError, match="Input/output"):
            future.result(20)
        layer.fail_at = 0
        assert store.counters.n_queue_failed == 1 and store.queued_bytes == 0
        assert later(store, [1] * 8).result(20).written
        assert held(store, [1] * 8) == 8


def test_what_continues_a_failed_save_fails_too(tmp_path: Path) -> None:
    store, gate = gated(tmp_path / "s", budget_bytes=9000)
    with store:
        later(store, [7] * 8)
        first = later(store, [1] * 8, n_bytes=9000)
        second = later(store, [1] * 12)
        gate.opened.set()
        with pytest.raises(StoreFullError):
            first.result(20)
        with pytest.raises(StoreChainError):
            second.result(20)
        assert store.counters.n_queue_failed == 2 and store.stats().n_segments == 1


def test_cancelled_before_it_begins(tmp_path: Path) -> None:
    store, gate = gated(tmp_path / "s")
    with store:
        first, second = later(store, [1] * 8), later(store, [2] * 8)
        assert gate.reached.wait(20)
        assert not first.cancel() and second.cancel()
        gate.opened.set()
        with pytest.raises(CancelledError):
            second.result(20)
        store.drain()
        assert held(store, [1] * 8) == 8 and held(store, [2] * 8) == 0
        assert store.counters.n_queue_cancelled == 1


def test_closing_drains(tmp_path: Path) -> None:
    store, gate = gated(tmp_path / "s")
    futures = [later(store, [n] * 8) for n in range(5)]
    threading.Timer(0.1, gate.opened.set).start()
    store.close()
    assert all(future.done() and future.result().written for future in futures)
    with pytest.raises(StoreError, match="closed"):
        store.save_later(IDENTITY, EXACT, [1] * 8, payload_of([1] * 8), **FACTS)
    with open_store(tmp_path / "s") as store:
        assert all(held(store, [n] * 8) == 8 for n in range(5)) and store.verify().ok


def test_refused_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, [1] * 8)
        for tokens, payload, changes in (
            ([1.5], payload_of([1]), {}),
            ([1] * 8, b"PK\3\4" + bytes(100), {}),
            ([1] * 8, payload_of([1]), {"pos_begin": 8}),
        ):
            with pytest.raises(ValueError):
                store.save_later(IDENTITY, EXACT, tokens, payload, **{**FACTS, **changes})
        assert store.counters.n_queued == 0
    with open_store(tmp_path / "s", mode="r") as store, pytest.raises(StoreReadOnlyError):
        store.save_later(IDENTITY, EXACT, [2] * 8, payload_of([2] * 8), **FACTS)


def test_async(tmp_path: Path) -> None:
    """The event loop runs while the queue is full."""
    store, gate = gated(tmp_path / "s", queue_bytes=250)
    n_ticks = 0

    async def tick() -> None:
        nonlocal n_ticks
        while True:
            n_ticks += 1
            if n_ticks == 5:
                gate.opened.set()
            await asyncio.sleep(0.01)

    async def run() -> list[SaveResult]:
        ticking = asyncio.create_task(tick())
        saves = [store.save_async(IDENTITY, EXACT, [n] * 8, payload_of([n] * 8), **FACTS) for n in range(3)]
        results = await asyncio.gather(*saves)
        ticking.cancel()
        with pytest.raises(StoreChainError):
            await store.save_async(IDENTITY, EXACT, [9] * 9, payload_of([9]), pos_begin=8, **FACTS)
        return list(results)

    with store:
        assert all(result.written for result in asyncio.run(run()))
        assert n_ticks >= 5 and store.stats().n_segments == 3


def test_saves_and_lookups_from_many_threads(tmp_path: Path) -> None:
    """Saves, lookups, evictions and removals at once: never a wrong byte, and the books agree in the end."""
    errors: list[BaseException] = []
    stop = threading.Event()

    def reading(store: Store, seed: int) -> None:
        n = seed
        try:
            while not stop.is_set():
                n += 1
                assert held(store, [n % 40] * 8) in (0, 8)
                store.missing_from(IDENTITY, EXACT, [n % 40] * 8, with_queued=True)
        except BaseException as error:
            errors.append(error)

    with open_store(tmp_path / "s", budget_bytes=100_000) as store:
        readers = [threading.Thread(target=reading, args=(store, n)) for n in range(3)]
        for reader in readers:
            reader.start()
        futures = [later(store, [n % 40] * 8, when_full="wait") for n in range(200)]
        for n, future in enumerate(futures):
            future.result(60)
            if n % 10 == 0:
                store.prune(60_000)
        stop.set()
        for reader in readers:
            reader.join()
        assert not errors, errors[0]
        assert store.verify().ok and store.stats().n_segments == len(segment_files(tmp_path / "s"))
        assert store.counters.n_evicted > 0 or store.stats().n_bytes <= 100_000


# reading ahead


class AdviceFiles(Files):
    """Notes what it was asked to read ahead."""

    asked: list[tuple[int, int, int]]

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked = []
        self.wait: threading.Event | None = None
        self.began = threading.Event()

    def will_need(self, fd: int, offset: int, n_bytes: int) -> None:
        self.began.set()
        assert self.wait is None or self.wait.wait(20)
        self.asked.append((os.fstat(fd).st_ino, offset, n_bytes))
        super().will_need(fd, offset, n_bytes)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with open_store(tmp_path / "s") as store:
        save(store, [1] * 8)
        save(store, [1] * 8 + [2] * 4)
        save(store, [1] * 8 + [3] * 4)
        save(store, [4] * 8)
    return tmp_path / "s"


def test_prefetch(saved: Path) -> None:
    """Every segment of every prompt once, whole, and no other."""
    seen: list[tuple[int, int]] = []
    with open_store(saved, mode="r", make_files=AdviceFiles) as store:
        prompts = [[1] * 8 + [2] * 4, [1] * 8 + [3] * 4 + [9], [8] * 4]
        report = store.prefetch(IDENTITY, prompts, progress=lambda *done: seen.append(done)).result(20)
        files: Any = store._files
        assert report.n_tokens == (12, 12, 0) and (report.n_segments, report.n_failed) == (3, 0)
        wanted = {key for tokens in prompts for key in store.lookup(IDENTITY, tokens).keys}
        sizes = {file.stat().st_ino: file.stat().st_size for file in segment_files(saved) if file.stem in wanted}
        assert {ino: n for ino, offset, n in files.asked if offset == 0} == sizes
        assert report.n_bytes == sum(sizes.values()) == store.counters.bytes_prefetched
        assert seen == [(1, 3), (2, 3), (3, 3)] and not report.is_cancelled


def test_prefetch_cancelled(saved: Path) -> None:
    store = open_store(saved, mode="r", make_files=AdviceFiles)
    files: Any = store._files
    files.wait = threading.Event()
    prefetch = store.prefetch(IDENTITY, [[1] * 8 + [2] * 4, [4] * 8], n_threads=1)
    assert files.began.wait(20)
    prefetch.cancel()
    files.wait.set()
    report = prefetch.result(20)
    assert report.is_cancelled and report.n_segments == 1 and len(files.asked) == 1
    files.wait.clear()
    files.began.clear()
    running = store.prefetch(IDENTITY, [[1] * 8 + [2] * 4, [4] * 8], n_threads=1)
    assert files.began.wait(20)
    with pytest.raises(TimeoutError):
        running.result(0.01)
    threading.Timer(0.1, files.wait.set).start()
    store.close()  # cancels and waits
    assert running.done and running.result().is_cancelled


def test_prefetch_of_what_is_gone(saved: Path) -> None:
    with open_store(saved) as store:
        key = store.lookup(IDENTITY, [4] * 8).keys[0]
        next(file for file in segment_files(saved) if file.stem == key).unlink()
        report = store.prefetch(IDENTITY, [[4] * 8, [1] * 8]).result(20)
        assert (report.n_segments, report.n_failed) == (1, 1)


# progress


class Stop(Exception):
    pass


def test_progress_of_a_save_and_stopping_it(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    n_bytes = (40 << 20) + 17
    with open_store(tmp_path / "s") as store:

        def stop(n_done: int, n_total: int) -> None:
            if n_done > n_total // 2:
                raise Stop

        payload = b"LCG3" + bytes(n_bytes - 4)
        for progress in (stop, lambda *done: seen.append(done)):
            try:
                result = store.save(IDENTITY, EXACT, [1] * 8, payload, progress=progress, **FACTS)
            except Stop:
                assert store.stats().n_segments == 0 and segment_files(tmp_path / "s") == []
                assert list((tmp_path / "s" / "tmp").iterdir()) == []
        assert len(seen) == 4 and [total for _, total in seen] == [result.file_bytes] * 4
        assert seen == sorted(seen) and seen[0][0] == result.file_bytes - n_bytes and seen[-1][0] == result.file_bytes


def test_progress_of_prune_and_stopping_it(saved: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_store(saved) as store:

        def stop(n_done: int, n_total: int) -> None:
            seen.append((n_done, n_total))
            if n_done == 2:
                raise Stop

        with pytest.raises(Stop):
            store.prune(0, progress=stop)
        assert seen == [(0, 4), (1, 4), (2, 4)]
        assert store.stats().n_segments == len(segment_files(saved)) == 2 and store.verify().ok
        assert len(store.prune(0)) == 2


def test_progress_of_making_the_index(saved: Path) -> None:
    seen: list[tuple[int, int]] = []
    n_dirs = len(list((saved / "segments").iterdir()))
    (saved / "index.sqlite").unlink()

    def stop(n_done: int, n_total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        open_store(saved, rebuild_progress=stop)
    with open_store(saved, rebuild_progress=lambda *done: seen.append(done)) as store:
        assert store.opened_by == "rebuilt" and seen == [(n, n_dirs) for n in range(n_dirs + 1)]
        with pytest.raises(Stop):
            store.rebuild_index(progress=stop)
        assert held(store, [4] * 8) == 8 and list((saved / "tmp").iterdir()) == []
        store.rebuild_index(progress=lambda *done: seen.append(done))
        assert len(seen) == 2 * (n_dirs + 1) and held(store, [4] * 8) == 8 and store.counters.n_index_failures == 0


# counters


def test_counters(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", budget_bytes=16_000) as store:
        assert store.counters.write_amplification is None and store.counters.written_per_read is None
        for n in range(3):
            save(store, [n] * 8, n_bytes=1000)
        assert held(store, [0] * 8) == 8
        assert store.stats().n_never_read == 2
        save(store, [5] * 8, n_bytes=1000)
        counters = store.counters
        assert counters.n_evicted == counters.n_evicted_never_read == 1
        assert counters.bytes_evicted_never_read == counters.bytes_evicted > 1000
        assert counters.bytes_written == 4 * counters.bytes_evicted
        assert counters.write_amplification == counters.bytes_written / 4000
        assert counters.written_per_read == 4.0
        facts = counters.as_dict()
        assert facts["write_amplification"] == counters.write_amplification and facts["n_saves"] == 4
        assert facts.keys() > {field.name for field in dataclasses.fields(counters)}


def test_prometheus(tmp_path: Path) -> None:
    prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client makes the metrics")
    from llama_cachegen.store import Counters, StoreStats
    from llama_cachegen.store.prometheus import _COUNTERS, _GAUGES, StoreCollector

    assert _COUNTERS.keys() == {field.name for field in dataclasses.fields(Counters)}
    assert _GAUGES.keys() == {field.name for field in dataclasses.fields(StoreStats)}
    registry = prometheus_client.CollectorRegistry()
    with open_store(tmp_path / "s", budget_bytes=9_000) as store:
        registry.register(StoreCollector(store, {"store": "a"}))
        for n in range(3):
            save(store, [n] * 8)
        assert held(store, [2] * 8) == 8
        text = prometheus_client.generate_latest(registry).decode()
        for name, value in (
            ("saves_total", 3), ("evicted_never_read_total", 1), ("hits_total", 1), ("segments", 2),
            ("never_read_segments", 1), ("budget_bytes", 9000), ("queue_bytes", 0),
            ("write_amplification", store.counters.write_amplification),
        ):  # fmt: skip
            assert registry.get_sample_value(f"llama_cachegen_store_{name}", {"store": "a"}) == value, name
        assert "# TYPE llama_cachegen_store_written_bytes_total counter" in text
    text = prometheus_client.generate_latest(registry).decode()
    assert "store_saves_total" in text and "store_segments" not in text  # closed: counters only
