"""Tiers without servers: what is asked for, what is refused, and what a guard does with a tier that fails."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_cachegen.errors import (
    StoreReadOnlyError,
    TierDamagedError,
    TierMissingError,
    TierSetupError,
    TierUnavailableError,
)
from llama_cachegen.store.segment import read_prefix
from llama_cachegen.store.tiers import (
    GuardedTier,
    MemoryTier,
    Outcome,
    SegmentName,
    Tier,
    TierCounters,
    TieredStore,
    TierLimits,
    open_tier,
)
from llama_cachegen.store.tiers.adopting import read_segment
from llama_cachegen.store.tiers.breaker import Breaker
from llama_cachegen.store.tiers.calls import BoundedCalls
from llama_cachegen.store.tiers.names import name_of
from store_cases import BLOCK, EXACT, IDENTITY, LOSSY, check_snapshot, held, memory_path, open_store, payload_of, save
from tier_cases import guarded, host

__all__ = ["memory_path"]

MIB = 1 << 20


def memory() -> MemoryTier:
    return MemoryTier(64 * MIB)


def put(tiered: TieredStore, tokens: Sequence[int], *, n_bytes: int = 200, codec: Any = EXACT, **options: Any) -> str:
    """Save what is missing of these tokens, through the tiers. Returns the segment's key."""
    begin = tiered.missing_from(IDENTITY, codec, tokens)
    result = tiered.save(
        IDENTITY,
        codec,
        tokens,
        payload_of(tokens[begin:], n_bytes),
        pos_begin=begin,
        payload_format="lcg3",
        decoded_bytes=1000,
        component_types={"K": "f16", "V": "f16"},
        **options,
    )
    return result.key


def got(tiered: TieredStore, tokens: Sequence[int], **options: Any) -> int:
    """Tokens of a prompt that come, checked byte by byte."""
    with tiered.snapshot(IDENTITY, tokens, **options) as snapshot:
        return check_snapshot(snapshot, tokens)


def name_in(tiered: TieredStore, key: str) -> SegmentName:
    data = read_segment(tiered.store, bytes.fromhex(key))
    return name_of(read_prefix(lambda n, at: data[at : at + n], len(data), tiered.store._key))


class Spoiled(MemoryTier):
    """Memory that does something else before it answers."""

    def __init__(self, spoil: Callable[[], None]) -> None:
        super().__init__(64 * MIB)
        self.spoil = spoil
        self.n_calls = 0

    def __getattribute__(self, attribute: str) -> Any:
        found = super().__getattribute__(attribute)
        if attribute not in ("get", "head", "put", "contains", "list_group", "delete"):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.n_calls += 1
            self.spoil()
            return found(*arguments, **options)

        return call


def failing() -> None:
    raise TierUnavailableError("it fails")


# what comes


@pytest.mark.parametrize("n_tokens", [3, 4, 7, 8, 21])
def test_another_host_gets_the_same_bytes(memory_path: Path, n_tokens: int) -> None:
    tier, tokens = memory(), list(range(n_tokens))
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        key = bytes.fromhex(put(a, tokens))
        assert got(b, tokens) == n_tokens
        assert read_segment(b.store, key) == read_segment(a.store, key)
        assert b.counters["memory"].n_hits == 1
        # the second time nothing is asked
        n_gets = b.counters["memory"].n_gets
        assert got(b, tokens) == n_tokens and b.counters["memory"].n_gets == n_gets
        assert b.store.verify().ok


def test_a_prompt_that_departs_in_the_middle_of_a_segment(memory_path: Path) -> None:
    tier = memory()
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        put(a, list(range(22)))
        prompt = [*range(14), 90, 91, 92, 93]
        assert got(b, prompt) == 12  # three blocks; the fourth is another
        assert got(b, prompt[:13]) == 12


def test_a_chain_of_several_segments_and_a_tail(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(30))
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b, host(memory_path / "c", tier) as c:
        for n in (8, 16, 19, 30):
            put(a, tokens[:n])
        report = b.fetch(IDENTITY, tokens)
        assert (report.n_tokens_before, report.n_tokens) == (0, 30) and report.n_segments == 3
        assert got(b, tokens) == 30
        assert got(c, tokens[:19]) == 19  # ends in the middle of a block: only the tail of 3 tokens ends there
        assert c.fetch(IDENTITY, [*tokens[:19], 77]).n_tokens == 16 + 3


