"""HIP kernels without ROCm: code objects for every target, as the committed tables say."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest
from conftest import NATIVE_REPORTS, ROOT

SCRIPT = ROOT / "scripts" / "qualify-hip"


@pytest.fixture(scope="module")
def qualify() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("qualify_hip", str(SCRIPT))
    spec = importlib.util.spec_from_loader("qualify_hip", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["qualify_hip"] = module
    loader.exec_module(module)
    return module


@pytest.mark.timeout(1800)
def test_code_objects() -> None:
    """Every kernel compiles, links and is packaged for every target; registers, spills and hashes are the tables'."""
    result = subprocess.run([sys.executable, SCRIPT, "--compile-only"], capture_output=True, text=True)
    if result.returncode == 77:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    NATIVE_REPORTS.append(("HIP kernels, compiled only", result.stdout.strip()))


def test_tables_have_every_kernel_for_every_target(qualify: ModuleType) -> None:
    """Kernels of all targets are the same, hot ones are as they must be, and objects are the kernels' sum."""
    _, rows = qualify.read_table(qualify.MANIFEST)
    _, objects = qualify.read_table(qualify.OBJECTS)
    targets = {target.name for target in qualify.TARGETS}
    kernels = {target: {row["kernel"] for row in rows if row["target"] == target} for target in targets}
    assert {row["target"] for row in rows} == {row["target"] for row in objects} == targets
    assert len(set(map(frozenset, kernels.values()))) == 1
    # 8 stores x 4 numbers of groups a lane: decoding with few and many symbols, three kernels of the encoder;
    # 8 stores of native rows; two versions of legacy tiles into 8 stores; and three that know no store
    assert len(kernels["gfx942"]) == 8 * 4 * (2 + 3) + 8 + 2 * 8 + 3
    assert sum(int(row["kernels"]) for row in objects) == len(rows)
    assert qualify.faults_of_hot(rows) == []


@pytest.mark.parametrize("column", ["vgpr_spills", "sgpr_spills", "scratch_bytes", "flat_accesses"])
def test_a_fault_of_a_hot_kernel_is_seen(qualify: ModuleType, column: str) -> None:
    _, rows = qualify.read_table(qualify.MANIFEST)
    hot = next(row for row in rows if row["kernel"] == "decode<3, 4, 0>")
    changed = [{**row, column: "1"} if row is hot else row for row in rows]
    assert len(qualify.faults_of_hot(changed)) == 1
    assert len(qualify.differences(qualify.KERNEL_COLUMNS, rows, changed)) == 1
    assert len(qualify.differences(qualify.KERNEL_COLUMNS, rows, [row for row in rows if row is not hot])) == 1
