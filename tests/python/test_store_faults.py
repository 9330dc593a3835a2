"""Damage, and a system that refuses: never a wrong byte, a named miss, nothing lost that was sound."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FailingFiles, failing
from llama_cachegen.errors import (
    MissReason,
    SegmentCorruptError,
    StoreError,
    StoreLockedError,
    StoreLowDiskError,
    StoreReadOnlyError,
)
from llama_cachegen.store import Store
from llama_cachegen.store.index import Index
from store_cases import (
    EXACT,
    IDENTITY,
    FakeClock,
    changed,
    check_snapshot,
    flip,
    held,
    memory_path,
    open_store,
    payload_of,
    save,
    segment_files,
)

PARENT, CHILD = [1] * 8, [1] * 8 + [2] * 6
OTHER = [3] * 10
tmp_path = memory_path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "s"
    with open_store(path) as store:
        for tokens in (PARENT, CHILD, OTHER):
            save(store, tokens)
    return path


def file_of(path: Path, tokens: list[int]) -> Path:
    with open_store(path, mode="r") as store:
        key = store.lookup(IDENTITY, tokens).keys[-1]
    return next(file for file in segment_files(path) if file.stem == key)


def miss_of(store: Store, tokens: list[int]) -> MissReason | None:
    """Look twice: the second look is never a second attempt on a damaged file."""
    reasons = []
    for _ in range(2):
        with store.snapshot(IDENTITY, tokens) as snapshot:
            check_snapshot(snapshot, tokens)
            reasons.append(None if snapshot.miss is None else snapshot.miss.reason)
    assert reasons[0] == reasons[1]
    return reasons[0]


# damage


@pytest.mark.parametrize("mode", ["r", "w"])
def test_every_byte_flipped(saved: Path, mode: str) -> None:
    """Of a segment: a named miss, and never a wrong byte. The others are as they were."""
    file = file_of(saved, OTHER)
    whole = file.read_bytes()
    padding = range(1900, 4000)  # all zeros, checked at its ends and in the middle
    assert not any(whole[padding.start : padding.stop])
    offsets = [i for i in range(len(whole)) if i not in padding or i in (1900, 3000, 3999)]
    n_versions = 0
    with open_store(saved, mode=mode) as store:
        for offset in offsets:
            flip(file, offset)
            with store.snapshot(IDENTITY, OTHER) as snapshot:
                assert check_snapshot(snapshot, OTHER) == 0
                assert snapshot.miss is not None
                if snapshot.miss.reason is not MissReason.DAMAGED:
                    assert offset in (8, 9) and snapshot.miss.reason is MissReason.UNREADABLE, offset
                    n_versions += 1
                else:
                    assert file.exists() == (mode == "r")
            store._broken.clear()
            if mode == "r":
                flip(file, offset)
                continue
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(whole)
            with store._changing() as index:
                index.set_shard(file.parent.name, 0)
            from llama_cachegen.store import recovery

            recovery.reconcile(store._files, store._open_index(), None, store._now_ns())
        assert n_versions == 2  # the bytes of the format's version
        assert file.read_bytes() == whole
        assert held(store, OTHER) == 10 and held(store, CHILD) == 14
    assert len(offsets) > 2000


@pytest.mark.parametrize("where", ["payload", "tokens", "manifest", "header"])
def test_damage_is_put_aside_with_its_reason(saved: Path, where: str) -> None:
    file = file_of(saved, CHILD)
    with open_store(saved) as store:
        prefix = store.describe(file.stem)
        offset = {
            "payload": prefix.plan.payload_offset + 1,
            "tokens": prefix.plan.tokens_offset,
            "manifest": 200,
            "header": 24,
        }[where]
        flip(file, offset)
        assert miss_of(store, CHILD) is MissReason.DAMAGED
        assert not file.exists()
        (key, (note, n_bytes)), = store.quarantined().items()  # fmt: skip
        assert key == file.stem and note.reason and n_bytes > 4000
        assert store.counters.n_quarantined == 1
        assert held(store, CHILD) == 8
        save(store, CHILD)
        assert held(store, CHILD) == 14
        assert store.why_miss(IDENTITY, CHILD) is None


def test_a_reader_remembers_damage(saved: Path) -> None:
    file = file_of(saved, OTHER)
    flip(file, file.stat().st_size - 1)

    class Counting(failing(errno.EIO, kinds=frozenset(["read"]))):  # type: ignore[misc]
        pass

    with open_store(saved, mode="r", make_files=Counting) as store:
        assert miss_of(store, OTHER) is MissReason.DAMAGED
        n = Counting.n_calls
        assert miss_of(store, OTHER) is MissReason.DAMAGED
        assert Counting.n_calls - n <= 2 * 3  # to say why, not the payload again
    assert file.exists()


def test_swapped_files(saved: Path) -> None:
    one, two = file_of(saved, OTHER), file_of(saved, CHILD)
    a, b = one.read_bytes(), two.read_bytes()
    one.write_bytes(b)
    two.write_bytes(a)
    with open_store(saved) as store:
        assert miss_of(store, OTHER) is MissReason.DAMAGED
        assert miss_of(store, CHILD) is MissReason.DAMAGED
        assert held(store, PARENT) == 8
        assert all("swapped" in note.reason for note, _ in store.quarantined().values())


@pytest.mark.parametrize("times", ["kept", "new"])
def test_a_stale_file_of_the_same_size(tmp_path: Path, times: str) -> None:
    """The file of another save of as many tokens, with the name and even the times of this one."""
    with open_store(tmp_path / "old") as store:
        save(store, OTHER, identity=changed(namespace="old"))
        save(store, OTHER, identity=changed(namespace="xyz"))
    stale = segment_files(tmp_path / "old")
    with open_store(tmp_path / "s") as store:
        save(store, OTHER, identity=changed(namespace="new"))
        (file,) = segment_files(tmp_path / "s")
        found = file.stat()
        assert stale[0].stat().st_size == found.st_size
        file.write_bytes(stale[0].read_bytes())
        if times == "kept":
            os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
        with store.snapshot(changed(namespace="new"), OTHER) as snapshot:
            assert snapshot.n_tokens == 0
            assert snapshot.miss is not None and snapshot.miss.reason is MissReason.DAMAGED


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "empty", "short", "long", "gone"])
def test_other_things_of_a_segments_name(saved: Path, kind: str, tmp_path: Path) -> None:
    file = file_of(saved, OTHER)
    whole = file.read_bytes()
    (tmp_path / "aside").write_bytes(whole)
    file.unlink()
    if kind == "link":
        file.symlink_to(tmp_path / "aside")
    elif kind == "directory":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind != "gone":
        file.write_bytes({"empty": b"", "short": whole[:-1], "long": whole + b"\0"}[kind])
    for mode in ("r", "w"):
        with open_store(saved, mode=mode) as store:
            reason = miss_of(store, OTHER)
            expected = {MissReason.ABSENT, MissReason.TOKENS} if kind == "gone" else {MissReason.DAMAGED}
            assert reason in expected or (mode == "w" and reason is MissReason.TOKENS), (mode, reason)
            assert held(store, CHILD) == 14
    with open_store(saved) as store:
        save(store, OTHER)
        assert held(store, OTHER) == 10


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "page", "link", "directory", "gone"])
@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_damaged_index_loses_nothing(saved: Path, damage: str, mode: str) -> None:
    index = saved / "index.sqlite"
    data = index.read_bytes()
    index.unlink()
    if damage == "link":
        (saved / "tmp" / "x").write_bytes(data)
        index.symlink_to(saved / "tmp" / "x")
    elif damage == "directory":
        index.mkdir()
    elif damage != "gone":
        n = len(data)
        index.write_bytes(
            {
                "empty": b"",
                "half": data[: n // 2],
                "garbage": os.urandom(n),
                "page": data[:4096] + os.urandom(n - 4096),
            }[damage]
        )
    if damage == "directory" and mode == "w":
        with pytest.raises(OSError):
            open_store(saved, mode=mode)
        return
    with open_store(saved, mode=mode) as store:
        for tokens in (PARENT, CHILD, OTHER):
            assert held(store, tokens) == len(tokens)
        assert store.stats().n_segments == 3


@pytest.mark.parametrize("what", ["begin", "commit", "add", "garbage", "gone"])
def test_an_index_that_fails_while_it_is_used(saved: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that is on the disk is not undone by the cache of it."""
    with open_store(saved) as store:
        if what == "garbage":
            (saved / "index.sqlite").write_bytes(os.urandom(1 << 17))
        elif what == "gone":
            (saved / "index.sqlite").unlink()
        else:
            whole = getattr(Index, what)
            fails = iter([True])

            def failing_once(index: Index, *args: Any, **kwargs: Any) -> Any:
                if next(fails, False):
                    raise sqlite3.OperationalError("disk I/O error")
                return whole(index, *args, **kwargs)

            monkeypatch.setattr(Index, what, failing_once)
        assert save(store, [7] * 9).written
        for tokens in (PARENT, CHILD, OTHER, [7] * 9):
            assert held(store, tokens) == len(tokens)
        assert store.counters.n_index_failures == 1
    with open_store(saved) as store:
        assert store.stats().n_segments == 4 and store.verify().ok
        assert held(store, [7] * 9) == 9


