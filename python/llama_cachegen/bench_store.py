"""How fast a store of many entries is opened, indexed and asked."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

from ._timing import ms_since
from .page_identity import RopeIdentity
from .store import CodecStamp, ComponentGroup, Store, StoreIdentity
from .store.files import Files
from .store.layout import segment_name
from .store.segment import Manifest, encode_prefix

__all__ = ["N_ENTRIES", "N_PROMPT_TOKENS", "cpu_name", "run"]

N_ENTRIES = 100_000
N_PROMPT_TOKENS = 19_000
N_ROUNDS = 5
N_LOOKUPS = 2_000
_PAYLOAD_BYTES = 256

_IDENTITY = StoreIdentity(
    model_blake3="00" * 32,
    model_name="none",
    components=tuple(
        ComponentGroup(kind=kind, layers="0-27", type="q8_0", n_rot=64, transposed=False, n_channels=1024)
        for kind in ("K", "V")
    ),
    rope=RopeIdentity(
        rope_type=0,
        n_ctx_orig_yarn=32768,
        freq_base=1e6,
        freq_scale=1.0,
        yarn_ext_factor=0.0,
        yarn_attn_factor=1.0,
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
    ),
    llama_commit="00" * 20,
    patch_digest="00" * 32,
    abi_version=1,
)
_CODEC = CodecStamp(name="lcg3", profile="balanced", calibration="00" * 32, entry_class="lossy")

Progress = Callable[[str], None]


class _UnsyncedFiles(Files):
    """Filling the store is not what is measured: nothing waits for the disk."""

    def sync(self, fd: int) -> None:
        pass

    def sync_dir(self, name: str) -> None:
        pass


def _prompt(seed: int, n_tokens: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 150_000, n_tokens, dtype=np.int32)


def _fill(path: str, n_entries: int, n_prompt: int, progress: Progress) -> tuple[list[int], list[int]]:
    """Chains of one segment a block and chains of one segment. Returns the seeds of both kinds of prompt."""
    payload = b"LCG3" + bytes(_PAYLOAD_BYTES - 4)
    digest = blake3.blake3(payload).hexdigest()
    with Store(path, budget_bytes=1 << 50, min_free_bytes=0, make_files=_UnsyncedFiles) as store:
        files, block_tokens = store._files, store.block_tokens
        root = store._root(_IDENTITY, _CODEC)
        for number in range(256):
            files.make_dir(f"segments/{number:02x}")
        long_chains: list[int] = []
        whole: list[int] = []
        n, seed = 0, 0
        while n < n_entries:
            seed += 1
            tokens = _prompt(seed, n_prompt)
            chain = store._chain(root, tokens.astype("<i4").tobytes())
            hashes = chain.hashes()
            n_parts = len(hashes) if seed % len(hashes) == 0 else 1
            if n + n_parts > n_entries:
                n_parts = 1
            step = n_prompt if n_parts == 1 else block_tokens
            for begin in range(0, n_prompt, step):
                part = tokens[begin : begin + step]
                block = begin // block_tokens
                own = hashes[block : block + -(-len(part) // block_tokens)]
                manifest = Manifest(
                    identity=_IDENTITY,
                    codec=_CODEC,
                    block_tokens=block_tokens,
                    pos_begin=begin,
                    n_tokens=len(part),
                    parent=chain.before(block).hex(),
                    chain=tuple(one.hex() for one in own),
                    divisible=True,
                    payload_format="lcg3",
                    payload_bytes=len(payload),
                    payload_blake3=digest,
                    decoded_bytes=1 << 20,
                    component_types={"K": "q8_0", "V": "q8_0"},
                    created_ms=1_700_000_000_000 + n,
                )
                fd = files.create(segment_name(manifest.key))
                try:
                    files.write(fd, encode_prefix(manifest, part.astype("<i4").tobytes()))
                    files.write(fd, payload)
                finally:
                    files.close_file(fd)
                n += 1
                if n % 20_000 == 0:
                    progress(f"{n} of {n_entries} segments written")
            (long_chains if n_parts > 1 else whole).append(seed)
    return long_chains, whole


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "n": len(ordered),
    }


def _ask(store: Store, prompts: Sequence[NDArray[np.int32]], expected: int, n_lookups: int) -> dict[str, float]:
    times = []
    for i in range(n_lookups):
        tokens = prompts[i % len(prompts)]
        t_start = time.perf_counter()
        found = store.lookup(_IDENTITY, tokens, lossy=True)
        times.append(ms_since(t_start))
        if found.n_tokens != expected:
            raise RuntimeError(f"{found.n_tokens} tokens were found, {expected} are there")
    return _spread(times)


def run(
    *,
    n_entries: int = N_ENTRIES,
    n_prompt_tokens: int = N_PROMPT_TOKENS,
    n_rounds: int = N_ROUNDS,
    n_lookups: int = N_LOOKUPS,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Fill a store in a temporary directory and measure it.

    Args:
        n_entries: segments; a few chains have one for each block of a prompt, all others one for a whole prompt.
        n_prompt_tokens: tokens of every prompt.
        n_rounds: times the store is opened, and its index made anew.
        n_lookups: of each kind.
        directory: where the temporary directory is made.
        progress: progress(text).

    Returns:
        machine, sizes, and for each case median, smallest, largest and 99th percentile in milliseconds.
    """
    root = tempfile.mkdtemp(prefix="bench-store-", dir=directory)
    try:
        path = str(Path(root, "store"))
        long_chains, whole = _fill(path, n_entries, n_prompt_tokens, progress)
        time.sleep(1.1)  # directories that changed a moment ago are read again when a store is opened
        options: dict[str, Any] = {"budget_bytes": 1 << 50, "min_free_bytes": 0}
        rebuild: list[float] = []
        rebuild_cpu: list[float] = []
        opened: list[float] = []
        opened_r: list[float] = []
        for i in range(n_rounds):
            Path(path, "index.sqlite").unlink(missing_ok=True)
            t_start, cpu_start = time.perf_counter(), time.process_time()
            with Store(path, **options) as store:
                rebuild.append(ms_since(t_start))
                rebuild_cpu.append((time.process_time() - cpu_start) * 1000)
                if store.opened_by != "rebuilt" or store.stats().n_segments != n_entries:
                    raise RuntimeError("the index was not made anew of all segments")
            progress(f"index made {i + 1} times")
        for _ in range(n_rounds * 4):
            for mode, times in (("w", opened), ("r", opened_r)):
                t_start = time.perf_counter()
                with Store(path, mode=mode, **options) as store:  # type: ignore[arg-type]
                    times.append(ms_since(t_start))
                    if store.opened_by != "opened":
                        raise RuntimeError("the index was not used")
        lookups = {}
        with Store(path, mode="r", **options) as store:
            n_blocks = -(-n_prompt_tokens // store.block_tokens)
            common = n_prompt_tokens // store.block_tokens // 2 * store.block_tokens
            for name, seeds in (("one segment a prompt", whole[:500]), ("one segment a block", long_chains[:500])):
                if not seeds:
                    continue
                prompts = [_prompt(seed, n_prompt_tokens) for seed in seeds]
                lookups[f"{name}, all of it"] = _ask(store, prompts, n_prompt_tokens, n_lookups)
                other = [np.concatenate([p[:common], _prompt(10**6, n_prompt_tokens - common)]) for p in prompts]
                lookups[f"{name}, half of it"] = _ask(store, other, common, n_lookups)
            unknown = [_prompt(2 * 10**6 + i, n_prompt_tokens) for i in range(100)]
            lookups["none of it"] = _ask(store, unknown, 0, n_lookups)
        index_bytes = Path(path, "index.sqlite").stat().st_size
    finally:
        shutil.rmtree(root)
    return {
        "machine": {
            "cpu": cpu_name(),
            "n_cpus": os.cpu_count(),
            "load_1min": os.getloadavg()[0],
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "n_entries": n_entries,
        "n_prompt_tokens": n_prompt_tokens,
        "n_blocks": n_blocks,
        "n_chains_of_many": len(long_chains),
        "index_bytes": index_bytes,
        "rebuild_ms": _spread(rebuild),
        "rebuild_cpu_ms": _spread(rebuild_cpu),
        "rebuild_segments_per_s": n_entries / statistics.median(rebuild) * 1000,
        "open_write_ms": _spread(opened),
        "open_read_ms": _spread(opened_r),
        "lookup_ms": lookups,
    }


def cpu_name() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
