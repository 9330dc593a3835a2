"""The commands on tiers, and the example of two hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import store_cases
import tier_cases
from llama_cachegen.store import CodecStamp, Store, store_identity
from store_cases import open_store, save, segment_files
from test_cli_files import make_page
from test_cli_store import run, run_json

tmp_path = store_cases.memory_path
NATIVE = CodecStamp(name="native")


def test_push_pull_and_what_is_there_then(tmp_path: Path) -> None:
    tier_cases.needs("s3")
    url = f"file://{tmp_path / 'shared'}"
    page = make_page()
    page.write(tmp_path / "a.page")
    identity = store_identity(page.identity, page.components)
    tokens = page.tokens.tolist()
    with open_store(tmp_path / "a") as a:
        save(a, tokens[:40], identity=identity, codec=NATIVE)
        save(a, tokens, identity=identity, codec=NATIVE)
    open_store(tmp_path / "b").close()

    facts = run_json("push", url, "--store", tmp_path / "a")
    assert facts["ok"] and facts["outcomes"] == {"written": 2}
    assert run_json("push", url, "--store", tmp_path / "a")["outcomes"] == {"present": 2}
    facts = run_json("pull", url, tmp_path / "a.page", "--store", tmp_path / "b")
    assert (facts["n_tokens_before"], facts["n_tokens"], facts["n_segments"]) == (0, len(tokens), 2)
    assert [path.read_bytes() for path in segment_files(tmp_path / "a")] == [
        path.read_bytes() for path in segment_files(tmp_path / "b")
    ]
    assert (
        "70 of 70 tokens, 70 before; 0 segments"
        in run("pull", url, tmp_path / "a.page", "--store", tmp_path / "b").stdout
    )
    assert run_json("why-miss", tmp_path / "a.page", "--store", tmp_path / "b")["hit"]


def test_push_of_one_key_and_pull_of_what_is_not_there(tmp_path: Path) -> None:
    tier_cases.needs("s3")
    url = f"file://{tmp_path / 'shared'}"
    page = make_page()
    page.write(tmp_path / "a.page")
    with open_store(tmp_path / "a") as a:
        keys = [save(a, [i] * 8).key for i in range(3)]
    facts = run_json("push", url, keys[1][:12], "--store", tmp_path / "a")
    assert facts["outcomes"] == {"written": 1}
    facts = run_json("pull", url, tmp_path / "a.page", "--store", tmp_path / "a", exit_code=1)
    assert facts["n_tokens"] == facts["n_segments"] == 0


def test_a_tier_is_tried(tmp_path: Path) -> None:
    tier_cases.needs("redis")
    (facts,) = run_json("tiers", f"file://{tmp_path / 'shared'}")
    assert facts["ok"] and set(facts["ms"]) == {"put", "list", "get", "delete"}
    assert not [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    dead = f"redis://127.0.0.1:{tier_cases.free_port()}/0"
    facts = run_json("tiers", f"file://{tmp_path / 'shared'}", dead, "--deadline", "0.5", exit_code=1)
    assert [one["ok"] for one in facts] == [True, False] and "refused" in facts[1]["error"]
    assert "failed: put:" in run("tiers", dead, "--deadline", "0.5").stdout


def test_push_to_a_dead_tier_says_so(tmp_path: Path) -> None:
    tier_cases.needs("redis")
    with open_store(tmp_path / "a") as a:
        save(a, [1] * 8)
    dead = f"redis://127.0.0.1:{tier_cases.free_port()}/0"
    facts = run_json("push", dead, "--store", tmp_path / "a", "--deadline", "0.5", exit_code=1)
    assert facts["outcomes"] == {"failed": 1} and facts["counters"]["n_failures"] >= 1


def test_a_segment_that_came_is_like_any_other(tmp_path: Path) -> None:
    """It is pinned, evicted and found again after the index is gone."""
    tier_cases.needs("s3")
    url = f"file://{tmp_path / 'shared'}"
    page = make_page()
    page.write(tmp_path / "a.page")
    identity = store_identity(page.identity, page.components)
    with open_store(tmp_path / "a") as a:
        save(a, page.tokens.tolist(), identity=identity, codec=NATIVE)
    open_store(tmp_path / "b").close()
    run_json("push", url, "--store", tmp_path / "a")
    run_json("pull", url, tmp_path / "a.page", "--store", tmp_path / "b")
    (tmp_path / "b" / "index.sqlite").unlink()
    with Store(tmp_path / "b", min_free_bytes=0) as b:
        assert b.opened_by == "rebuilt" and b.lookup(identity, page.tokens).n_tokens == 70
        (row,) = (row for row, _ in b.entries())
        b.pin(row.key.hex())
        assert b.prune(0) == []
        b.unpin(row.key.hex())
        assert len(b.prune(0)) == 1
    assert json.loads(run("ls", "--store", tmp_path / "b", "--json").stdout) == []


def test_the_example_of_two_hosts(tmp_path: Path, tiny_model: Path, root: Path) -> None:
    tier_cases.needs("s3")
    command = [sys.executable, str(root / "examples" / "two_hosts.py"), str(tiny_model), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second, alone = (line for line in done.stdout.splitlines() if "next token" in line)
    assert "restored 0 of 106" in first and "restored 96 of 116" in second and "restored 0 of 116" in alone

    def token_of(line: str) -> str:
        return line.partition("next token ")[2].partition(";")[0]

    assert token_of(second) == token_of(alone)
    assert "n_hits=1" in second and "n_hits=0" in first
