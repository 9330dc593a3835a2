"""The harness: killed half-way it leaves no certificate and goes on where it was; bad input is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from llama_cachegen.cli import cli
from llama_cachegen.errors import JournalError, QualifyError, WorkloadError
from llama_cachegen.qualify.certificate import read_certificate
from llama_cachegen.qualify.journal import Journal
from llama_cachegen.qualify.verify import verify_certificate
from qualify_cases import qualify, write_workload

QUICK = ("--quick", "--work", "work", "--out", "out")


def steps_in(journal: Path) -> list[str]:
    lines = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    return [line["step"] for line in lines if "step" in line]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llama_cachegen", "qualify", *arguments]
    # a group of its own, so that the step's process is killed too
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_killed_half_way(tmp_path: Path) -> None:
    workload = str(write_workload(tmp_path))
    journal = tmp_path / "work/tiny-quick/journal.jsonl"
    process = start(tmp_path, "--workload", workload, *QUICK)
    deadline = time.monotonic() + 120
    while not (journal.exists() and "f16/f16: timing 0" in steps_in(journal)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out").exists()
    done = steps_in(journal)
    assert "f16/f16: memory save" not in done

    refused = qualify(tmp_path, "--workload", workload, *QUICK)
    assert refused.returncode == 1 and "finished steps of an interrupted run; go on with --resume" in refused.stderr
    assert not (tmp_path / "out").exists()

    with journal.open("a") as file:  # what a crash leaves of a line
        file.write('{"step": "f16/f16: qual')
    before = journal.stat().st_mtime_ns
    resumed = qualify(tmp_path, "--workload", workload, *QUICK, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert time.time_ns() > before
    assert not any(f"{step}\n" in resumed.stderr for step in done)  # none of the finished steps ran again
    (path,) = (tmp_path / "out").glob("*.json")
    certificate = read_certificate(path)
    verify_certificate(certificate)
    assert certificate.conditions.n_resumes == 1 and certificate.is_quick and certificate.evidence == "quick run"
    assert not journal.exists()  # what is in the certificate is kept no longer


def test_other_settings_do_not_resume(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, {"workload": "a", "code": "b"}, resume=False)
    journal.add("tokens", {"x": 1}, took_s=2.0)
    journal.add("f16/f16: prepare", {"y": 1}, took_s=3.0)
    journal.close()
    with pytest.raises(JournalError, match="of another run: code differ"):
        Journal(path, {"workload": "a", "code": "c"}, resume=True)
    with pytest.raises(JournalError, match="2 finished steps"):
        Journal(path, {"workload": "a", "code": "b"}, resume=False)
    again = Journal(path, {"workload": "a", "code": "b"}, resume=True)
    again.drop("f16/f16: ")
    again.close()
    last = Journal(path, {"workload": "a", "code": "b"}, resume=True)
    assert last.results == {"tokens": {"x": 1}} and last.took_s == 2.0
    last.close()
    path.write_text(path.read_text().replace('{"step"', '{"step', 1))
    with pytest.raises(JournalError, match="line 2 is damaged"):
        Journal(path, {"workload": "a", "code": "b"}, resume=True)


def test_files_that_are_gone_are_made_again(tmp_path: Path) -> None:
    """A resumed run whose saved files were removed measures that row anew: no sample of old files stays."""
    workload = str(write_workload(tmp_path))
    work = tmp_path / "work/tiny-quick"
    process = start(tmp_path, "--workload", workload, *QUICK)
    while "f16/f16: prepare" not in (steps_in(work / "journal.jsonl") if (work / "journal.jsonl").exists() else []):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (work / "f16-f16/balanced.saved").unlink()
    process = start(tmp_path, "--workload", workload, *QUICK, "--resume")
    while steps_in(work / "journal.jsonl").count("f16/f16: prepare") < 2:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    lines = [json.loads(line) for line in (work / "journal.jsonl").read_text().splitlines()]
    dropped = [i for i, line in enumerate(lines) if line.get("dropped") == "f16/f16: "]
    assert dropped and lines[dropped[0] + 1]["step"] == "f16/f16: prepare"


def test_unsupported_row_is_named(tmp_path: Path) -> None:
    odd = ('model = "shape:qwen3-tiny"', 'model = "shape:qwen3-odd-heads"')
    workload = write_workload(
        tmp_path, odd, ('rows = ["f16/f16"]\nprofiles = ["balanced"]', 'rows = ["q8_0/f16"]\nprofiles = ["balanced"]')
    )
    result = qualify(tmp_path, "--workload", str(workload), *QUICK)
    assert result.returncode == 0, result.stderr
    assert "q8_0/f16: stop" in result.stdout and "does not divide n_embd_head_k=48" in result.stdout
    (path,) = (tmp_path / "out").glob("*.json")
    certificate = read_certificate(path)
    verify_certificate(certificate)
    (row,) = certificate.rows
    assert row.status == "unsupported" and certificate.decision.reasons[0] == "q8_0/f16: stop"


def test_bad_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.chdir(tmp_path)
    gone = write_workload(
        tmp_path, ('model = "shape:qwen3-tiny"', 'model = "gone.gguf"'), ("texts = []", 'texts = ["code"]')
    )
    result = CliRunner().invoke(cli, ["qualify", "--workload", str(gone)])
    assert result.exit_code == 1 and "gone.gguf: no such file" in str(result.exception)
    digest = write_workload(
        tmp_path,
        ('model = "shape:qwen3-tiny"', f'model = "{tiny_model}"'),
        ("texts = []", 'texts = ["code"]'),
        ('model_sha256 = ""', f'model_sha256 = "{"0" * 64}"'),
    )
    result = CliRunner().invoke(cli, ["qualify", "--workload", str(digest)])
    assert isinstance(result.exception, WorkloadError) and f"{'0' * 64} is declared" in str(result.exception)
    shape = write_workload(tmp_path, ("qwen3-tiny", "qwen3-none"))
    result = CliRunner().invoke(cli, ["qualify", "--workload", str(shape)])
    assert isinstance(result.exception, WorkloadError)
    assert "qwen3-none is not one of the shapes" in str(result.exception)
    result = CliRunner().invoke(cli, ["qualify", "--workload", "tiny.toml", "--rows", "f16/q9"])
    assert isinstance(result.exception, WorkloadError) and "'q9' is not a type" in str(result.exception)
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    options = ["--model", "smollm2", "--text", str(short), "--tokens", "64", "--rows", "f16/f16"]
    result = CliRunner().invoke(cli, ["qualify", "--workload", "smollm2-7k", "--quick", "--restart", *options])
    assert isinstance(result.exception, QualifyError) and "tokens, 161 are wanted" in str(result.exception)
    assert not (tmp_path / "docs").exists() and not (tmp_path / "build/qualify/certificates").exists()
