"""The command line on a store: ls, info, inspect, verify, prune, rm, why-miss, stats, soak, and its benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_cases
from click.testing import CliRunner, Result
from llama_cachegen import bench_store_restore, soak_store
from llama_cachegen.cli import cli
from llama_cachegen.errors import CachegenError, StoreMissingError
from llama_cachegen.store import CodecStamp, store_identity
from store_cases import open_store, save, segment_files
from test_cli_files import make_page
from test_session import make_engine

tmp_path = store_cases.memory_path
TOKENS = [1] * 8


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["store", *(str(argument) for argument in arguments)])


def run_json(*arguments: object, exit_code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.exception
    return json.loads(result.stdout)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_store(tmp_path / "s") as store:
        save(store, TOKENS)
        save(store, [*TOKENS, 5])
        save(store, [2] * 8)
    return tmp_path / "s"


def test_ls_and_info(path: Path) -> None:
    rows = run_json("ls", "--store", path)
    assert [(row["pos_begin"], row["n_tokens"]) for row in rows] == [(0, 8), (8, 1), (0, 8)]
    assert rows[1]["continues"] == rows[0]["key"]
    assert rows[0]["codec"] == "lcg3/1 exact, exact"
    facts = run_json("info", rows[0]["key"][:10], "--store", path)
    assert facts["identity"]["model_name"] == "tiny.gguf" and facts["key"] == rows[0]["key"]
    text = run("ls", "--store", path)
    assert text.exit_code == 0 and rows[0]["key"][:12] in text.stdout
    text = run("info", rows[0]["key"], "--store", path)
    assert "payload_bytes: 200 (200 B)" in text.stdout


def test_info_of_none_or_several(path: Path) -> None:
    for key in ("", "zz", "00" * 32):
        result = run("info", key, "--store", path)
        assert result.exit_code == 1 and isinstance(result.exception, CachegenError)


def test_verify(path: Path) -> None:
    assert run_json("verify", "--store", path)["ok"]
    file = segment_files(path)[0]
    store_cases.flip(file, file.stat().st_size - 1)
    report = run_json("verify", "--store", path, exit_code=1)
    assert [finding["kind"] for finding in report["findings"]] == ["damaged"]
    text = run("verify", "--store", path, "--quarantine")
    assert text.exit_code == 1 and "[quarantined]" in text.stdout and not file.exists()
    run("verify", "--store", path, "--repair")
    assert run("verify", "--store", path).exit_code == 0


def test_verify_dry_run(path: Path) -> None:
    """Says what it would do, and does none of it."""
    child, parent = (run_json("ls", "--store", path)[n]["key"] for n in (1, 0))
    damaged = next(file for file in segment_files(path) if file.stem not in (child, parent))
    store_cases.flip(damaged, damaged.stat().st_size - 1)
    next(file for file in segment_files(path) if file.stem == parent).unlink()
    report = run_json("verify", "--repair", "--dry-run", "--store", path, exit_code=1)
    assert {one["kind"]: one["action"] for one in report["findings"]} == {
        "damaged": "would be quarantined", "orphan": "would be removed",
    }  # fmt: skip
    assert report["dry_run"] and damaged.exists() and len(segment_files(path)) == 2
    report = run_json("verify", "--quarantine", "--dry-run", "--store", path, exit_code=1)
    assert {one["kind"]: one["action"] for one in report["findings"]} == {
        "damaged": "would be quarantined",
        "orphan": "",
    }
    done = run_json("verify", "--repair", "--store", path, exit_code=1)
    assert {one["action"] for one in done["findings"]} == {"quarantined", "removed"} and not damaged.exists()


def test_inspect(path: Path) -> None:
    row = run_json("ls", "--store", path)[0]
    facts = run_json("inspect", row["key"][:8], "--store", path)
    assert facts["damage"] is None and facts["archive"] is None  # these payloads only begin like archives
    sections = facts["sections"]
    assert sum(section["n_bytes"] for section in sections) == facts["file_bytes"] == row["file_bytes"]
    assert [one["offset"] for one in sections] == [0, *(one["offset"] + one["n_bytes"] for one in sections[:-1])]
    assert sections[-1] == {"name": "payload (lcg3)", "offset": 4096, "n_bytes": 200}
    assert [(block["pos_begin"], block["n_tokens"]) for block in facts["blocks"]] == [(0, 4), (4, 4)]
    assert facts["blocks"][-1]["hash"] == row["key"] and facts["blocks"][0]["first_tokens"] == [1] * 4
    text = run("inspect", row["key"], "--store", path)
    assert text.exit_code == 0 and "digests: match" in text.stdout and "200 B" in text.stdout
    file = next(file for file in segment_files(path) if file.stem == row["key"])
    store_cases.flip(file, file.stat().st_size - 1)
    assert "damaged" in run_json("inspect", row["key"], "--store", path, exit_code=1)["damage"]
    assert file.exists()  # looking changes nothing


def test_inspect_shows_the_archive(tmp_path: Path, tiny_model: Path) -> None:
    with make_engine(tiny_model) as engine, engine.session() as session, open_store(tmp_path / "s") as store:
        session.prefill([1, 2, 3, 4, 5])
        key = session.save_to(store, profile="balanced").key
    archive = run_json("inspect", key, "--store", tmp_path / "s")["archive"]
    assert archive["n_tokens"] == 5
    assert [(one["kind"], one["type"], one["mode"], one["n"]) for one in archive["planes"]] == [
        ("K", "f16", "lossy", 2), ("V", "f16", "lossy", 2),
    ]  # fmt: skip
    assert "2 x K f16, lossy" in run("inspect", key, "--store", tmp_path / "s").stdout


def test_soak(tmp_path: Path) -> None:
    facts = run_json("soak", "--seconds", "3", "--readers", "2", "--directory", tmp_path)
    writer, *readers = facts["processes"]
    assert facts["failures"] == [] and len(readers) == 2 and list(tmp_path.iterdir()) == []
    assert writer["n_saves"] == facts["n_committed"] > 0 and all(one["n_lookups"] > 0 for one in readers)
    assert facts["disk_max_bytes"] <= facts["disk_limit_bytes"] and writer["rss_first_bytes"] > 1 << 20


def test_a_soak_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so of a wrong byte, of a lost entry, of memory and disk; that it can is shown on what it is told."""
    monkeypatch.setattr(soak_store, "_MIN_GROWTH_BYTES", -(1 << 40))
    monkeypatch.setattr(soak_store, "_disk_bytes", lambda path: 1 << 40)
    result = run("soak", "--seconds", "1", "--readers", "1", "--directory", tmp_path)
    assert result.exit_code == 1 and "soak: failed" in result.stdout
    assert "memory grew" in result.stdout and "the disk held" in result.stdout
    tokens = [1, 2, 3]
    with open_store(tmp_path / "s") as store:
        store_cases.save(store, tokens)
        with store.snapshot(store_cases.IDENTITY, tokens) as snapshot, pytest.raises(AssertionError, match="another"):
            soak_store._check(snapshot, tokens)


