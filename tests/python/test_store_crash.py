"""A crash at every file operation: what was committed is there after it, whole or not at all.

Every scenario is run once on a file layer that records it. Then every disk that a crash can leave is made: after each
operation; with any of the names that no directory was synced for; with the bytes that were not synced written, dropped,
torn or garbage; with the index as it was, older, torn, garbage or missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import NATIVE_REPORTS
from faulty_files import DATA_MODES, INDEX_MODES, Disk, QuietFiles
from llama_cachegen.errors import MissReason
from llama_cachegen.store import Store
from store_cases import IDENTITY, check_snapshot, flip, held, memory_path, open_store, save, segment_files

A, B, C, D = [1] * 8, [1] * 8 + [2] * 5, [3] * 9, [1] * 8 + [4] * 6
"""B and D continue A."""
ALL = (A, B, C, D)
BUDGET = 14_000
"""Three segments."""

Scenario = Callable[[Path, Disk], None]


scratch = memory_path


def recorded(path: Path, disk: Disk) -> Store:
    return open_store(path, make_files=disk.files, budget_bytes=BUDGET)


def scenario_create(path: Path, disk: Disk) -> None:
    with recorded(path, disk) as store:
        save(store, A)
        disk.note(("committed", A))


def scenario_save(path: Path, disk: Disk) -> None:
    with recorded(path, disk) as store:
        disk.note(("committed", A))
        save(store, B)
        disk.note(("committed", B))
        save(store, C)
        disk.note(("committed", C))


def scenario_evict(path: Path, disk: Disk) -> None:
    with recorded(path, disk) as store:
        for tokens in (A, B, C):
            disk.note(("committed", tokens))
        assert held(store, B) == 13
        disk.note(("going", C))
        assert save(store, D).n_evicted == 1
        disk.note(("committed", D))
        disk.note(("going", A)), disk.note(("going", B)), disk.note(("going", D))
        store.prune(0)


def scenario_quarantine(path: Path, disk: Disk) -> None:
    with recorded(path, disk) as store:
        for tokens in (A, C):
            disk.note(("committed", tokens))
        with store.snapshot(IDENTITY, B) as snapshot:
            assert snapshot.n_tokens == 8 and snapshot.miss is not None
            assert snapshot.miss.reason is MissReason.DAMAGED
        save(store, B)
        disk.note(("committed", B))


def scenario_rebuild(path: Path, disk: Disk) -> None:
    for tokens in (A, B, C):
        disk.note(("committed", tokens))
    with recorded(path, disk) as store:
        assert store.opened_by == "rebuilt"


SCENARIOS: dict[str, tuple[Scenario, tuple[list[int], ...]]] = {
    "create": (scenario_create, ()),
    "save": (scenario_save, (A,)),
    "evict": (scenario_evict, (A, B, C)),
    "quarantine": (scenario_quarantine, (A, B, C)),
    "rebuild": (scenario_rebuild, (A, B, C)),
}


def record(name: str, path: Path, skipped: tuple[str, int] | None = None) -> Disk:
    scenario, before = SCENARIOS[name]
    if before:
        with open_store(path) as store:
            keys = [save(store, tokens).key for tokens in before]
        if name == "quarantine":
            damaged = next(file for file in segment_files(path) if file.stem == keys[1])
            flip(damaged, damaged.stat().st_size - 1)
        if name == "rebuild":
            (path / "index.sqlite").unlink()
    else:
        path.mkdir(mode=0o700)
    disk = Disk(path)
    disk.skipped = skipped
    scenario(path, disk)
    return disk


def demanded(disk: Disk, n_done: int) -> list[list[int]]:
    """What has to be there: committed, and not on its way out."""
    found: list[list[int]] = []
    for one in disk.operations[:n_done]:
        if one.kind == "note":
            what, tokens = one.data
            if what == "committed":
                found.append(tokens)
            elif tokens in found:
                found.remove(tokens)
    return found


def check_after_crash(name: str, path: Path, must: list[list[int]]) -> None:
    """Read it as a reader does, as the next writer does, and save what is missing."""
    is_store = (path / "store.json").exists()
    for mode in ("r", "w"):
        if mode == "r" and not is_store:
            assert not must
            continue
        with open_store(path, mode=mode, make_files=QuietFiles, budget_bytes=1 << 20) as store:
            for tokens in ALL:
                with store.snapshot(IDENTITY, tokens) as snapshot:
                    n = check_snapshot(snapshot, tokens)
                    assert n == len(tokens) or tokens not in must, (mode, tokens, snapshot.miss)
                    if snapshot.miss is not None and name == "quarantine" and tokens == B and n == 8:
                        assert snapshot.miss.reason in (MissReason.DAMAGED, MissReason.TOKENS)
            damaged = store.counters.n_quarantined + len(store._broken)
            assert damaged == 0 or name == "quarantine", f"{mode}: a segment that is not whole was visible"
    assert list((path / "tmp").iterdir()) == []
    with open_store(path, make_files=QuietFiles, budget_bytes=1 << 20) as store:
        assert store.opened_by == "opened"
        for tokens in ALL:
            save(store, tokens)
        assert all(held(store, tokens) == len(tokens) for tokens in ALL)


def failures_of(name: str, disk: Disk, scratch: Path, *, only_committed: bool = False) -> tuple[int, list[str]]:
    n, failures = 0, []
    for n_done, what, state in disk.states():
        if only_committed and (n_done == 0 or disk.operations[n_done - 1].kind != "note"):
            continue
        n += 1
        target = scratch / f"crash-{n}"
        state.make(target)
        try:
            check_after_crash(name, target, demanded(disk, n_done))
        except Exception as error:
            failures.append(f"{what}: {type(error).__name__}: {error}")
            if only_committed:
                break
        shutil.rmtree(target)
    return n, failures


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_every_operation(name: str, scratch: Path) -> None:
    disk = record(name, scratch / "s")
    n, failures = failures_of(name, disk, scratch)
    n_operations = sum(one.kind != "note" for one in disk.operations)
    NATIVE_REPORTS.append(
        (
            f"store: crashes during {name}",
            f"{n_operations} file operations x data {'/'.join(DATA_MODES)} x names x index {'/'.join(INDEX_MODES)}: "
            f"{n} different disks, {len(failures)} of them wrong",
        )
    )
    assert not failures, failures[:3]
    assert n > n_operations


def test_a_missing_sync_is_found(scratch: Path) -> None:
    """The enumeration sees it if any one sync of two saves is left out, right after they return."""
    whole = record("save", scratch / "whole")
    found = {}
    for kind in ("sync", "sync_dir"):
        for nth in range(1, sum(one.kind == kind for one in whole.operations) + 1):
            path = scratch / f"{kind}-{nth}"
            disk = record("save", path, (kind, nth))
            _, failures = failures_of("save", disk, path, only_committed=True)
            found[f"{kind} {nth}"] = failures[0] if failures else "not found"
    NATIVE_REPORTS.append(
        ("store: crashes with one sync left out", "\n".join(f"{key}: {what[:150]}" for key, what in found.items()))
    )
    assert len(found) == 6
    assert "not found" not in found.values()
