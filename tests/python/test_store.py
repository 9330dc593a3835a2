"""The store: prefixes are shared, an exact question gets no lossy answer, a miss is named, readers keep their bytes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen.errors import (
    MissReason,
    StoreChainError,
    StoreError,
    StoreFullError,
    StoreKeyError,
    StoreLayoutError,
    StoreLockedError,
    StoreLowDiskError,
    StoreMissingError,
    StoreReadOnlyError,
    StoreVersionError,
)
from llama_cachegen.page import ComponentKind
from llama_cachegen.store import Adapter, CodecStamp, Store, component_groups, format_size, parse_size
from llama_cachegen.store.files import Files
from store_cases import (
    BLOCK,
    COMPONENTS,
    EXACT,
    IDENTITY,
    LOSSY,
    NATIVE,
    FakeClock,
    changed,
    check_snapshot,
    component,
    held,
    memory_path,
    open_store,
    payload_of,
    save,
    segment_files,
)

tmp_path = memory_path

PROMPT = list(range(100, 122))
"""Five blocks and two tokens."""


# prefixes


@pytest.mark.parametrize("n_tokens", range(1, 3 * BLOCK + 2))
def test_what_was_saved_comes_back(tmp_path: Path, n_tokens: int) -> None:
    tokens = PROMPT[:n_tokens]
    with open_store(tmp_path / "s") as store:
        assert save(store, tokens).written
        assert held(store, tokens) == n_tokens
        assert not save(store, tokens).written
    with open_store(tmp_path / "s", mode="r") as store:
        assert held(store, tokens) == n_tokens
        assert store.counters.n_hits == 1


@pytest.mark.parametrize("n_common", range(len(PROMPT) + 1))
def test_a_prefix_is_found_in_whole_blocks(tmp_path: Path, n_common: int) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT)
        tokens = PROMPT[:n_common] + [7] * 9
        expected = n_common if n_common == len(PROMPT) else n_common - n_common % BLOCK
        assert store.lookup(IDENTITY, tokens).n_tokens == held(store, tokens) == expected


def test_shared_prefixes_are_stored_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        first = save(store, PROMPT)
        tokens = PROMPT[:13] + [7] * 10
        assert store.missing_from(IDENTITY, EXACT, tokens) == 12
        second = save(store, tokens)
        assert store.entry(second.key).n_tokens == 11
        assert store.entry(second.key).parent_key == bytes.fromhex(first.key)
        assert held(store, tokens) == 23 and held(store, PROMPT) == 22
        longer = PROMPT + [1, 2, 3]
        assert store.missing_from(IDENTITY, EXACT, longer) == 20
        save(store, longer)
        assert held(store, longer) == 25 and held(store, PROMPT) == 22
    assert len(segment_files(tmp_path / "s")) == 3


def test_whole_segments_only(tmp_path: Path) -> None:
    """What holds a recurrent state can be used to its end or not at all, and is continued at a block's end only."""
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT[:12], divisible=False)
        assert held(store, PROMPT[:11]) == 0
        assert held(store, PROMPT) == 12
        save(store, PROMPT[:8], divisible=False)
        assert held(store, PROMPT[:11]) == 8
        save(store, PROMPT[:18], divisible=False)
        assert held(store, PROMPT) == 18
        assert store.missing_from(IDENTITY, EXACT, PROMPT) == 12


def test_a_chain_that_is_not_continued_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT[:8])
        for begin in (0, 4, 12):
            with pytest.raises(StoreChainError, match="first 8 tokens"):
                store.save(
                    IDENTITY, EXACT, PROMPT, payload_of([1]), pos_begin=begin, payload_format="lcg3", decoded_bytes=1,
                    component_types={},
                )  # fmt: skip
        assert len(segment_files(tmp_path / "s")) == 1


def test_a_payload_of_another_kind_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store, pytest.raises(ValueError, match="does not begin like a page"):
        store.save(
            IDENTITY, EXACT, PROMPT, payload_of([1]), payload_format="page", decoded_bytes=1, component_types={}
        )  # fmt: skip
    assert segment_files(tmp_path / "s") == []


