"""scripts/qualify-cuda, with tools that only pretend: order of stages, what fails, what time leaves out, its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "qualify-cuda"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")

TESTS = """echo 'ok     pages   5 checks'; echo 'ok     damaged   2 checks'"""
SANITIZER = """
shift 4; "$@" || exit 9
case "$tool" in
    racecheck) echo 'RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)';;
    *) echo 'ERROR SUMMARY: 0 errors';;
esac
"""
BENCH = """for last; do :; done; echo '{"rows": [1]}' > "$last" """
# makes what the real one would build
CMAKE = """
case "$1" in --build) ;; *) exit 0;; esac
mkdir -p "$2/tests/native"
for name in test-kernels-cuda bench-kernels-cuda; do cp "{tools}/built/$name" "$2/"; done
cp "{tools}/built/bench-restore-cuda" "{tools}/built/"test-archive* "$2/tests/native/"
"""


@dataclass
class Machine:
    root: Path

    def tool(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho {path.name} "$@" >> "{self.root}/calls"\ntool="$2"\n{body}\n')
        path.chmod(0o755)

    def built(self, name: str, body: str) -> None:
        self.tool(f"built/{name}", body)

    @property
    def output(self) -> Path:
        return self.root / "results.json"

    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.output.read_text())
        return found

    def stages(self) -> dict[str, dict[str, Any]]:
        return {stage["name"]: stage for stage in self.results()["stages"]}

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), "--llama-source", str(self.root / "llama.cpp"), "--output"]
        command += [str(self.output), "--folder", str(self.root / "memory"), "--build-folder", str(self.root / "build")]
        environment = {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin"}
        return subprocess.run([*command, *options], capture_output=True, text=True, env=environment, timeout=60)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    (tmp_path / "llama.cpp").mkdir()
    machine.tool("nvidia-smi", "echo 'A card, 580.1, 143771 MiB'")
    machine.tool("nvcc", "echo 'release 13.0, V13.0.88'")
    machine.tool("cmake", CMAKE.format(tools=tmp_path / "bin"))
    machine.tool("compute-sanitizer", SANITIZER)
    machine.built("test-kernels-cuda", TESTS)
    machine.built("test-archive-parity-cuda", TESTS)
    machine.built("test-archives-cuda", TESTS.replace("pages", "ordering"))
    machine.built("bench-kernels-cuda", BENCH)
    machine.built("bench-restore-cuda", BENCH)
    return machine


def test_all_stages(machine: Machine) -> None:
    done = machine.run("--cold-folder", str(machine.root / "disk"), "--commit", "c0ffee", "--tokens", "600")
    assert done.returncode == 0, done.stdout + done.stderr
    results = machine.results()
    names = ["kernels-build", "tests", "memcheck", "racecheck", "kernels"]
    names += ["llama-build", "abi", "memcheck-abi", "restore", "cold"]
    assert [stage["name"] for stage in results["stages"]] == names
    assert {stage["status"] for stage in results["stages"]} == {"ok"}
    assert (results["commit"], results["card"], results["driver"]) == ("c0ffee", "A card", "580.1")
    assert results["cuda"] == "13.0.88" and len(results["source_digest"]) == 64
    stages = machine.stages()
    assert stages["tests"]["summary"]["checks"] == 7
    assert stages["racecheck"]["summary"]["summary"].startswith("RACECHECK SUMMARY: 0 hazards")
    assert stages["restore"]["results"] == {"rows": [1]}
    assert "--cold" in stages["cold"]["commands"][0] and "--cold" not in stages["restore"]["commands"][0]
    assert str(machine.root) not in machine.output.read_text()
    calls = (machine.root / "calls").read_text()
    assert calls.index("memcheck") < calls.index("bench-kernels-cuda 600 7") < calls.index("bench-restore-cuda")


def test_a_failed_check_is_named_and_the_rest_goes_on(machine: Machine) -> None:
    machine.built("test-kernels-cuda", "echo 'FAILED pages   5 checks'; exit 1")
    done = machine.run()
    assert done.returncode == 1
    stages = machine.stages()
    assert {name for name, stage in stages.items() if stage["status"] == "failed"} == {"tests", "memcheck", "racecheck"}
    assert stages["tests"]["exit_status"] == 1 and "FAILED pages   5 checks" in stages["tests"]["last_lines"]
    assert stages["restore"]["status"] == "ok"
    assert "failed: tests, memcheck, racecheck" in done.stdout


def test_hazards_and_a_silent_sanitizer_fail(machine: Machine) -> None:
    machine.tool(
        "compute-sanitizer", f"{TESTS}\ncase $tool in racecheck) echo 'RACECHECK SUMMARY: 3 hazards displayed';; esac"
    )
    assert machine.run().returncode == 1
    assert "3 found" in machine.stages()["racecheck"]["reason"]
    assert machine.stages()["memcheck"]["reason"] == "the sanitizer printed no summary"


def test_what_a_failed_build_leaves_out(machine: Machine) -> None:
    machine.tool("cmake", 'case "$*" in *kernels*) exit 2;; esac\n' + CMAKE.format(tools=machine.root / "bin"))
    assert machine.run().returncode == 1
    stages = machine.stages()
    good = [name for name, stage in stages.items() if stage["status"] == "ok"]
    assert good == ["llama-build", "abi", "memcheck-abi", "restore"]
    assert stages["kernels"]["reason"] == "kernels-build: failed"


def test_time_leaves_stages_out(machine: Machine) -> None:
    done = machine.run("--budget-s", "60", "--skip", "sanitizer")
    assert done.returncode == 3
    left_out = {name for name, stage in machine.stages().items() if stage["status"] == "left out"}
    assert left_out == {"llama-build", "abi", "restore"}
    assert "left out: llama-build, abi, restore" in done.stdout


def test_what_takes_too_long_ends_with_all_it_has_started(tmp_path: Path) -> None:
    loader = SourceFileLoader("qualify_cuda", str(SCRIPT))
    spec = spec_from_file_location(loader.name, SCRIPT, loader=loader)
    assert spec is not None
    qualify = sys.modules[loader.name] = module_from_spec(spec)
    loader.exec_module(qualify)
    log = tmp_path / "log"
    with pytest.raises(qualify.StageError, match="sh was ended after"):
        qualify.run_command(["sh", "-c", "sleep 60 & echo $!; sleep 61"], log, 0.3, {"PATH": "/usr/bin:/bin"})
    child = Path("/proc") / log.read_text().splitlines()[-1] / "stat"
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_results_are_whole_while_it_runs(machine: Machine) -> None:
    read = f"import json; print([s['name'] for s in json.load(open({str(machine.output)!r}))['stages']])"
    machine.built("bench-kernels-cuda", f'{BENCH}\n{sys.executable} -c "{read}"')
    assert machine.run("--skip", "sanitizer").returncode == 0
    log = machine.output.with_suffix(".log").read_text()
    assert "['kernels-build', 'tests', 'memcheck', 'racecheck']" in log
    assert machine.stages()["memcheck"]["status"] == "skipped"
    assert not list(machine.root.glob("*.part"))


def test_a_device_that_llama_cpp_does_not_find(machine: Machine) -> None:
    machine.built("test-archive-parity-cuda", f"echo 'device: none, the processor'; {TESTS}")
    assert machine.run("--skip", "sanitizer").returncode == 1
    assert machine.stages()["abi"]["reason"] == "llama.cpp found no device"


def test_no_such_stage(machine: Machine) -> None:
    done = machine.run("--skip", "test")
    assert done.returncode == 2 and "no stage test" in done.stderr
