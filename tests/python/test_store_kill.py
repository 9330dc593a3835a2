"""A writer killed again and again: what it said was saved is there.

6 kills by default; LLAMA_CACHEGEN_STORE_KILLS sets another number. The writer notes in a file of its own what it is
about to save and what was saved; a kill may come at any time between.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import store_cases
from conftest import NATIVE_REPORTS
from store_cases import held, open_store

N_KILLS = int(os.environ.get("LLAMA_CACHEGEN_STORE_KILLS", "6"))
BUDGETS = {"large": 1 << 40, "tight": 200_000}
"""Two stores, killed in turn: one that never evicts, and one that always does."""
N_OLD = 50
tmp_path = store_cases.memory_path

WRITER = """
import sys
sys.path.insert(0, {tests!r})
from store_cases import *
seed = int(sys.argv[1])
rng = random.Random(seed)
with open_store(Path({path!r}), budget_bytes={budget}) as store, open({log!r}, "a") as log:
    while True:
        tokens = [seed % 7] * 4 + [rng.randrange(50) for _ in range(rng.randrange(1, 12))]
        log.write(f"begin {{tokens}}\\n")
        log.flush()
        save(store, tokens, n_bytes=rng.randrange(10, 9000))
        log.write(f"done {{tokens}}\\n")
        log.flush()
"""


def kill_one(path: Path, log: Path, budget: int, seed: int, wait_s: float) -> list[list[int]]:
    """Let a writer save for a while, and kill it. Returns what it said was saved."""
    log.write_bytes(b"")
    values = {"tests": str(Path(__file__).parent), "path": str(path), "log": str(log), "budget": budget}
    writer = subprocess.Popen([sys.executable, "-c", WRITER.format(**values), str(seed)])
    while b"begin" not in log.read_bytes():
        assert writer.poll() is None
        time.sleep(0.005)
    time.sleep(wait_s)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line[5:]) for line in lines if line.startswith("done") and line.endswith("\n")]


def test_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    saved: dict[str, list[list[int]]] = {name: [] for name in BUDGETS}
    n_checked = n_evicted = 0
    for n in range(N_KILLS):
        name = ("large", "tight")[n % 2]
        path, budget = tmp_path / name, BUDGETS[name]
        new = kill_one(path, tmp_path / "log", budget, n, rng.uniform(0, 0.15))
        old = rng.sample(saved[name], min(N_OLD, len(saved[name])))
        saved[name] += new
        with open_store(path, budget_bytes=budget) as store:
            for tokens in new + old:
                n_held = held(store, tokens)
                assert n_held == len(tokens) or name == "tight"
                n_checked += 1
                n_evicted += n_held < len(tokens)
            assert store.counters.n_quarantined == 0
            assert {finding.kind for finding in store.verify().findings} <= {"orphan"}
        assert sum(file.stat().st_size for file in store_cases.segment_files(path)) <= budget
        assert list((path / "tmp").iterdir()) == []
    with open_store(tmp_path / "large") as store:
        assert all(held(store, tokens) == len(tokens) for tokens in saved["large"])
    NATIVE_REPORTS.append(
        (
            "store: writers killed",
            f"{N_KILLS} kills; {sum(map(len, saved.values()))} saves had returned, {len(saved['large'])} of them into "
            f"a store without eviction: all are there; {n_checked} looked at right after a kill, {n_evicted} evicted",
        )
    )
    assert len(saved["large"]) > N_KILLS and n_evicted > 0
