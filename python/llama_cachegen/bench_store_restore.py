"""What a store costs on top of the archive in it: a prompt restored out of a file and out of stores, in turns."""

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

import numpy as np

from ._timing import ms_since
from .bench_store import cpu_name
from .engine import Engine
from .session import Session
from .store import Store

__all__ = ["N_ROUNDS", "N_TOKENS", "run"]

N_TOKENS = 7000
N_ROUNDS = 21
N_PARTS = 4
_BARE = "archive file"


def _spread(values: Sequence[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {
        "median": statistics.median(values),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def run(
    *,
    model: str | os.PathLike[str],
    profile: str = "balanced",
    n_tokens: int = N_TOKENS,
    n_rounds: int = N_ROUNDS,
    type_k: str = "f16",
    type_v: str = "f16",
    n_threads: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Evaluate a prompt, save it to a file and to stores, and restore it from each, in turns of random order.

    Every restore goes into the same emptied sequence; the cells must be those of the file's. The page cache is warm.

    Args:
        model: GGUF file.
        profile: of the archives.
        n_tokens: of the prompt; the document of the demo, repeated.
        n_rounds: of all cases; one more warms up.
        type_k, type_v: of the cache.
        n_threads: of the engine.
        directory: where the temporary directory is made.
        progress: progress(text).

    Returns:
        machine, and for each case milliseconds, those of all threads on a processor, what of them was the lookup, and
        what it takes more than the file: the median of the differences within a round, in milliseconds and of the
        file's median.

    Raises:
        RuntimeError: a restore gave other bytes than the file's.
    """
    root = tempfile.mkdtemp(prefix="bench-store-restore-", dir=directory)
    try:
        with (
            Engine(model, n_ctx=n_tokens + 64, type_k=type_k, type_v=type_v, n_threads=n_threads) as engine,
            engine.session() as session,
        ):
            return _measure(engine, session, root, profile, n_tokens, n_rounds, progress)
    finally:
        shutil.rmtree(root)


def _prompt(engine: Engine, n_tokens: int) -> list[int]:
    from .demo import demo_text

    tokens: list[int] = engine.tokenize(demo_text()).tolist()
    return (tokens * (n_tokens // len(tokens) + 1))[:n_tokens]


def _measure(
    engine: Engine, session: Session, root: str, profile: str, n_tokens: int, n_rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    prompt = _prompt(engine, n_tokens)
    path = Path(root, "prompt.archive")
    options: dict[str, Any] = {"min_free_bytes": 0}
    whole, parts, keyed = (str(Path(root, name)) for name in ("whole", "parts", "keyed"))
    key = bytes(32)
    progress(f"evaluating {n_tokens} tokens")
    session.prefill(prompt)
    session.save(path, profile)
    with Store(whole, **options) as store:
        session.save_to(store, profile=profile)
    with Store(keyed, key=key, **options) as store:
        session.save_to(store, profile=profile)
    with Store(parts, **options) as store:
        step = -(-n_tokens // N_PARTS // store.block_tokens) * store.block_tokens
        for n in [*range(step, n_tokens, step), n_tokens]:
            session.save_to(store, prompt[:n], profile)
    time.sleep(1.1)  # directories that changed a moment ago are read again by a reader
    rng = np.random.default_rng(1)
    samples: dict[str, list[float]] = {}
    cpu_samples: dict[str, list[float]] = {}
    lookups: dict[str, list[float]] = {}
    opened = {
        "store": Store(whole, mode="r", **options),
        f"store, {N_PARTS} segments": Store(parts, mode="r", **options),
        "store, keyed": Store(keyed, mode="r", key=key, **options),
    }
    try:
        names = [_BARE, *opened]
        for i in range(n_rounds + 1):
            for name in rng.permutation(names):
                session.clear()
                t_start, cpu_start = time.perf_counter(), time.process_time()
                if name == _BARE:
                    bare = session.restore(path, prompt)
                    is_restored = bare.restored
                else:
                    receipt = session.restore_from(opened[name], prompt, lossy=True)
                    is_restored = receipt.restored
                    if i:
                        lookups.setdefault(name, []).append(receipt.lookup_ms)
                elapsed_ms, cpu_ms = ms_since(t_start), (time.process_time() - cpu_start) * 1000
                if not is_restored:
                    raise RuntimeError(f"{name}: not restored")
                if i:  # round 0 warms up
                    samples.setdefault(name, []).append(elapsed_ms)
                    cpu_samples.setdefault(name, []).append(cpu_ms)
                else:
                    _compare(session, name, path, prompt)
            progress(f"round {i} of {n_rounds}")
    finally:
        for store in opened.values():
            store.close()
    bare_ms = samples[_BARE]
    cases = {}
    for name in names:
        more = [a - b for a, b in zip(samples[name], bare_ms, strict=True)]
        cases[name] = {
            "ms": _spread(samples[name]),
            "more_ms": _spread(more),
            "more_of_file": statistics.median(more) / statistics.median(bare_ms),
            "cpu_ms": _spread(cpu_samples[name]),
            "more_cpu_of_file": statistics.median(cpu_samples[name]) / statistics.median(cpu_samples[_BARE]) - 1,
            "lookup_ms": _spread(lookups[name]) if name in lookups else None,
        }
    return {
        "machine": {
            "cpu": cpu_name(),
            "n_cpus": os.cpu_count(),
            "load_1min": os.getloadavg()[0],
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "n_tokens": n_tokens,
        "n_rounds": n_rounds,
        "profile": profile,
        "types": {"K": engine.type_k.type_name, "V": engine.type_v.type_name},
        "archive_bytes": path.stat().st_size,
        "cases": cases,
    }


def _compare(session: Session, name: str, path: Path, prompt: list[int]) -> None:
    """Raises RuntimeError unless the sequence holds what the file gives; in several segments the codes are others."""
    if str(N_PARTS) in name:
        return
    page = session.export_page()
    session.clear()
    session.restore(path, prompt)
    if bytes(session.export_page().payload) != bytes(page.payload):
        raise RuntimeError(f"{name}: other bytes than those of the file")