def test_files_that_come_and_go(saved: Path, tmp_path: Path) -> None:
    """Segments copied from another store of the same identity are found, removed ones are forgotten."""
    other = tmp_path / "other"
    with open_store(other) as store:
        save(store, [9] * 8)
    file = file_of(saved, OTHER)
    file.unlink()
    (copy,) = segment_files(other)
    (saved / "segments" / copy.parent.name).mkdir(exist_ok=True)
    shutil.copy(copy, saved / "segments" / copy.parent.name)
    for mode in ("r", "w"):
        with open_store(saved, mode=mode) as store:
            assert held(store, [9] * 8) == 8 and held(store, OTHER) == 0 and held(store, CHILD) == 14


def test_orphans(saved: Path) -> None:
    """Without the parent the child cannot be reached; the parent saved again takes it up."""
    file_of(saved, PARENT).unlink()
    with open_store(saved) as store:
        assert held(store, CHILD) == 0
        assert [finding.kind for finding in store.verify().findings] == ["orphan"]
        save(store, PARENT)
        assert held(store, CHILD) == 14
        assert store.verify().ok
    file_of(saved, PARENT).unlink()
    with open_store(saved) as store:
        report = store.verify(repair=True)
        assert [(finding.kind, finding.action) for finding in report.findings] == [("orphan", "removed")]
        assert store.verify().findings == () and store.stats().n_segments == 1


