"""A writer killed again and again: what it said was saved is there.

6 kills by default; LLAMA_CACHEGEN_STORE_KILLS sets another number. The writer notes in a file of its own what it is
about to save and what was saved; a kill may come at any time between.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import store_cases
from store_cases import held, open_store

N_KILLS = int(os.environ.get("LLAMA_CACHEGEN_STORE_KILLS", "6"))
BUDGET = 200_000
tmp_path = store_cases.memory_path

WRITER = """
import sys
sys.path.insert(0, {tests!r})
from store_cases import *
seed = int(sys.argv[1])
rng = random.Random(seed)
with open_store(Path({path!r}), budget_bytes={budget}) as store, open({log!r}, "a") as log:
    log.write("opened\\n")
    log.flush()
    while True:
        tokens = [seed % 7] * 4 + [rng.randrange(50) for _ in range(rng.randrange(1, 12))]
        # tokens before anything is changed, then whether they are saved and what had to go
        log.write(f"begin {{tokens}}\\n")
        log.flush()
        result = save(store, tokens, n_bytes=rng.randrange(10, 9000))
        log.write(f"done {{tokens}} {{int(result.n_evicted > 0)}}\\n")
        log.flush()
"""


def test_kills(tmp_path: Path) -> None:
    path, log = tmp_path / "s", tmp_path / "log"
    open_store(path).close()
    script = textwrap.dedent(
        WRITER.format(tests=str(Path(__file__).parent), path=str(path), log=str(log), budget=BUDGET)
    )
    rng = random.Random(1)
    n_checked = n_done = 0
    for n in range(N_KILLS):
        log.write_bytes(b"")
        writer = subprocess.Popen([sys.executable, "-c", script, str(n)])
        while "begin" not in log.read_text():
            assert writer.poll() is None
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        done: list[list[int]] = []
        lines = log.read_text().splitlines(keepends=True)
        for i, line in enumerate(lines):
            if line.startswith("done") and line.endswith("\n"):
                tokens, evicted = line[5:].rsplit(" ", 1)
                n_done += 1
                # what was saved since the last eviction has to be there, unless one was under way
                done = [] if int(evicted) else done
                done.append([int(one) for one in tokens[1:-1].split(",")])
            elif line.startswith("begin") and i == len(lines) - 1 and path_bytes(path) > BUDGET - 20_000:
                done = []
        with open_store(path, budget_bytes=BUDGET) as store:
            for saved in done:
                assert held(store, saved) == len(saved)
                n_checked += 1
            assert store.counters.n_quarantined == 0
            assert store.verify().ok or all(finding.kind == "orphan" for finding in store.verify().findings)
        assert path_bytes(path) <= BUDGET
        assert list((path / "tmp").iterdir()) == []
    assert n_done > N_KILLS and n_checked > 0


def path_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in store_cases.segment_files(path))
