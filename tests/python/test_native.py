"""The native tests, run by ctest: once as built, once with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NATIVE_REPORTS, ROOT

EXECUTABLES = {
    "test-cachegen-archives",
    "test-codec-decoder",
    "test-codec-isa",
    "test-page-matrix",
    "test-page-transaction",
    "test-page-drain",
    "test-page-fuzz-driver",
    "test-page-refusals",
    "test-codec-stores",
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


def _ctest(build: Path, title: str) -> None:
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
        archives = re.findall(r"^\d+: ((?:archive|faults): .*)$", result.stdout, re.MULTILINE)
        NATIVE_REPORTS.append(
            ("archives into caches: type x layout x pool; allocations that failed", "\n".join(archives))
        )


def test_plain() -> None:
    builds = [path.parent for path in (ROOT / "build").glob("cp*/CTestTestfile.cmake")]
    assert builds, "no build with native tests; run scripts/setup --tests"
    _ctest(max(builds, key=lambda path: path.stat().st_mtime), "plain")


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
def test_neon() -> None:
    result = _run([sys.executable, "scripts/check-neon"])
    if result.returncode == 77:
        pytest.skip(result.stdout.strip().splitlines()[-1])
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-3000:]
    NATIVE_REPORTS.append(("NEON under qemu", result.stdout.strip().splitlines()[-1]))
