"""One writer and several readers on one store for a while: no wrong byte, nothing lost, memory and disk bounded.

Each process is `python -m llama_cachegen.soak_store ROLE CONFIG` and writes JSON lines to its standard output. The
writer notes in a log what was saved, after the save returned; readers demand what is pinned in it. The library part is
`run`; the command line renders what it returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import MissReason
from .store import CodecStamp, ComponentGroup, Snapshot, Store, StoreIdentity

__all__ = ["N_READERS", "run", "table_rows"]

N_READERS = 4
BUDGET_BYTES = 64 << 20
BLOCK_TOKENS = 16
_N_FAMILIES = 40
_MAX_PAYLOAD_BYTES = 200_000
_PIN_EVERY = 25
_MAX_PINNED_BYTES = BUDGET_BYTES // 4
_REOPEN_S = 2.0
_SAMPLE_S = 1.0
_MIN_GROWTH_BYTES = 32 << 20
"""Memory of a process that may come on top: pools of the allocator, the index's cache."""

Progress = Callable[[int, int], None]


def _identity() -> StoreIdentity:
    from .page_identity import RopeIdentity

    return StoreIdentity(
        model_blake3="00" * 32,
        model_name="none",
        components=(ComponentGroup(kind="K", layers="0-27", type="f16", n_rot=0, transposed=False, n_channels=64),),
        rope=RopeIdentity(
            rope_type=0, n_ctx_orig_yarn=2048, freq_base=1e4, freq_scale=1.0, yarn_ext_factor=0.0,
            yarn_attn_factor=1.0, yarn_beta_fast=32.0, yarn_beta_slow=1.0,
        ),
        llama_commit="00" * 20,
        patch_digest="00" * 32,
        abi_version=1,
    )  # fmt: skip


_CODEC = CodecStamp(name="lcg3", profile="exact")


def _prompt(number: int) -> list[int]:
    """Families of prompts that begin alike, of other lengths."""
    family = random.Random(number % _N_FAMILIES)
    tokens = [family.randrange(1000) for _ in range(family.randrange(1, 80))]
    own = random.Random(f"own {number}")
    return tokens + [own.randrange(1000) for _ in range(own.randrange(1, 60))]


def _payload(tokens: Sequence[int], pos_begin: int) -> bytes:
    """Bytes that only these tokens at this position give."""
    seed = f"{pos_begin} {list(tokens)}".encode()
    n_bytes = 1000 + int.from_bytes(hashlib.sha256(seed).digest()[:4], "little") % _MAX_PAYLOAD_BYTES
    return b"LCG3" + hashlib.shake_128(seed).digest(n_bytes - 4)