def test_only_what_is_missing_comes(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(24))
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        put(a, tokens[:8])
        put(a, tokens)
        save(b.store, tokens[:8])
        report = b.fetch(IDENTITY, tokens)
        assert (report.n_tokens_before, report.n_tokens, report.n_segments) == (8, 24, 1)


def test_two_hosts_that_began_alike_without_knowing_of_each_other(memory_path: Path) -> None:
    """The local prefix ends within a segment; the tier's goes further, from the same beginning."""
    tier = memory()
    one, other = [*range(8), *range(50, 58)], [*range(8), *range(70, 86)]
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        save(a.store, one)
        save(b.store, other)
        b.push()
        a.push()
        assert got(a, other) == len(other)
        assert got(b, one) == len(one)


def test_entries_that_must_be_used_whole(memory_path: Path) -> None:
    tier = memory()
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        put(a, list(range(16)), divisible=False)
        assert got(b, [*range(12), 99]) == 0
        assert got(b, list(range(16))) == 16
        assert b.counters["memory"].n_gets == 1


def test_lossy_entries_answer_only_who_takes_them(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(8))
    with (
        host(memory_path / "a", tier, codecs=[LOSSY]) as a,
        host(memory_path / "b", tier, codecs=[EXACT, LOSSY]) as b,
    ):
        put(a, tokens, codec=LOSSY)
        assert got(b, tokens) == 0
        assert got(b, tokens, lossy=True) == 8


def test_what_is_far_is_kept_near(memory_path: Path) -> None:
    far, near, tokens = memory(), memory(), list(range(8))
    far.title, far.is_near = "far", False
    with host(memory_path / "a", far) as a, host(memory_path / "b", near, far) as b:
        key = put(a, tokens)
        assert got(b, tokens) == 8
        assert near.n_bytes == far.n_bytes > 0
        b.store.remove(key)
        assert got(b, tokens) == 8
        assert b.counters["memory"].n_hits == 1 and b.counters["far"].n_hits == 1


def test_a_damaged_local_segment_is_fetched_again(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(8))
    with host(memory_path / "a", tier) as a:
        key = bytes.fromhex(put(a, tokens))
        path = next((memory_path / "a").glob("segments/*/*.seg"))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        assert held(a.store, tokens) == 0  # put aside
        assert got(a, tokens) == 8
        assert a.store.entry(key.hex()).key == key


def test_missing_from_knows_what_a_tier_has(memory_path: Path) -> None:
    tier = memory()
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        put(a, list(range(12)))
        assert b.missing_from(IDENTITY, EXACT, list(range(20))) == 12


def test_a_local_store_without_room_gives_what_it_has(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(8))
    with (
        host(memory_path / "a", tier) as a,
        host(memory_path / "b", tier, store={"budget_bytes": 1000}) as b,
    ):
        put(a, tokens)
        report = b.fetch(IDENTITY, tokens)
        assert report.n_tokens == 0 and "budget" in report.not_kept
        assert got(b, tokens) == 0


def test_a_store_for_reading_cannot_keep_anything(memory_path: Path) -> None:
    open_store(memory_path).close()
    with open_store(memory_path, mode="r") as store, pytest.raises(StoreReadOnlyError, match="reading"):
        TieredStore(store, [memory()], codecs=[EXACT])


# what is refused


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "keyed"])
def test_every_region_flipped_is_refused_and_not_asked_for_again(memory_path: Path, key: bytes | None) -> None:
    tokens, n_refused = list(range(8)), 0
    with open_store(memory_path / "a", key=key) as a:
        whole = read_segment(a, bytes.fromhex(save(a, tokens).key))
        prefix = read_prefix(lambda n, at: whole[at : at + n], len(whole), key)
        name = name_of(prefix)
    spoiled = {f"cut at {n}": whole[:n] for n in (0, 1, 127, 128, 1000, 4096, len(whole) - 1)}
    spoiled["longer"] = whole + b"\0"
    for where, offset in regions_of(prefix, len(whole)).items():
        for mask in (0x01, 0x80):
            data = bytearray(whole)
            data[offset] ^= mask
            spoiled[f"{where} ^ {mask:#x}"] = bytes(data)
    for i, (what, data) in enumerate(spoiled.items()):
        tier = memory()
        tier.put(name, data, replace=False, timeout_s=1)
        with host(memory_path / f"b{i}", tier, store={"key": key}) as b:
            assert got(b, tokens) == 0, what
            counters = b.counters["memory"]
            assert counters.n_broken + counters.n_unreadable == 1, what
            assert not list((memory_path / f"b{i}").glob("segments/*/*")), what
            n_gets = counters.n_gets
            assert got(b, tokens) == 0 and counters.n_gets == n_gets and counters.n_known_broken == 1, what
        n_refused += 1
    print(f"{n_refused} spoiled objects refused, each asked for once")


