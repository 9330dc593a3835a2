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
N_VERIFY = 100
tmp_path = store_cases.memory_path

WRITERS = """
import os, sys
sys.path.insert(0, {tests!r})
from store_cases import *

def write(path, budget, log_path, seed):
    rng = random.Random(seed)
    with open_store(path, budget_bytes=budget) as store, open(log_path, "a") as log:
        while True:
            tokens = [seed % 7] * 4 + [rng.randrange(50) for _ in range(rng.randrange(1, 12))]
            log.write(f"begin {{tokens}}\\n")
            log.flush()
            save(store, tokens, n_bytes=rng.randrange(10, 9000))
            log.write(f"done {{tokens}}\\n")
            log.flush()

for line in sys.stdin:
    path, budget, log_path, seed = line.split()
    pid = os.fork()
    if pid == 0:
        try:
            write(Path(path), int(budget), log_path, int(seed))
        finally:
            os._exit(1)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""
"""Starts a writer, a process of its own, for every line, and says how it ended: no writer waits for imports."""


class Writers:
    def __init__(self) -> None:
        script = WRITERS.format(tests=str(Path(__file__).parent))
        self._process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill_one(self, path: Path, log: Path, budget: int, seed: int, wait_s: float) -> list[list[int]]:
        """Let a writer save for a while, and kill it. Returns what it said was saved."""
        assert self._process.stdin is not None and self._process.stdout is not None
        log.write_bytes(b"")
        self._process.stdin.write(f"{path} {budget} {log} {seed}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        while b"begin" not in log.read_bytes():
            os.kill(pid, 0)
            time.sleep(0.002)
        time.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
        status = int(self._process.stdout.readline())
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        lines = log.read_text().splitlines(keepends=True)
        return [json.loads(line[5:]) for line in lines if line.startswith("done") and line.endswith("\n")]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0


def test_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    saved: dict[str, list[list[int]]] = {name: [] for name in BUDGETS}
    n_checked = n_evicted = n_verified = 0
    writers = Writers()
    for n in range(N_KILLS):
        name = ("large", "tight")[n % 2]
        path, budget = tmp_path / name, BUDGETS[name]
        new = writers.kill_one(path, tmp_path / "log", budget, n, rng.uniform(0, 0.15))
        old = rng.sample(saved[name], min(N_OLD, len(saved[name])))
        saved[name] += new
        with open_store(path, budget_bytes=budget) as store:
            for tokens in new + old:
                n_held = held(store, tokens)
                assert n_held == len(tokens) or name == "tight"
                n_checked += 1
                n_evicted += n_held < len(tokens)
            assert store.counters.n_quarantined == 0
            # every byte of a store that only grows: now and then
            if name == "tight" or n < 20 or n % N_VERIFY < 2 or n + 2 >= N_KILLS:
                assert {finding.kind for finding in store.verify().findings} <= {"orphan"}
                n_verified += 1
        assert sum(file.stat().st_size for file in store_cases.segment_files(path)) <= budget
        assert list((path / "tmp").iterdir()) == []
    writers.close()
    with open_store(tmp_path / "large") as store:
        assert all(held(store, tokens) == len(tokens) for tokens in saved["large"])
    NATIVE_REPORTS.append(
        (
            "store: writers killed",
            f"{N_KILLS} kills; {sum(map(len, saved.values()))} saves had returned, {len(saved['large'])} of them into "
            f"a store without eviction: all are there; {n_checked} looked at right after a kill, {n_evicted} evicted; "
            f"{n_verified} times every byte of the store",
        )
    )
    assert len(saved["large"]) > N_KILLS and n_evicted > 0