@pytest.mark.parametrize("tokens", [[2**31], [-(2**31) - 1], [1.5], [[1]], [True, "a"]])
def test_tokens_are_never_wrapped(tmp_path: Path, tokens: Any) -> None:
    with open_store(tmp_path / "s") as store, pytest.raises(ValueError):
        store.lookup(IDENTITY, tokens)


# exact and lossy


def test_exact_is_never_answered_by_lossy(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT, codec=LOSSY)
        assert held(store, PROMPT) == 0
        miss = store.why_miss(IDENTITY, PROMPT)
        assert miss is not None and miss.reason is MissReason.EXACTNESS
        assert held(store, PROMPT, lossy=True) == 22
        miss = store.why_miss(IDENTITY, PROMPT, codecs=[EXACT])
        assert miss is not None and miss.reason is MissReason.EXACTNESS
        save(store, PROMPT[:8], codec=EXACT)
        assert held(store, PROMPT) == 8
        assert store.lookup(IDENTITY, PROMPT, lossy=True).codec == LOSSY  # it goes further
        assert store.lookup(IDENTITY, PROMPT[:8], lossy=True).codec == EXACT
        assert store.lookup(IDENTITY, PROMPT[:8], lossy=True, codecs=[LOSSY, EXACT]).codec == LOSSY


@pytest.mark.parametrize(
    ("field", "value"), [("name", "lcg2"), ("profile", "fine"), ("calibration", "cd" * 32)], ids=lambda v: str(v)[:8]
)
def test_another_codec_is_named(tmp_path: Path, field: str, value: str) -> None:
    asked = msgspec.structs.replace(LOSSY, **{field: value})
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT, codec=LOSSY)
        assert held(store, PROMPT, lossy=True, codecs=[asked]) == 0
        miss = store.why_miss(IDENTITY, PROMPT, lossy=True, codecs=[asked])
        assert miss is not None
        assert (miss.reason, miss.field) == (MissReason.CODEC, field)
        assert value in miss.detail and str(getattr(LOSSY, field)) in miss.detail


# identity

ADAPTER = Adapter(kind="lora", blake3="ab" * 32, scale=1.0)


def geometry(**changes: Any) -> Any:
    """The geometry with the last V changed."""
    return component_groups([*COMPONENTS[:-1], component(2, ComponentKind.V, **changes)])


IDENTITY_CHANGES: dict[str, tuple[MissReason, dict[str, Any]]] = {
    "model_blake3": (MissReason.MODEL, {"model_blake3": "00" * 32}),
    "hparams": (MissReason.HPARAMS, {"hparams": ("n_expert_used=2",)}),
    "namespace": (MissReason.NAMESPACE, {"namespace": "another"}),
    "V of layer 2": (MissReason.COMPONENTS, {"components": component_groups(COMPONENTS[:-1])}),
    "type of V of layer 2": (MissReason.TYPE, {"components": geometry(type=30)}),
    "n_rot of V of layer 2": (MissReason.ROTATION, {"components": geometry(n_rot=64)}),
    "transposed of V of layer 2": (MissReason.LAYOUT, {"components": geometry(transposed=True)}),
    "n_channels of V of layer 2": (MissReason.WIDTH, {"components": geometry(n_channels=32)}),
    "swa_window": (MissReason.WINDOW, {"swa_window": 512}),
    "swa_policy": (MissReason.WINDOW, {"swa_policy": "full"}),
    **{
        f"rope.{name}": (
            MissReason.ROPE,
            {"rope": msgspec.structs.replace(IDENTITY.rope, **{name: getattr(IDENTITY.rope, name) + 1})},
        )
        for name in IDENTITY.rope.__struct_fields__
    },
    "adapters": (MissReason.ADAPTERS, {"adapters": (ADAPTER,)}),
    "llama_commit": (MissReason.LLAMA_COMMIT, {"llama_commit": "00" * 20}),
    "patch_digest": (MissReason.PATCH_DIGEST, {"patch_digest": "00" * 32}),
    "abi_version": (MissReason.ABI, {"abi_version": 2}),
    "endianness": (MissReason.ENDIANNESS, {"endianness": "big"}),
}