def test_prune_and_rm(path: Path) -> None:
    n_bytes = sum(file.stat().st_size for file in segment_files(path))
    would = run_json("prune", "--target", f"{n_bytes - 1}B", "--store", path, "--dry-run")
    assert len(would["segments"]) == 1 and len(segment_files(path)) == 3
    assert run_json("prune", "--target", f"{n_bytes - 1}B", "--store", path)["segments"] == would["segments"]
    assert len(segment_files(path)) == 2
    key = run_json("ls", "--store", path)[0]["key"]
    assert "would go" in run("rm", key, "--store", path, "--dry-run").stdout
    assert len(run_json("rm", key, "--store", path)["segments"]) == 1
    assert len(segment_files(path)) == 1
    result = run("prune", "--target", "16", "--store", path)
    assert result.exit_code == 2 and "unit" in result.stderr


def test_rm_takes_what_continues_it(path: Path) -> None:
    key = run_json("ls", "--store", path)[0]["key"]
    assert [row["pos_begin"] for row in run_json("rm", key, "--store", path)["segments"]] == [8, 0]


def test_stats(path: Path) -> None:
    facts = run_json("stats", "--store", path)
    assert facts["n_segments"] == facts["n_never_read"] == 3 and facts["block_tokens"] == 4
    assert "n_bytes: 12.6 KiB" in run("stats", "--store", path).stdout


def test_why_miss(path: Path, tmp_path: Path) -> None:
    page = make_page()
    page.write(tmp_path / "a.page")
    facts = run_json("why-miss", tmp_path / "a.page", "--store", path, exit_code=1)
    assert facts["reason"] == "type" and not facts["hit"]
    identity = store_identity(page.identity, page.components)
    with open_store(path) as store:
        save(store, page.tokens.tolist(), identity=identity, codec=CodecStamp(name="native"))
    assert run_json("why-miss", tmp_path / "a.page", "--store", path)["hit"]
    facts = run_json("why-miss", tmp_path / "a.page", "--store", path, "--swa-window", 7, exit_code=1)
    assert facts["reason"] == "window" and facts["field"] == "swa_window"


def test_a_command_makes_no_store(tmp_path: Path) -> None:
    for arguments in (["ls"], ["stats"], ["verify", "--repair"], ["prune", "--target", "0B"]):
        result = run(*arguments, "--store", tmp_path / "none")
        assert isinstance(result.exception, StoreMissingError)
    assert not (tmp_path / "none").exists()


def test_bench_of_restores(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(1).integers(0, 64, 1100).tolist()
    monkeypatch.setattr(bench_store_restore, "_prompt", lambda engine, n: tokens[:n])
    arguments = ["--model", tiny_model, "--tokens", 1100, "--rounds", 2, "--directory", tmp_path, "--json"]
    result = CliRunner().invoke(cli, ["bench", "store-restore", *map(str, arguments)])
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert list(facts["cases"]) == ["archive file", "store", "store, 4 segments", "store, keyed"]
    for name, case in facts["cases"].items():
        assert case["ms"]["n"] == 2 and (case["lookup_ms"] is None) == (name == "archive file")
    assert facts["cases"]["archive file"]["more_of_file"] == 0 and list(tmp_path.iterdir()) == []


def test_bench(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli,
        [
            "bench",
            "store",
            "--entries",
            "200",
            "--rounds",
            "1",
            "--lookups",
            "20",
            "--directory",
            str(tmp_path),
            "--json",
        ],
    )
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert facts["n_entries"] == 200 and facts["n_chains_of_many"] == 1 and len(facts["lookup_ms"]) == 5
    assert facts["rebuild_segments_per_s"] > 0 and list(tmp_path.iterdir()) == []