def test_lookups_go_on_while_all_is_verified(saved: Path) -> None:
    """What another thread finds damaged and puts aside before verify comes to it is no damage twice."""
    last = max((PARENT, CHILD, OTHER), key=lambda tokens: file_of(saved, tokens).stem)
    file = file_of(saved, last)
    n_held: list[int] = []

    def look_up(n_done: int, n_total: int) -> None:
        if n_done == 1:
            flip(file, file.stat().st_size - 1)
        looking = threading.Thread(target=lambda: n_held.append(held(store, last)), daemon=True)
        looking.start()
        looking.join(30)
        assert not looking.is_alive()

    with open_store(saved) as store:
        report = store.verify(quarantine=True, progress=look_up)
        assert len(n_held) == 3 and max(n_held) < len(last)
        findings = [(finding.kind, Path(finding.name).stem) for finding in report.findings]
        assert ("quarantined", file.stem) in findings and {kind for kind, _ in findings} <= {"quarantined", "orphan"}
        assert store.counters.n_quarantined == 1


def test_verify_finds_each_kind(saved: Path) -> None:
    with open_store(saved) as store:
        assert store.verify().ok and store.verify().n_segments == 3
    child = file_of(saved, CHILD)
    flip(child, child.stat().st_size - 5)
    later = file_of(saved, OTHER)
    flip(later, 8, 0x03)
    (saved / "segments" / child.parent.name / "notes.txt").write_bytes(b"x")
    with open_store(saved, mode="r") as store:
        found = {(finding.kind, Path(finding.name).name) for finding in store.verify().findings}
        assert found == {("damaged", child.name), ("other", later.name), ("other", "notes.txt")}
        with pytest.raises(StoreReadOnlyError):
            store.verify(quarantine=True)
    with open_store(saved) as store:
        assert not store.verify().ok
        assert not store.verify(quarantine=True).ok
        report = store.verify()
        assert report.ok and {finding.kind for finding in report.findings} == {"quarantined", "other"}
    assert later.exists()  # a later version's file is no damage


# the system refuses