def regions_of(prefix: Any, n_bytes: int) -> dict[str, int]:
    plan = prefix.plan
    header = {"magic": 1, "version": 8, "flags": 10, "header size": 12, "file size": 16, "manifest size": 24,
              "tokens offset": 32, "payload offset": 40, "payload size": 48, "n_tokens": 56, "zero": 60,
              "reserved": 70, "digest": 100}  # fmt: skip
    return header | {
        "manifest begins": 128,
        "manifest": 700,
        "manifest ends": plan.tokens_offset - 8,
        "tokens": plan.tokens_offset,
        "tokens end": plan.tokens_offset + 4 * prefix.n_tokens - 1,
        "padding": plan.payload_offset - 1,
        "payload begins": plan.payload_offset,
        "payload": plan.payload_offset + 100,
        "payload ends": n_bytes - 1,
    }


@pytest.mark.parametrize("theirs", [None, bytes(32)], ids=["no key", "another key"])
def test_who_has_not_the_key_writes_nothing_that_is_taken(memory_path: Path, theirs: bytes | None) -> None:
    """Forged under the right name: names can be seen by whoever reads the tier."""
    tokens, ours = list(range(8)), bytes(range(32))
    with open_store(memory_path / "names", key=ours) as store:
        data = read_segment(store, bytes.fromhex(save(store, tokens).key))
        name = name_of(read_prefix(lambda n, at: data[at : at + n], len(data), ours))
    with open_store(memory_path / "forged", key=theirs) as store:
        forged = read_segment(store, bytes.fromhex(save(store, tokens).key))
    tier = memory()
    tier.put(name, forged, replace=False, timeout_s=1)
    with host(memory_path / "b", tier, store={"key": ours}) as b:
        assert got(b, tokens) == 0
        assert b.counters["memory"].n_broken + b.counters["memory"].n_unreadable == 1


def test_swapped_objects_are_refused(memory_path: Path) -> None:
    tier = memory()
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        one, other = (name_in(a, put(a, tokens)) for tokens in (list(range(8)), list(range(40, 48))))
        data = tier.get(other, MIB, timeout_s=1)
        tier.put(one, data, replace=True, timeout_s=1)
        assert got(b, list(range(8))) == 0
        assert got(b, list(range(40, 48))) == 8
        assert b.counters["memory"].n_broken == 1


def test_a_segment_of_the_future_is_refused(memory_path: Path) -> None:
    tier, kept, tokens = memory(), memory(), list(range(8))
    with host(memory_path / "a", tier, store={"clock": lambda: time.time() + 90_000}) as a:
        name = name_in(a, put(a, tokens))
        kept.put(name, tier.get(name, MIB, timeout_s=1), replace=False, timeout_s=1)
    with host(memory_path / "b", kept) as b:
        assert got(b, tokens) == 0
        assert b.counters["memory"].n_broken == 1


def test_names_that_are_none_are_left_out() -> None:
    group = "b" + "0" * 64
    good = f"8-{'a' * 64}"
    assert SegmentName.of_entry(group, good) == SegmentName(group, 8, b"\xaa" * 32)
    for entry in ("", "8-", f"0-{'a' * 64}", f"8-{'A' * 64}", f"8-{'a' * 64}/x", f"8-{'a' * 64}\n", f"٣-{'a' * 64}"):
        assert SegmentName.of_entry(group, entry) is None
    assert SegmentName.of_entry("../" + group, good) is None


# writing


