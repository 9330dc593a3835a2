"""`llama-cachegen bench archives` on few tokens: that it measures every case. No speed is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from llama_cachegen.cli import cli
from llama_cachegen.models import KNOWN_MODELS


def test_bench_archives(tmp_path: Path) -> None:
    page = tmp_path / "archives.md"
    options = ["--model", "smollm2", "--tokens", "96", "--rounds", "1", "--threads", "2", "--folder", str(tmp_path)]
    result = CliRunner().invoke(cli, ["bench", "archives", "--json", *options, "--markdown", str(page)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["n_tokens"] == 95 and report["n_rounds"] == 1
    assert report["native_bytes"] == 2 * report["n_values"] == 2 * 95 * 30 * 2 * 192

    cases = {(row["group"], row["case"], row["n_threads"]): row["ms"] for row in report["times"]}
    assert len(cases) == len(report["times"]) == 6 + 6 + 2 + 2 + 5 + 6 + 2 + 1
    for (group, case, _), ms in cases.items():
        for spread in ms.values():
            assert 0 <= spread["min"] <= spread["median"] <= spread["max"]
        assert ms["total_ms"]["min"] > 0
        if case in ("balanced", "lmcache", "exact", "native page"):
            assert set(ms) > ({"export_ms", "fsync_ms"} if group == "save" else {"open_ms", "copy_ms"})
    assert 0 <= report["cold_resident_percent"] <= 100

    if report["memory"]:  # Linux
        assert {(row["action"], row["case"]) for row in report["memory"]} >= {("save", "exact"), ("restore", "lmcache")}
        assert all(row["peak"]["peak_bytes"] >= 0 and row["file_bytes"] > 0 for row in report["memory"])

    equal = {row["case"]: (row["n_equal"], row["first_difference"]) for row in report["greedy"]}
    assert list(equal) == ["native page", "llama.cpp state file", "exact", "balanced", "lmcache"]
    assert equal["native page"] == equal["exact"] == (64, None)
    assert [row["is_same_again"] for row in report["greedy"]] == [None, None, True, None, None]

    assert {goal["is_reached"] for goal in report["goals"]} <= {True, False} and len(report["goals"]) > 12
    text = page.read_text()
    for words in (KNOWN_MODELS["smollm2"].sha256, "POSIX_FADV_DONTNEED", "VmHWM", "load average", "| balanced | 1 |"):
        assert words in text
    assert str(tmp_path) not in text


def test_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    result = CliRunner().invoke(cli, ["bench", "archives", "--model", "smollm2", "--text", str(short)])
    assert result.exit_code == 1 and "tokens, 7,000 are wanted" in str(result.exception)


@pytest.mark.parametrize("arguments", [["bench", "--help"], ["bench", "archives", "--help"]])
def test_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0 and "--tokens" in result.stdout