def fresh(path: Path, store_dir: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(store_dir, path)
    return path


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EACCES])
def test_every_operation_fails_once(saved: Path, tmp_path: Path, error: int) -> None:
    """The Nth operation of opening, saving, evicting and reading fails, for every N: what was there stays."""
    n = 0
    while True:
        n += 1
        path = fresh(tmp_path / "copy", saved)
        layer = failing(error)
        layer.fail_at = n
        is_saved = False
        try:
            with open_store(path, make_files=layer) as store:
                for tokens in (PARENT, CHILD, OTHER):
                    with store.snapshot(IDENTITY, tokens) as snapshot:
                        check_snapshot(snapshot, tokens)
                        if snapshot.miss is not None:
                            assert snapshot.miss.reason is MissReason.UNREADABLE, snapshot.miss
                save(store, [7] * 9)
                is_saved = True
                assert held(store, [7] * 9) in (0, 8, 9)
                assert store.counters.n_quarantined == 0
        except (OSError, StoreError) as raised:
            assert layer.n_calls >= n, raised
        with open_store(path) as store:
            for tokens in (PARENT, CHILD, OTHER):
                assert held(store, tokens) == len(tokens), (n, tokens)
            assert held(store, [7] * 9) == 9 or not is_saved
            assert store.counters.n_quarantined == 0 and store.verify().ok
        assert list((path / "tmp").iterdir()) == []
        if layer.n_calls < n:
            break
    assert n > 20


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing(saved: Path, error: int) -> None:
    layer = failing(error, lasting=True, kinds=frozenset(["create", "write", "make_dir", "rename", "sync"]))
    with open_store(saved, make_files=layer) as store:
        layer.fail_at = layer.n_calls + 1
        expected: Any = {errno.EROFS: StoreReadOnlyError, errno.EIO: OSError}.get(error, StoreLowDiskError)
        for i in range(3):
            with pytest.raises(expected):
                save(store, [i + 50] * 9)
        assert held(store, CHILD) == 14
        layer.fail_at = 0
        save(store, [50] * 9)
        assert held(store, [50] * 9) == 9
        assert store.verify().ok


def test_damage_that_cannot_be_put_aside(saved: Path) -> None:
    file = file_of(saved, OTHER)
    flip(file, file.stat().st_size - 1)
    layer = failing(errno.EROFS, lasting=True, kinds=frozenset(["create", "rename"]))
    with open_store(saved, make_files=layer) as store:
        layer.fail_at = 1
        assert miss_of(store, OTHER) is MissReason.DAMAGED
        assert file.exists()


def test_a_payload_that_is_damaged_after_opening(saved: Path) -> None:
    file = file_of(saved, OTHER)
    with open_store(saved) as store, store.snapshot(IDENTITY, OTHER, verify=False) as snapshot:
        flip(file, file.stat().st_size - 1)
        with pytest.raises(SegmentCorruptError, match="payload"):
            snapshot.parts[0].payload  # noqa: B018
        assert not file.exists() and store.counters.n_quarantined == 1


def test_a_file_cut_short_after_opening(saved: Path) -> None:
    """Not even a SIGBUS."""
    file = file_of(saved, OTHER)
    with open_store(saved) as store, store.snapshot(IDENTITY, OTHER, verify=False) as snapshot:
        os.truncate(file, file.stat().st_size - 100)
        with pytest.raises(SegmentCorruptError):
            snapshot.parts[0].payload  # noqa: B018


def test_too_many_open_files(tmp_path: Path) -> None:
    """The prefix that could be opened is given, and nothing is taken for damage."""
    import resource

    path = tmp_path / "s"
    tokens = list(range(4 * 60))
    with open_store(path) as store:
        for n in range(4, len(tokens) + 1, 4):
            save(store, tokens[:n])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_open = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 20, limits[1]))
        try:
            with store.snapshot(IDENTITY, tokens) as snapshot:
                assert 0 < snapshot.n_tokens < len(tokens)
                assert snapshot.miss is not None and snapshot.miss.reason is MissReason.UNREADABLE
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert held(store, tokens) == len(tokens)
        assert store.counters.n_quarantined == 0