def test_a_broken_object_is_replaced_by_who_has_a_sound_one(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(8))
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b, host(memory_path / "c", tier) as c:
        key = put(a, tokens)
        name = name_in(a, key)
        sound = tier.get(name, MIB, timeout_s=1)
        tier.put(name, sound[:-1] + bytes([sound[-1] ^ 1]), replace=True, timeout_s=1)
        assert got(b, tokens) == 0
        (report,) = a.push()
        # header and manifest are sound, so that only a reader notices; who noticed and has it saves it again
        assert report.outcomes == {Outcome.PRESENT.value: 1}
        save(b.store, tokens)
        (report,) = b.push()
        assert report.outcomes == {Outcome.WRITTEN.value: 1} and b.counters["memory"].n_replaced == 1
        b.store.remove(key)
        assert got(b, tokens) == 8  # who knew it as broken asks for it again
        assert got(c, tokens) == 8


@pytest.mark.parametrize("n_bytes", [200, 5000])
def test_two_hosts_that_race_end_with_the_same_bytes(memory_path: Path, n_bytes: int) -> None:
    tokens = list(range(8))
    for i in range(10):
        tier, start = memory(), threading.Barrier(2)
        with host(memory_path / f"a{i}", tier) as a, host(memory_path / f"b{i}", tier) as b:

            def race(one: TieredStore, start: threading.Barrier = start) -> None:
                start.wait()
                put(one, tokens, n_bytes=n_bytes if one is a else n_bytes + 1)

            threads = [threading.Thread(target=race, args=(one,)) for one in (a, b)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (key,) = {row.key for one in (a, b) for row, _ in one.store.entries()}
            mine, theirs = read_segment(a.store, key), read_segment(b.store, key)
            assert mine == theirs == tier.get(name_in(a, key.hex()), MIB, timeout_s=1)
            assert got(a, tokens) == got(b, tokens) == 8
            assert a.store.verify().ok and b.store.verify().ok


def test_what_is_taken_over_stays_where_it_is_in_its_chain(memory_path: Path) -> None:
    tier, tokens = memory(), list(range(20))
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        for n in (8, 16, 20):
            save(a.store, tokens[:n], n_bytes=300)
            save(b.store, tokens[:n], n_bytes=400)
        assert a.push()[0].outcomes == {Outcome.WRITTEN.value: 3}
        assert b.push()[0].outcomes == {Outcome.TAKEN_OVER.value: 3}
        assert held(b.store, tokens) == 20 and not any(row.is_orphan for row, _ in b.store.entries())
        assert {row.payload_bytes for row, _ in b.store.entries()} == {300} and b.store.verify().ok


def test_damage_on_the_local_disk_does_not_spread(memory_path: Path) -> None:
    tier = memory()
    with host(memory_path / "a", tier, write="none") as a:
        put(a, list(range(8)))
        path = next((memory_path / "a").glob("segments/*/*.seg"))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        (report,) = a.push()
        assert report.outcomes == {Outcome.GONE.value: 1} and tier.n_bytes == 0


def test_what_an_entry_continues_is_given_with_it(memory_path: Path) -> None:
    tier = memory()
    with host(memory_path / "a", tier, write="through") as a, host(memory_path / "b", tier) as b:
        save(a.store, list(range(8)))  # while the tier could not be reached
        a.offer(save(a.store, list(range(16))).key)
        assert got(b, list(range(16))) == 16


def test_write_back_returns_at_once_and_flushes_on_close(memory_path: Path) -> None:
    tier = Spoiled(lambda: time.sleep(0.05))
    with host(memory_path / "a", guarded(tier), write="back", close_timeout_s=20.0) as a:
        begin = time.monotonic()
        for i in range(5):
            a.offer(save(a.store, [i] * 8).key)
        assert time.monotonic() - begin < 2 and a._behind.n_waiting > 0
        assert not a.flush(0.0)
        counters = a.counters["memory"]
    assert counters.n_failures == 0 and counters.bytes_put > 0 and a.n_dropped == 0


def test_write_back_is_bounded(memory_path: Path) -> None:
    gate = threading.Event()
    tier = Spoiled(lambda: gate.wait(20) and None)
    with host(memory_path / "a", guarded(tier), write="back", max_waiting=2, close_timeout_s=20.0) as a:
        for i in range(6):
            a.offer(save(a.store, [i] * 8).key)
        assert a.n_dropped in (3, 4) and a._behind.n_waiting <= 3
        gate.set()
        assert a.flush(20)


def test_a_tier_that_hangs_does_not_hold_up_close(memory_path: Path) -> None:
    gate = threading.Event()
    tier = guarded(Spoiled(lambda: gate.wait(20) and None), deadline_s=0.2)
    begin = time.monotonic()
    with host(memory_path / "a", tier, write="back", close_timeout_s=0.3) as a:
        put(a, list(range(8)))
    assert time.monotonic() - begin < 3
    assert tier.counters.n_timeouts >= 1 and held_after(memory_path / "a") == 8
    gate.set()


def held_after(path: Path) -> int:
    with open_store(path) as store:
        return held(store, list(range(8)))


# the guard


def test_a_call_that_never_ends_is_a_miss_by_the_deadline(memory_path: Path) -> None:
    gate = threading.Event()
    tier = guarded(Spoiled(lambda: gate.wait(30) and None), deadline_s=0.2, max_calls=2)
    with host(memory_path, tier, deadline_s=0.5) as one:
        begin = time.monotonic()
        assert got(one, list(range(8))) == 0
        assert time.monotonic() - begin < 2
        assert tier.counters.n_timeouts == 2 and tier._calls.n_left_behind == 2
        # no third thread is started
        assert got(one, list(range(8))) == 0
        assert tier._calls.n_left_behind == 2
        gate.set()


def test_attempts_are_bounded_and_pause(memory_path: Path) -> None:
    spoiled = Spoiled(failing)
    tier = guarded(spoiled, n_attempts=3, pause_s=0.05, breaker_failures=100)
    begin = time.monotonic()
    assert tier.list_group("b" + "0" * 64, 1, tier.deadline()) == []
    assert time.monotonic() - begin >= 0.15
    assert (spoiled.n_calls, tier.counters.n_failures, tier.counters.n_retries) == (3, 3, 2)
    # a pause that does not fit is not made
    begin = time.monotonic()
    tier = guarded(spoiled, n_attempts=3, pause_s=5.0, deadline_s=0.5)
    tier.list_group("b" + "0" * 64, 1, tier.deadline())
    assert time.monotonic() - begin < 0.5 and tier.counters.n_failures == 1


def test_an_error_of_a_library_is_a_miss_too(memory_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("of no known kind")

    tier = guarded(Spoiled(broken), breaker_failures=100)
    with host(memory_path, tier) as one:
        assert got(one, list(range(8))) == 0
        assert tier.counters.n_failures == 6 and "no known kind" in tier.last_error


def test_a_tier_that_keeps_failing_is_left_alone_for_a_while() -> None:
    now = [0.0]
    is_down = [True]
    spoiled = Spoiled(lambda: failing() if is_down[0] else None)
    tier = GuardedTier(spoiled, TierLimits(n_attempts=1, breaker_failures=3, breaker_open_s=5.0), lambda: now[0])
    group = "b" + "0" * 64
    for _ in range(6):
        tier.list_group(group, 1, tier.deadline())
    assert spoiled.n_calls == 3 and tier.counters.n_not_asked == 3 and tier.is_open
    now[0] = 5.1
    tier.list_group(group, 1, tier.deadline())  # a trial, which fails
    tier.list_group(group, 1, tier.deadline())
    assert spoiled.n_calls == 4
    is_down[0] = False
    now[0] = 10.2  # the pause was doubled
    tier.list_group(group, 1, tier.deadline())
    assert spoiled.n_calls == 4
    now[0] = 15.3
    tier.list_group(group, 1, tier.deadline())
    assert spoiled.n_calls == 5 and not tier.is_open


def test_what_a_tier_says_does_not_open_the_breaker() -> None:
    def missing() -> None:
        raise TierMissingError("it has none")

    tier = guarded(Spoiled(missing), n_attempts=3)
    name = SegmentName("b" + "0" * 64, 4, bytes(32))
    for _ in range(5):
        assert tier.get(name, tier.deadline()) is None
    assert (tier.counters.n_absent, tier.counters.n_failures, tier.is_open) == (5, 0, False)


def test_only_one_call_tries_an_open_breaker() -> None:
    breaker = Breaker(1, 1.0, clock=lambda: 2.0 if breaker_is_open else 0.0)
    breaker_is_open = False
    breaker.failed()
    breaker_is_open = True
    assert [breaker.allows(1.0) for _ in range(3)] == [True, False, False]


def test_broken_is_forgotten_after_a_while() -> None:
    now = [0.0]

    def damaged() -> None:
        raise TierDamagedError("not all of it")

    spoiled = Spoiled(damaged)
    tier = GuardedTier(spoiled, TierLimits(broken_s=10.0), lambda: now[0])
    name = SegmentName("b" + "0" * 64, 4, bytes(32))
    for _ in range(3):
        assert tier.get(name, tier.deadline()) is None
    assert spoiled.n_calls == 1 and (tier.counters.n_broken, tier.counters.n_known_broken) == (1, 2)
    now[0] = 10.1
    tier.get(name, tier.deadline())
    assert spoiled.n_calls == 2


def test_calls_do_not_pile_up() -> None:
    calls, gate = BoundedCalls(2, "a tier"), threading.Event()
    for _ in range(2):
        with pytest.raises(TierUnavailableError, match="no answer within"):
            calls.run(gate.wait, 0.05)
    begin = time.monotonic()
    with pytest.raises(TierUnavailableError, match="2 earlier calls"):
        calls.run(gate.wait, 0.05)
    assert time.monotonic() - begin < 1
    gate.set()
    while calls.n_left_behind:
        time.sleep(0.01)
    assert calls.run(lambda: 5, 1.0) == 5


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    tier = MemoryTier(1000)
    names = [SegmentName(f"b{i:064x}", BLOCK, bytes([i]) * 32) for i in range(5)]
    for name in names[:3]:
        assert tier.put(name, bytes(300), replace=False, timeout_s=1)
    tier.get(names[0], 1000, timeout_s=1)  # used
    assert tier.put(names[3], bytes(300), replace=False, timeout_s=1)
    assert tier.n_bytes == 900 and tier.contains(names, timeout_s=1) == {names[0], names[2], names[3]}
    with pytest.raises(TierDamagedError, match="more than 10"):
        tier.get(names[0], 10, timeout_s=1)
    guard: GuardedTier = guarded(tier)
    assert guard.put(names[4], bytes(1001), guard.deadline()) is None and guard.counters.n_full == 1
    tier.delete(names[0], timeout_s=1)
    assert tier.list_group(names[0].group, 9, timeout_s=1) == [] and tier.n_bytes == 600


@pytest.mark.parametrize("url", ["ftp://x", "mooncake://h:1?colour=red", "mooncake://h:1?buffer=7", "", "redis-ish"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(TierSetupError):
        tier: Tier = open_tier(url)
        tier.close()


def test_a_broken_header_is_read_once(memory_path: Path) -> None:
    """Of a segment whose name does not tell how far it goes with the prompt."""
    tier = Spoiled(lambda: None)
    with host(memory_path / "a", guarded(tier)) as a, host(memory_path / "b", guarded(tier)) as b:
        name = name_in(a, put(a, list(range(16))))
        data = tier.get(name, MIB, timeout_s=1)
        tier.put(name, data[:300] + b"?" + data[301:], replace=True, timeout_s=1)
        prompt, n_calls = [*range(8), *range(60, 68)], []
        for _ in range(3):
            tier.n_calls = 0
            assert got(b, prompt) == 0
            n_calls.append(tier.n_calls)
        assert n_calls[1] == n_calls[2] == n_calls[0] - 1
        assert b.counters["memory"].n_broken == 1 and b.counters["memory"].n_known_broken == 2


def test_titles_show_no_passwords() -> None:
    pytest.importorskip("redis", reason="redis is not installed")
    tier = open_tier("redis://someone:secret@127.0.0.1:1/0")
    assert tier.title == "redis://127.0.0.1:1/0"
    tier.close()


def test_prometheus(memory_path: Path) -> None:
    prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client makes the metrics")
    from llama_cachegen.store.prometheus import _TIER_COUNTERS, TierCollector

    assert _TIER_COUNTERS.keys() == {field.name for field in dataclasses.fields(TierCounters)}
    registry = prometheus_client.CollectorRegistry()
    tier = memory()
    with host(memory_path / "a", tier) as a, host(memory_path / "b", tier) as b:
        registry.register(TierCollector(b, {"store": "b"}))
        put(a, list(range(8)))
        assert got(b, list(range(8))) == 8
        labels = {"store": "b", "tier": b.tiers[0].title}
        n_bytes = b.counters[labels["tier"]].bytes_got
        assert n_bytes > 200
        for name, value in (("hits_total", 1), ("puts_total", 0), ("got_bytes_total", n_bytes), ("given_up", 0)):
            assert registry.get_sample_value(f"llama_cachegen_tier_{name}", labels) == value, name
        assert registry.get_sample_value("llama_cachegen_tier_dropped_total", {"store": "b"}) == 0