@pytest.mark.parametrize("field", IDENTITY_CHANGES)
def test_every_field_of_the_identity_is_in_the_key(tmp_path: Path, field: str) -> None:
    reason, values = IDENTITY_CHANGES[field]
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT, identity=changed(**values))
        assert held(store, PROMPT) == 0
        miss = store.why_miss(IDENTITY, PROMPT)
        assert miss is not None
        assert (miss.reason, miss.field) == (reason, field)
        assert store.lookup(changed(**values), PROMPT).n_tokens == 22


def test_every_field_of_the_identity_is_tried() -> None:
    tried = {name for _, values in IDENTITY_CHANGES.values() for name in values}
    assert tried == set(IDENTITY.__struct_fields__) - {"model_name"}


def test_the_first_difference_is_named_and_the_nearest_entry_chosen(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert (miss := store.why_miss(IDENTITY, PROMPT)) is not None and miss.reason is MissReason.ABSENT
        save(store, PROMPT, identity=changed(model_blake3="00" * 32, namespace="another"))
        assert (miss := store.why_miss(IDENTITY, PROMPT)) is not None and miss.field == "model_blake3"
        save(store, PROMPT, identity=changed(namespace="another", abi_version=3))
        assert (miss := store.why_miss(IDENTITY, PROMPT)) is not None and miss.field == "namespace"
        save(store, PROMPT, identity=changed(abi_version=3))
        assert (miss := store.why_miss(IDENTITY, PROMPT)) is not None and miss.field == "abi_version"


def test_the_name_of_the_model_is_not_compared(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT, identity=changed(model_name="renamed.gguf"))
        assert held(store, PROMPT) == 22


def test_the_first_token_that_differs_is_named(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT)
        tokens = PROMPT[:14] + [7] + PROMPT[15:]
        miss = store.why_miss(IDENTITY, tokens)
        assert miss is not None and miss.reason is MissReason.TOKENS and miss.position == 12
        assert "token 14 is 7 in the prompt and 114" in miss.detail
        miss = store.why_miss(IDENTITY, [*PROMPT, 5])
        assert miss is not None and miss.reason is MissReason.TOKENS and "ends at token 22" in miss.detail
        assert store.why_miss(IDENTITY, PROMPT) is None


def test_geometry_has_one_way_of_writing_it() -> None:
    assert component_groups(COMPONENTS) == component_groups(COMPONENTS[::-1])
    assert [group.layers for group in component_groups([COMPONENTS[0], COMPONENTS[4]])] == ["0,2"]


# one writer, many readers


def test_one_writer(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        with pytest.raises(StoreLockedError):
            open_store(tmp_path / "s")
        with open_store(tmp_path / "s", mode="r") as reader:
            assert held(reader, PROMPT) == 0
            save(store, PROMPT)
            assert held(reader, PROMPT) == 22
    open_store(tmp_path / "s").close()


def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        save(store, PROMPT)

    def state() -> dict[str, tuple[int, int, int]]:
        return {
            str(one): (one.stat().st_mtime_ns, one.stat().st_size, one.stat().st_ino) for one in path.rglob("*")
        } | {"": (path.stat().st_mtime_ns, 0, 0)}

    before = state()
    with open_store(path, mode="r") as reader:
        assert held(reader, PROMPT) == 22
        assert reader.why_miss(IDENTITY, [1]) is not None
        reader.stats()
        for call in (
            lambda: save(reader, [1, 2]),
            lambda: reader.prune(0),
            lambda: reader.pin(reader.entries()[0][0].key.hex()),
        ):
            with pytest.raises(StoreReadOnlyError):
                call()
    assert state() == before


@pytest.mark.parametrize("has_index", [True, False])
def test_a_read_only_directory(tmp_path: Path, has_index: bool) -> None:
    """As on a read-only mount: nothing can be made there, and the index may be missing."""
    path = tmp_path / "s"
    with open_store(path) as store:
        save(store, PROMPT)
    time.sleep(1.1)  # then nothing in it can change without a new time, and a reader takes the index as it is
    open_store(path).close()
    if not has_index:
        (path / "index.sqlite").unlink()
    script = textwrap.dedent(
        f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from store_cases import *
        if os.geteuid() == 0 and os.system("mount --bind {path} {path} && mount -o remount,ro,bind {path}") != 0:
            sys.exit(77)
        with open_store(Path({str(path)!r}), mode="r") as store:
            assert held(store, {PROMPT}) == 22
            print(store.opened_by)
        try:
            open_store(Path({str(path)!r}))
        except Exception as error:
            print(type(error).__name__)
        """
    )
    for one in (path, *path.rglob("*")):
        one.chmod(0o500 if one.is_dir() else 0o400)
    result = subprocess.run(["unshare", "-rm", sys.executable, "-c", script], capture_output=True, text=True)
    for one in (path, *path.rglob("*")):
        one.chmod(0o700)
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("no mount namespaces here")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [
        "opened" if has_index else "in",
        *([] if has_index else ["memory"]),
        "StoreReadOnlyError",
    ]


def test_a_reader_keeps_its_bytes(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        save(store, PROMPT)
        with (
            open_store(tmp_path / "s", mode="r") as reader,
            reader.snapshot(IDENTITY, PROMPT, verify=False) as snapshot,
        ):
            store.prune(0)
            assert segment_files(tmp_path / "s") == []
            assert check_snapshot(snapshot, PROMPT) == 22
            assert held(reader, PROMPT) == 0


def test_readers_and_a_writer_in_processes(tmp_path: Path) -> None:
    """Readers see whole entries or none while a writer saves and evicts."""
    path = tmp_path / "s"
    open_store(path).close()
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from store_cases import *
        n = 0
        end = time.monotonic() + 2
        with open_store(Path({str(path)!r}), mode="r") as store:
            while time.monotonic() < end:
                for i in range(20):
                    n += held(store, [i] * 9) > 0
            assert store.counters.n_unreadable == 0 and not store._broken
        print(n)
        """
    )
    readers = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    with open_store(path, budget_bytes=45_000) as store:
        while any(reader.poll() is None for reader in readers):
            for i in range(20):
                save(store, [i] * 9)
        assert store.counters.n_evicted > 0
    for reader in readers:
        out, error = reader.communicate()
        assert reader.returncode == 0, error
        assert int(out) > 0


# room


def test_the_budget_is_kept(tmp_path: Path) -> None:
    """Three entries of which two fit: those used last are left, and the files never take more."""
    path = tmp_path / "s"
    n_bytes = 40_000
    with open_store(path, budget_bytes=2 * n_bytes + 20_000) as store:
        prompts = [[i] * 9 for i in range(3)]
        save(store, prompts[0], n_bytes=n_bytes)
        save(store, prompts[1], n_bytes=n_bytes)
        assert held(store, prompts[0]) == 9
        result = save(store, prompts[2], n_bytes=n_bytes)
        assert result.n_evicted == 1
        assert [held(store, tokens) for tokens in prompts] == [9, 0, 9]
        assert sum(file.stat().st_size for file in segment_files(path)) == store.stats().n_bytes <= store.budget_bytes
        assert store.counters.n_evicted_never_read == 1
        assert store.counters.write_amplification == pytest.approx(1.1, abs=0.1)
        with pytest.raises(StoreFullError):
            save(store, [9], n_bytes=n_bytes * 3)
        assert [held(store, tokens) for tokens in prompts] == [9, 0, 9]


def test_pins_and_children(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_store(path, budget_bytes=15_000) as store:
        save(store, PROMPT[:8])
        child = save(store, PROMPT[:16])
        save(store, [1] * 8)
        store.pin(child.key[:20])
    (path / "index.sqlite").unlink()
    with open_store(path, budget_bytes=15_000) as store:
        assert store.stats().n_pinned == 1
        for i in range(2, 6):
            save(store, [i] * 8)
        assert held(store, PROMPT[:16]) == 16
        assert store.stats().n_segments == 3
        with pytest.raises(StoreFullError, match="pinned"):
            save(store, [9] * 8, n_bytes=8_000)
        store.unpin(child.key)
        assert [row.pos_begin for row in store.prune(0)][-1] == 0
        assert store.stats().n_segments == 0


def test_what_an_entry_continues_is_not_evicted_for_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", budget_bytes=20_000) as store:
        save(store, PROMPT[:8])
        with pytest.raises(StoreFullError):
            save(store, PROMPT, n_bytes=14_000)
        assert held(store, PROMPT) == 8


def test_children_go_before_parents(tmp_path: Path) -> None:
    removed: list[str] = []

    class Watching(Files):
        def remove(self, name: str) -> None:
            removed.append(name)
            super().remove(name)

    with open_store(tmp_path / "s", make_files=Watching) as store:
        keys = [save(store, PROMPT[:n]).key for n in (4, 8, 12, 16)]
        removed.clear()
        store.remove(keys[1])
        assert [Path(name).stem for name in removed] == keys[:0:-1]
        assert held(store, PROMPT) == 4


def test_low_disk_is_read_only(tmp_path: Path) -> None:
    class Small(Files):
        free = 1 << 30

        def free_bytes(self) -> int:
            return self.free

    with open_store(tmp_path / "s", make_files=Small, min_free_bytes=1 << 20) as store:
        save(store, PROMPT[:8])
        Small.free = 1 << 20
        with pytest.raises(StoreLowDiskError):
            save(store, PROMPT)
        assert held(store, PROMPT) == 8 and store.stats().n_segments == 1
        Small.free = (1 << 20) - 1
        assert store.stats().is_low_on_disk
        Small.free = 1 << 30
        assert save(store, PROMPT).written


def test_the_order_of_use_outlives_the_index(tmp_path: Path) -> None:
    path = tmp_path / "s"
    clock = FakeClock()
    with open_store(path, clock=clock) as store:
        for i in range(4):
            save(store, [i] * 8)
        for i in (2, 0):
            assert held(store, [i] * 8) == 8
        assert store.stats().n_never_read == 2
    (path / "index.sqlite").unlink()
    with open_store(path, clock=clock) as store:
        assert store.opened_by == "rebuilt"
        assert store.stats().n_never_read == 2
        prompts = {store.lookup(IDENTITY, [i] * 8).keys[0]: i for i in range(4)}
        assert [prompts[row.key.hex()] for row in store.prune(0)] == [1, 3, 2, 0]


def test_a_clock_that_goes_backwards(tmp_path: Path) -> None:
    path = tmp_path / "s"
    clock = FakeClock()
    with open_store(path, clock=clock) as store:
        save(store, [1] * 8)
        clock.now -= 1e6
        save(store, [2] * 8)
        rows = [row for row, _ in store.entries()]
        assert [row.created_ms for row in rows] == sorted(row.created_ms for row in rows)
    clock.now -= 1e6
    with open_store(path, clock=clock) as store:
        save(store, [3] * 8)
        assert held(store, [1] * 8) == 8
        removed = store.prune(store.stats().n_bytes - 1)
        assert removed[0].key == rows[1].key  # the second, not used since
        assert held(store, [3] * 8) == 8


# opening


def test_modes_and_tags(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s"
    with open_store(path) as store:
        save(store, PROMPT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for one in path.rglob("*"):
        assert stat.S_IMODE(one.stat().st_mode) & 0o077 == 0, one
    assert (path / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert list((path / "tmp").iterdir()) == []


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError):
        Store(tmp_path / "none", mode="r")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreLayoutError):
        Store(tmp_path / "file")
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other" / "precious").write_bytes(b"x")
    with pytest.raises(StoreLayoutError, match="not empty"):
        Store(tmp_path / "other")
    assert {one.name for one in (tmp_path / "other").iterdir()} <= {"precious", ".lock"}
    open_store(tmp_path / "s").close()
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with pytest.raises(StoreLayoutError, match="symbolic link"):
        Store(tmp_path / "link")
    (tmp_path / "s").chmod(0o770)
    with pytest.raises(StoreLayoutError, match="others may write"):
        Store(tmp_path / "s")
    (tmp_path / "s").chmod(0o700)
    (tmp_path / "s" / "store.json").write_bytes(b'{"format":"llama-cachegen-store/2","block_tokens":4}')
    with pytest.raises(StoreVersionError, match="llama-cachegen-store/2"):
        Store(tmp_path / "s")


@pytest.mark.parametrize("name", ["segments", "tmp", "quarantine", "pins"])
def test_links_inside_are_not_followed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s"
    open_store(path).close()
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    for mode in ("r", "w"):
        with pytest.raises((StoreLayoutError, OSError)):
            open_store(path, mode=mode)


def test_a_lost_store_file_is_made_again(tmp_path: Path) -> None:
    for content in (None, b"", b"garbage", b"{}"):
        path = tmp_path / f"s{content!r}"
        with open_store(path) as store:
            save(store, PROMPT)
        (path / "store.json").unlink()
        if content is not None:
            (path / "store.json").write_bytes(content)
        with Store(path, min_free_bytes=0) as store:
            assert store.block_tokens == BLOCK
            assert held(store, PROMPT) == 22


def test_keyed_stores(tmp_path: Path) -> None:
    path = tmp_path / "s"
    key = bytes(range(32))
    with open_store(path, key=key) as store:
        save(store, PROMPT)
        assert held(store, PROMPT) == 22
        name = segment_files(path)[0].name
    for wrong in (None, bytes(32)):
        with pytest.raises(StoreKeyError):
            open_store(path, key=wrong)
    with pytest.raises(StoreKeyError):
        open_store(tmp_path / "plain").close()
        open_store(tmp_path / "plain", key=key)
    with open_store(tmp_path / "plain") as store:
        save(store, PROMPT)
        assert segment_files(tmp_path / "plain")[0].name != name  # names tell nothing to who lacks the key
    # a segment without the key's digests is not taken in, whatever its name
    foreign = segment_files(tmp_path / "plain")[0]
    target = path / "segments" / foreign.parent.name / foreign.name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(foreign.read_bytes())
    with open_store(path, key=key) as store:
        assert store.stats().n_segments == 1
        assert held(store, PROMPT) == 22


def test_a_closed_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    save(store, PROMPT)
    snapshot = store.snapshot(IDENTITY, PROMPT, verify=False)
    store.close()
    store.close()
    assert check_snapshot(snapshot, PROMPT) == 22
    snapshot.close()
    with pytest.raises(StoreError, match="closed"):
        snapshot.parts[0].payload  # noqa: B018
    with pytest.raises(StoreError, match="closed"):
        store.lookup(IDENTITY, PROMPT)


@pytest.mark.parametrize("text", ["32", "1 KB", "GiB", "-1B", "1e3B", "٣B", "1KiB\n", ""])
def test_a_size_needs_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_size(text)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("0B", "3B", "2KiB", "1.5 MiB", "32GiB")] == [0, 3, 2048, 1572864, 32 << 30]
    assert [format_size(n) for n in (0, 1023, 1024, 32 << 30, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "32.0 GiB",
        "3.0 TiB",
    ]


# any prompts


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=8),
    question=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    drops_index=st.booleans(),
)
def test_the_longest_prefix_is_found(prompts: list[list[int]], question: list[int], drops_index: bool) -> None:
    """Against a search of all prompts: whole blocks in common, or a whole prompt."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        path = Path(directory, "s")
        with open_store(path) as store:
            for tokens in prompts:
                save(store, tokens)
                assert held(store, tokens) == len(tokens)
        if drops_index:
            (path / "index.sqlite").unlink()
        with open_store(path) as store:
            have = held(store, question)
    expected = 0
    for tokens in prompts:
        n = next(
            (i for i, (a, b) in enumerate(zip(tokens, question, strict=False)) if a != b),
            min(len(tokens), len(question)),
        )
        expected = max(expected, n if n == len(tokens) else n - n % BLOCK)
    assert have == expected


def test_codecs_that_are_not_known_are_not_written(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        with pytest.raises(StoreError, match="zip/1"):
            save(store, PROMPT, codec=CodecStamp(name="zip"))
        with pytest.raises(StoreError, match="lcg3/2"):
            save(store, PROMPT, codec=CodecStamp(name="lcg3", version=2))
        with pytest.raises(ValueError, match="lossy"):
            save(store, PROMPT, codec=msgspec.structs.replace(NATIVE, entry_class="lossy"))
    assert segment_files(tmp_path / "s") == []