def test_the_layer_fails_as_told(tmp_path: Path) -> None:
    layer = failing(errno.EIO)
    files: FailingFiles = layer(str(tmp_path))
    layer.fail_at = 2
    files.list("")
    with pytest.raises(OSError, match="Input/output"):
        files.list("")
    files.list("")
    files.close()
    assert payload_of([1])[:4] == b"LCG3" and EXACT.is_exact


def test_a_small_disk(tmp_path: Path) -> None:
    """A file system of 256 KiB, really full: what was saved stays, and there is room again after eviction."""
    mount = tmp_path / "small"
    mount.mkdir()
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from store_cases import *
        from llama_cachegen.errors import StoreLowDiskError
        if os.system("mount -t tmpfs -o size=256k,mode=700 tmpfs {mount} 2>/dev/null") != 0:
            sys.exit(77)
        with open_store(Path({str(mount)!r}, "s")) as store:
            saved = []
            while True:
                tokens = [len(saved)] * 9
                try:
                    save(store, tokens, n_bytes=9000)
                except StoreLowDiskError:
                    break
                saved.append(tokens)
            assert len(saved) > 5
            future = store.save_later(
                IDENTITY, EXACT, tokens, payload_of(tokens, 9000), payload_format="lcg3", decoded_bytes=1,
                component_types={{"K": "f16"}},
            )
            assert isinstance(future.exception(30), StoreLowDiskError) and store.counters.n_queue_failed == 1
            assert all(held(store, one) == 9 for one in saved) and held(store, tokens) == 0
            assert list(Path(store.path, "tmp").iterdir()) == []
            store.prune(store.stats().n_bytes // 2)
            save(store, tokens, n_bytes=9000)
        with open_store(Path({str(mount)!r}, "s")) as store:
            assert held(store, tokens) == 9 and store.verify().ok
        """
    )
    result = subprocess.run(["unshare", "-rm", sys.executable, "-c", script], capture_output=True, text=True)
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("no mount namespaces here")
    assert result.returncode == 0, result.stderr


# two writers

ONE_WRITER = """
import sys
sys.path.insert(0, {tests!r})
from store_cases import *
from llama_cachegen.errors import StoreLockedError
path, number = Path({path!r}), int(sys.argv[1])
n_refused = 0
for n in range(12):
    while True:
        try:
            store = open_store(path, lock_timeout_s=0 if number % 2 else 60)
            break
        except StoreLockedError:
            n_refused += 1
            time.sleep(0.01)
    with store:
        os.close(os.open(path.parent / "inside", os.O_CREAT | os.O_EXCL))  # fails if another one is
        save(store, [number] * 4 + [n] * 4)
        time.sleep(0.01)
        (path.parent / "inside").unlink()
print(n_refused)
"""


def test_processes_that_all_want_to_write(tmp_path: Path) -> None:
    """One at a time, whether they wait for the lock or are refused; what each saved is there in the end."""
    path = tmp_path / "s"
    script = "import time\n" + ONE_WRITER.format(tests=str(Path(__file__).parent), path=str(path))
    open_store(path).close()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert sum(int(output) for output, _ in outputs) > 0
    with open_store(path) as store:
        assert all(held(store, [number] * 4 + [n] * 4) == 8 for number in range(4) for n in range(12))
        assert store.verify().ok


def test_a_killed_writer_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "s"
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from store_cases import *
        store = open_store(Path({str(path)!r}))
        print("open", flush=True)
        time.sleep(60)
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "open\n"
    with pytest.raises(StoreLockedError, match="another process"):
        open_store(path)
    writer.kill()
    writer.wait()
    with open_store(path, lock_timeout_s=5) as store:
        save(store, PARENT)


def test_a_clock_behind_the_files(saved: Path) -> None:
    """Files and directories from the future: they are read again, and nothing is missed or lost."""
    clock = FakeClock(now=1_000_000_000.0)
    for mode in ("r", "w", "r", "w"):
        with open_store(saved, mode=mode, clock=clock) as store:
            assert all(held(store, tokens) == len(tokens) for tokens in (PARENT, CHILD, OTHER))
            clock.now -= 1e6
            if mode == "w":
                tokens = [8, int(clock.now) % 1000, 8, 8]
                save(store, tokens)
                assert held(store, tokens) == 4 and store.verify().ok
                last = max(row.created_ms for row, _ in store.entries())
                assert store.describe(store.lookup(IDENTITY, tokens).keys[0]).created_ms == last