def _emit(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


# the processes


def _write(config: dict[str, Any]) -> dict[str, Any]:
    identity = _identity()
    rng = random.Random("writer")
    until = time.monotonic() + config["seconds"]
    totals: dict[str, int] = {}
    n_opened = number = pinned_bytes = 0

    def add(store: Store, n_removed: int) -> None:
        for name, value in (*store.counters.as_dict().items(), ("n_removed", n_removed)):
            if name.startswith(("n_", "bytes_", "payload_bytes_")):
                totals[name] = totals.get(name, 0) + int(value or 0)

    with open(config["log"], "a", encoding="ascii") as log:
        while time.monotonic() < until:
            n_removed = 0
            n_opened += 1
            with _open(config, "w") as store:
                reopen = time.monotonic() + rng.uniform(1, 10)
                while time.monotonic() < min(reopen, until):
                    number += 1
                    tokens = _prompt(number if rng.random() < 0.8 else rng.randrange(1, number + 1))
                    begin = store.missing_from(identity, _CODEC, tokens)
                    if begin == len(tokens):
                        with store.snapshot(identity, tokens) as snapshot:
                            _check(snapshot, tokens)
                        continue
                    saved = store.save(
                        identity, _CODEC, tokens, _payload(tokens[begin:], begin), pos_begin=begin,
                        payload_format="lcg3", decoded_bytes=1000, component_types={"K": "f16"},
                    )  # fmt: skip
                    is_pinned = number % _PIN_EVERY == 0 and pinned_bytes < _MAX_PINNED_BYTES
                    if is_pinned:
                        store.pin(saved.key)
                        pinned_bytes += sum(store.entry(key).file_bytes for key in store.lookup(identity, tokens).keys)
                    log.write(json.dumps({"tokens": tokens, "pinned": is_pinned}) + "\n")
                    log.flush()
                    if number % 500 == 0:
                        n_removed += len(store.prune(store.stats().n_bytes * 9 // 10))
                add(store, n_removed)
    return {"role": "writer", "n_opened": n_opened, **totals}


def _open(config: dict[str, Any], mode: Any) -> Store:
    return Store(
        config["store"], mode=mode, budget_bytes=config["budget_bytes"], min_free_bytes=0, block_tokens=BLOCK_TOKENS
    )


def _check(snapshot: Snapshot, tokens: Sequence[int]) -> int:
    """Bytes compared. An AssertionError is a wrong byte."""
    n_tokens = n_bytes = 0
    for part in snapshot.parts:
        have = part.tokens.tolist()
        assert part.pos_begin == n_tokens
        assert have[: part.n_tokens] == list(tokens[n_tokens : n_tokens + part.n_tokens])
        assert bytes(part.payload) == _payload(have, part.pos_begin), "the payload is another"
        n_tokens += part.n_tokens
        n_bytes += len(part.payload)
    return n_bytes


class _Log:
    """What the writer said was saved, read as it grows."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._rest = b""
        self.recent: list[list[int]] = []
        self.pinned: list[list[int]] = []

    def read(self) -> None:
        data = self._rest + self._file.read()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            one = json.loads(line)
            (self.pinned if one["pinned"] else self.recent).append(one["tokens"])
        del self.recent[:-2000]


def _read(config: dict[str, Any]) -> dict[str, Any]:
    identity = _identity()
    rng = random.Random(config["number"])
    until = time.monotonic() + config["seconds"]
    log = _Log(config["log"])
    counts = dict.fromkeys(
        ("n_opened", "n_lookups", "n_whole", "n_partial", "n_missed", "n_pinned", "bytes_checked"), 0
    )
    reasons: dict[str, int] = {}
    kept: list[tuple[Snapshot, list[int]]] = []
    while time.monotonic() < until:
        counts["n_opened"] += 1
        with _open(config, "r") as store:
            reopen = time.monotonic() + _REOPEN_S
            while time.monotonic() < min(reopen, until):
                log.read()
                is_pinned = bool(log.pinned) and rng.random() < 0.3
                tokens = rng.choice(log.pinned if is_pinned else log.recent or [_prompt(1)])
                snapshot = store.snapshot(identity, tokens)
                counts["bytes_checked"] += _check(snapshot, tokens)
                counts["n_lookups"] += 1
                if snapshot.miss is None:
                    counts["n_whole"] += 1
                else:
                    counts["n_partial" if snapshot.parts else "n_missed"] += 1
                    reason = snapshot.miss.reason
                    reasons[reason.value] = reasons.get(reason.value, 0) + 1
                    assert reason not in (MissReason.DAMAGED, MissReason.UNREADABLE), snapshot.miss
                    assert not is_pinned, f"pinned and lost: {snapshot.miss}"
                counts["n_pinned"] += is_pinned
                if len(kept) < 8:
                    kept.append((snapshot, tokens))  # stays readable whatever is evicted meanwhile
                else:
                    snapshot.close()
                    old, old_tokens = kept.pop(rng.randrange(len(kept)))
                    counts["bytes_checked"] += _check(old, old_tokens)
                    old.close()
    for snapshot, _ in kept:
        snapshot.close()
    return {"role": "reader", **counts, "miss_reasons": reasons}


def _process(role: str, config: dict[str, Any]) -> None:
    try:
        _emit({"result": {"write": _write, "read": _read}[role](config)})
    except AssertionError as error:
        _emit({"error": f"{role}: {error}"})
        raise


# the parent


def _rss_bytes(pid: int) -> int:
    """Memory of a process that is its own: not the mapped files."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _disk_bytes(path: str) -> int:
    n_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                n_bytes += os.lstat(os.path.join(folder, name)).st_size
    return n_bytes


class _Child:
    def __init__(self, role: str, config: dict[str, Any]) -> None:
        self.role = role
        self.rss: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "llama_cachegen.soak_store", role, json.dumps(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._output: tuple[str, str] = ("", "")
        # what a child writes is read all the time, or it would wait once the pipe is full
        self._reader = threading.Thread(target=self._communicate, daemon=True)
        self._reader.start()

    def _communicate(self) -> None:
        self._output = self._process.communicate()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def sample(self) -> None:
        if (n_bytes := _rss_bytes(self._process.pid)) and self.is_running:
            self.rss.append(n_bytes)

    def kill(self) -> None:
        if self.is_running:
            self._process.kill()
        self._reader.join()

    def result(self) -> dict[str, Any]:
        self._reader.join()
        text, errors = self._output
        last = json.loads(text.splitlines()[-1]) if text.strip() else {}
        result: dict[str, Any] = dict(last.get("result", {"role": self.role}))
        if self._process.returncode:
            result["error"] = last.get("error") or errors.strip().splitlines()[-1:]
        third = max(1, len(self.rss) // 3)
        result["rss_first_bytes"] = max(self.rss[:third], default=0)
        result["rss_last_bytes"] = max(self.rss[-third:], default=0)
        return result


def run(
    *,
    seconds: float,
    n_readers: int = N_READERS,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress = lambda n_done, n_total: None,
) -> dict[str, Any]:
    """Let them work on a store in a temporary directory, and check it afterwards.

    Args:
        seconds: how long.
        n_readers: processes.
        directory: where the temporary directory is made.
        progress: progress(n_done, n_total), in seconds. What it raises ends it.

    Returns:
        what each process did, memory and disk, and `failures`: in words, none if all is well.
    """
    with tempfile.TemporaryDirectory(prefix="soak-store-", dir=directory) as root:
        config: dict[str, Any] = {
            "store": str(Path(root, "store")),
            "log": str(Path(root, "log")),
            "seconds": seconds,
            "budget_bytes": BUDGET_BYTES,
        }
        Path(config["log"]).touch()
        _open(config, "w").close()
        children: list[_Child] = []
        disk: list[int] = []
        try:
            children.append(_Child("write", config))
            children += [_Child("read", {**config, "number": n}) for n in range(n_readers)]
            t_start = time.monotonic()
            while any(child.is_running for child in children):
                time.sleep(_SAMPLE_S if seconds > 30 else _SAMPLE_S / 10)
                for child in children:
                    child.sample()
                disk.append(_disk_bytes(config["store"]))
                progress(min(int(time.monotonic() - t_start), int(seconds)), int(seconds))
        finally:
            for child in children:
                child.kill()
        results = [child.result() for child in children]
        return _judge(config, results, disk, seconds)


def _judge(config: dict[str, Any], results: list[dict[str, Any]], disk: list[int], seconds: float) -> dict[str, Any]:
    failures = [f"{one['role']}: {one['error']}" for one in results if "error" in one]
    log = _Log(config["log"])
    log.read()
    writer = results[0]
    with _open(config, "w") as store:
        stats, report = store.stats(), store.verify()
        n_lost = 0
        for tokens in log.pinned:
            with store.snapshot(_identity(), tokens) as snapshot:
                _check(snapshot, tokens)
                n_lost += snapshot.miss is not None
        bytes_written = writer.get("bytes_written", 0)
    if not report.ok or store.counters.n_quarantined:
        failures.append(f"verify: {report.findings[:3]}")
    if n_lost:
        failures.append(f"{n_lost} of {len(log.pinned)} pinned entries are lost")
    if "error" not in writer:
        n_left = writer["n_saves"] - writer["n_evicted"] - writer["n_removed"]
        if n_left != stats.n_segments:
            failures.append(f"{n_left} segments were saved and not removed, {stats.n_segments} are there")
        for name in ("n_quarantined", "n_unreadable", "n_index_failures"):
            if writer[name]:
                failures.append(f"writer: {name} is {writer[name]}")
    # beside the segments: the index and its journal, and one file being written
    index_bytes = sum(path.stat().st_size for path in Path(config["store"]).glob("index*"))
    disk_limit = config["budget_bytes"] + 2 * index_bytes + _MAX_PAYLOAD_BYTES + (1 << 20)
    if max(disk, default=0) > disk_limit:
        failures.append(f"the disk held {max(disk)} bytes, {disk_limit} are allowed")
    for one in results:
        if one["rss_last_bytes"] > 1.25 * one["rss_first_bytes"] + _MIN_GROWTH_BYTES:
            failures.append(
                f"{one['role']}: memory grew from {one['rss_first_bytes']} to {one['rss_last_bytes']} bytes"
            )
    return {
        "seconds": seconds,
        "budget_bytes": config["budget_bytes"],
        "processes": results,
        "n_committed": writer.get("n_saves", 0),
        "n_pinned": len(log.pinned),
        "n_pinned_lost": n_lost,
        "n_segments": stats.n_segments,
        "bytes_written": bytes_written,
        "disk_max_bytes": max(disk, default=0),
        "disk_limit_bytes": disk_limit,
        "failures": failures,
    }


def table_rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Of each process: role, what it did, MiB checked or written, times it opened the store, MiB of memory."""
    for one in result["processes"]:
        rss = f"{one['rss_first_bytes'] / 2**20:.1f} .. {one['rss_last_bytes'] / 2**20:.1f}"
        if one["role"] == "reader":
            yield (
                "reader",
                f"{one['n_lookups']:,} lookups: {one['n_whole']:,} whole ({one['n_pinned']:,} pinned), "
                f"{one['n_partial']:,} partial, {one['n_missed']:,} missed",
                f"{one['bytes_checked'] / 2**20:,.0f}",
                f"{one['n_opened']:,}",
                rss,
            )
        elif "n_saves" in one:
            yield (
                "writer",
                f"{one['n_saves']:,} saves, {one['n_evicted']:,} evicted, {one['n_removed']:,} pruned",
                f"{one['bytes_written'] / 2**20:,.0f}",
                f"{one['n_opened']:,}",
                rss,
            )
        else:
            yield (one["role"], str(one.get("error", "")), "", "", rss)


if __name__ == "__main__":
    _process(sys.argv[1], json.loads(sys.argv[2]))
