"""The command line on a store: ls, info, verify, prune, rm, why-miss, stats, and the benchmark of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import store_cases
from click.testing import CliRunner, Result
from llama_cachegen.cli import cli
from llama_cachegen.errors import CachegenError, StoreMissingError
from llama_cachegen.store import CodecStamp, store_identity
from store_cases import open_store, save, segment_files
from test_cli_files import make_page

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
