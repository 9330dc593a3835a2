"""The native tests, run by ctest: once as built, once with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NATIVE_REPORTS, ROOT, native_build
from llama_cachegen.ggml_types import GgmlType
from parity import CELLS, NATIVE, SCALAR, Cell, Parity

EXECUTABLES = {
    "bench-restore-cuda",
    "test-archive-parity-cuda",
    "test-cachegen-archives",
    "test-codec-decoder",
    "test-codec-isa",
    "test-memory-classes",
    "test-page-matrix",
    "test-page-transaction",
    "test-page-drain",
    "test-page-fuzz-driver",
    "test-page-refusals",
    "test-codec-stores",
    "test-host-staging",
    "test-state-undo",
    "test-kernels",
    "test-metal-text",
    "fuzz-regression-ckg1-decode",
    "fuzz-regression-lcg3-decode",
    "fuzz-regression-lcg3-differential",
}


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment.pop("LLAMA_ATTN_ROT_DISABLE", None)
    environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
    return environment


def _run(arguments: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, env=_environment(), cwd=ROOT, **kwargs)  # type: ignore[call-overload]


def _count_comparisons(parity: Parity, output: str) -> set[str]:
    """Count what test-codec-isa says it has compared; returns the instruction sets it had."""
    assert "digest of all that scalar made" in output, "test-codec-isa is older than its source; scripts/setup --tests"
    (sets,) = re.findall(r"instruction sets: (.*)$", output, re.MULTILINE)
    found = re.findall(r"equal to scalar: ([^,]+),([^,]+),(\w+),(rows|transposed),(\d+)$", output, re.MULTILINE)
    assert {implementation for _, implementation, *_ in found} == set(sets.split()) - {"scalar"}
    for name, implementation, type_, layout, n in found:
        parity.count(Cell(name, GgmlType[type_], layout == "transposed"), implementation, SCALAR, int(n))
    return set(sets.split())


def _digest(output: str) -> str:
    (digest,) = re.findall(r"digest of all that scalar made: ([0-9a-f]{16})$", output, re.MULTILINE)
    return str(digest)


def _ctest(build: Path, title: str) -> str:
    result = _run(["ctest", "--test-dir", str(build), "--verbose"])
    passed = set(re.findall(r"Test +#\d+: (\S+) \.+ +Passed", result.stdout))
    assert result.returncode == 0, result.stdout[-6000:]
    assert passed == EXECUTABLES
    n_tests = sum(int(n) for n in re.findall(r"(\d+) tests passed\s*$", result.stdout, re.MULTILINE))
    n_checks = sum(int(n) for n in re.findall(r"(\d+) checks\s*$", result.stdout, re.MULTILINE))
    assert n_tests >= 30 and n_checks >= 100_000
    summary = re.search(r"100% tests passed.*", result.stdout)
    assert summary is not None
    NATIVE_REPORTS.append(
        (
            f"native tests, {title}",
            f"{summary[0]}; {n_tests} tests with {n_checks:,} checks in {len(passed)} executables",
        )
    )
    matrix = re.findall(r"^\d+: ((?:K +V is stored|\w+ +(?:transp\.|rows), |matrix:).*)$", result.stdout, re.MULTILINE)
    if title == "plain":
        NATIVE_REPORTS.append(("round trips of a page: type x layout x pool; head size 64 / 32", "\n".join(matrix)))
        classes = re.findall(
            r"^\d+: ((?:memory|windows|[a-z0-9-]+) +\S.*(?:pool|ok \d|REFUSED).*|[a-z0-9-]+ \(\d+\): .*)$",
            result.stdout,
            re.MULTILINE,
        )
        NATIVE_REPORTS.append(("archives: memory class x type x FA x pool; architectures", "\n".join(classes)))
        archives = re.findall(r"^\d+: ((?:archive|faults): .*)$", result.stdout, re.MULTILINE)
        NATIVE_REPORTS.append(
            ("archives into caches: type x layout x pool; allocations that failed", "\n".join(archives))
        )
    return result.stdout


@pytest.mark.timeout(1800)
def test_plain(parity: Parity) -> None:
    sets = _count_comparisons(parity, _ctest(native_build(), "plain"))
    for implementation in NATIVE[1:3]:
        if implementation not in sets:
            parity.absent[implementation] = "this processor or build has none"


@pytest.mark.timeout(3600)
def test_sanitized() -> None:
    if sys.platform != "linux":
        pytest.skip("the sanitized build is only known to work on Linux")
    build = ROOT / "build" / "sanitized"
    configure = _run(
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DLLAMA_CACHEGEN_PYTHON=OFF",
            "-DLLAMA_CACHEGEN_TESTS=ON",
            "-DLLAMA_CACHEGEN_SANITIZE=address,undefined",
        ]
    )
    assert configure.returncode == 0, configure.stdout[-3000:] + configure.stderr[-3000:]
    compiled = _run(["cmake", "--build", str(build)])
    assert compiled.returncode == 0, compiled.stdout[-6000:]
    _ctest(build, "AddressSanitizer + UndefinedBehaviorSanitizer")


@pytest.mark.timeout(1200)
def test_cuda_resources() -> None:
    """Every CUDA kernel compiles for three architectures, with the registers and spills of the committed table."""
    result = _run([sys.executable, "scripts/cuda-resources"])
    if result.returncode == 77:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    NATIVE_REPORTS.append(("CUDA kernels", result.stdout.strip().splitlines()[-1]))


@pytest.mark.timeout(1200)
def test_neon(parity: Parity) -> None:
    """NEON equals aarch64's scalar code, and that equals this processor's scalar code."""
    result = _run([sys.executable, "scripts/check-neon"])
    last_line = result.stdout.strip().splitlines()[-1]
    if result.returncode == 77:
        if not any(parity.n(cell, "NEON") for cell in CELLS):  # an aarch64 processor runs it in the other tests
            parity.absent["NEON"] = last_line
        pytest.skip(last_line)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-3000:]
    NATIVE_REPORTS.append(("NEON under qemu", last_line))
    _count_comparisons(parity, result.stdout)
    here = _run([str(native_build() / "tests" / "native" / "test-codec-isa")])
    assert here.returncode == 0, here.stdout[-6000:]
    assert _digest(result.stdout) == _digest(here.stdout)
    parity.remarks.append(
        "NEON: under qemu, beside aarch64's scalar code, all of whose output has the digest of this processor's: "
        + _digest(here.stdout)
    )
