"""A writer killed again and again: what it said was saved is there.

6 kills by default; LLAMA_CACHEGEN_STORE_KILLS sets another number. The writer notes in a file of its own what it is
about to save and what was saved; a kill may come at any time between.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import store_cases
from conftest import NATIVE_REPORTS
from llama_cachegen.store import Store
from store_cases import held, open_store

N_KILLS = int(os.environ.get("LLAMA_CACHEGEN_STORE_KILLS", "6"))
BUDGETS = {"large": 1 << 40, "tight": 200_000}
"""Two stores, killed in turn: one that never evicts, and one that always does."""
N_OLD = 20
N_VERIFY = 25
N_KILLS_OF_A_STORE = 100
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


class Killed:
    """A store whose writers are killed, and what they said was saved."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.budget = BUDGETS[name]
        self.path = folder / name
        self.saved: list[list[int]] = []
        self.n_kills = self.n_checked = self.n_evicted = self.n_verified = 0

    def kill(self, writers: Writers, log: Path, seed: int, rng: random.Random) -> None:
        new = writers.kill_one(self.path, log, self.budget, seed, rng.uniform(0, 0.15))
        old = rng.sample(self.saved, min(N_OLD, len(self.saved)))
        self.saved += new
        self.n_kills += 1
        with open_store(self.path, budget_bytes=self.budget) as store:
            for tokens in new + old:
                n_held = held(store, tokens)
                assert n_held == len(tokens) or self.name == "tight"
                self.n_checked += 1
                self.n_evicted += n_held < len(tokens)
            assert store.counters.n_quarantined == 0
            # every byte of a store that only grows: now and then
            if self.name == "tight" or self.n_kills < 10 or self.n_kills % N_VERIFY == 0:
                self.verify(store)
        assert sum(file.stat().st_size for file in store_cases.segment_files(self.path)) <= self.budget
        assert list((self.path / "tmp").iterdir()) == []

    def verify(self, store: Store) -> None:
        assert {finding.kind for finding in store.verify().findings} <= {"orphan"}
        self.n_verified += 1

    def end(self) -> None:
        """All of it, once more, and away with it: opening a store of very many entries takes longer than killing."""
        with open_store(self.path, budget_bytes=self.budget) as store:
            self.verify(store)
            if self.name == "large":
                assert all(held(store, tokens) == len(tokens) for tokens in self.saved)
        shutil.rmtree(self.path)


def test_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    writers = Writers()
    stores: list[Killed] = []
    for n in range(N_KILLS):
        if n % (2 * N_KILLS_OF_A_STORE) == 0:
            for one in stores[-2:]:
                one.end()
            stores += [Killed(tmp_path, name) for name in BUDGETS]
        stores[-2 + n % 2].kill(writers, tmp_path / "log", n, rng)
    for one in stores[-2:]:
        one.end()
    writers.close()
    kept = sum(len(one.saved) for one in stores if one.name == "large")
    n_evicted = sum(one.n_evicted for one in stores)
    assert sum(one.n_kills for one in stores) == N_KILLS
    NATIVE_REPORTS.append(
        (
            "store: writers killed",
            f"{N_KILLS} kills of writers on {len(stores)} stores; {sum(len(one.saved) for one in stores)} saves had "
            f"returned, {kept} of them into stores without eviction: all are there; "
            f"{sum(one.n_checked for one in stores)} looked at right after a kill, {n_evicted} evicted; "
            f"{sum(one.n_verified for one in stores)} times every byte of a store",
        )
    )
    assert kept > N_KILLS and n_evicted > 0
