"""The command line, on the real model: demo, inspect, verify, info."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from llama_cachegen import Engine
from llama_cachegen.models import resolve_model


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llama_cachegen", *arguments], capture_output=True, text=True, timeout=280
    )


@pytest.fixture(scope="module")
def page_path(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "a.page"
    with Engine(tiny_model, n_ctx=256, type_v="q8_0") as engine, engine.session() as session:
        session.prefill(list(range(40)))
        session.save(path)
    return path


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ((), {"K": "f16", "V": "f16"}),
        (("--type-k", "q8_0", "--type-v", "q4_0"), {"K": "q8_0", "V": "q4_0"}),
        (("--no-flash-attn",), {"K": "f16", "V": "f16"}),
    ],
)
def test_demo(options: tuple[str, ...], types: dict[str, str]) -> None:
    resolve_model("smollm2")  # fetched by `make test`
    result = run_cli("demo", "--tokens", "300", "--rounds", "2", "--json", *options)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["component_types"] == types
    assert report["n_prompt_tokens"] == 300 and report["n_greedy_tokens"] == 64
    assert report["llama_state"]["agreement"] == report["page"]["agreement"] == 64
    first = report["page"]["first_round"]
    assert first["restore"]["outcome"] == "restored" and first["restore"]["n_tokens"] == 300
    assert first["first"]["n_evaluated"] == 1
    assert report["page"]["bytes"] > report["page"]["first_round"]["restore"]["payload_bytes"]


def test_demo_table_and_own_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    result = run_cli("demo", "--text", str(text), "--rounds", "1")
    assert result.returncode == 0, result.stderr
    for words in ("recompute", "llama.cpp state file", "page", "64 of 64", "greedy tokens are the same"):
        assert words in " ".join(result.stdout.split())


def test_inspect_and_verify(page_path: Path, tmp_path: Path) -> None:
    result = run_cli("inspect", str(page_path), "--json")
    report = json.loads(result.stdout)
    assert report["n_tokens"] == 40 and [c["type"] for c in report["components"]] == ["f16", "q8_0", "f16", "q8_0"]
    assert [c["rotation"] for c in report["components"]] == [0, 64, 0, 64]
    assert "q8_0" in run_cli("inspect", str(page_path)).stdout

    damaged = tmp_path / "damaged.page"
    data = bytearray(page_path.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    result = run_cli("verify", str(page_path), str(damaged))
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[0].endswith(": ok") and "layer 1 V" in lines[1]
    assert run_cli("verify", str(page_path)).returncode == 0


def test_errors_are_one_line(tmp_path: Path) -> None:
    result = run_cli("inspect", str(tmp_path / "missing.page"))
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "missing.page" in result.stderr
    result = run_cli("demo", "--model", "no-such-model")
    assert result.returncode == 1 and "no-such-model" in result.stderr and "smollm2" in result.stderr
    assert run_cli("demo", "--no-such-option").returncode == 2


def test_info() -> None:
    report = json.loads(run_cli("info", "--json").stdout)
    assert report["abi_version"] == 1 and len(report["patch_digest"]) == 64
    assert Path(report["library"]).exists()
