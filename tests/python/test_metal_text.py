"""The text of Metal's kernels on a machine without Metal: types, address spaces and the layout of records.

That it runs, and gives libcachegen's bytes, is test-metal-text's: see test_native.py.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import NATIVE_REPORTS, ROOT

SCRIPT = ROOT / "scripts" / "qualify-metal"


@pytest.fixture(scope="module")
def qualify() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("qualify_metal", str(SCRIPT))
    spec = importlib.util.spec_from_loader("qualify_metal", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["qualify_metal"] = module
    loader.exec_module(module)
    try:
        module.Checker()
    except SystemExit as why:
        assert why.code == module.SKIPPED
        pytest.skip(f"no clang++-19; Debian's package: {module.PACKAGES}")
    return module


@pytest.fixture
def changed(qualify: ModuleType, tmp_path: Path) -> Any:
    """A function that changes a line of a copy of the kernels, and returns a checker of the copy."""

    def change(file: str, old: str, new: str) -> Any:
        kernels = tmp_path / "kernels"
        shutil.copytree(ROOT / "native" / "kernels", kernels)
        path = kernels / file
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{file} has changed; mend this test"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        return qualify.Checker(kernels)

    return change


def test_text() -> None:
    result = subprocess.run([sys.executable, SCRIPT, "--check-only"], capture_output=True, text=True)
    if result.returncode == 77:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    NATIVE_REPORTS.append(("Metal kernels, text only", result.stdout.strip()))


@pytest.mark.skipif(platform.system() == "Darwin", reason="a Mac may have a device")
def test_no_certificate_without_a_mac(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.json"
    result = subprocess.run([sys.executable, SCRIPT, "--certificate", certificate], capture_output=True, text=True)
    assert result.returncode == 77
    assert "a Mac with a Metal device is needed" in result.stderr
    assert not certificate.exists()


MOVED = (
    ("metal/metal_arguments.h", "    uint64_t  values; ", "    uint64_t  models; ", "metal_decode_arguments"),
    (
        "metal/metal_arguments.h",
        "    uint32_t         wave_begin;\n    uint32_t         page_end;\n",
        "",
        "metal_encode",
    ),
    (
        "jobs.h",
        "    uint32_t n_rows;\n    uint32_t n_channels;\n",
        "    uint32_t n_channels;\n    uint32_t n_rows;\n",
        "unit_job",
    ),
    ("jobs.h", "    uint32_t n_entries; ", "    uint64_t n_entries; ", "set_shape"),
    ("legacy_jobs.h", "    uint32_t n_bins; ", "    uint16_t n_bins; ", "legacy_unit"),
    ("encode_jobs.h", "    uint32_t outcome; ", "    uint64_t outcome; ", "unit_made"),
)


@pytest.mark.parametrize(("file", "old", "new", "record"), MOVED)
def test_a_moved_field_ends_both_builds(changed: Any, file: str, old: str, new: str, record: str) -> None:
    """The host's compiler and the device's see it, each on its own."""
    if new and "models" in new:
        # two fields that change places
        path = ROOT / "native" / "kernels" / file
        first, second = (next(line for line in path.read_text().splitlines() if line.startswith(s)) for s in (old, new))
        old, new = f"{first}\n{second}\n", f"{second}\n{first}\n"
    checker = changed(file, old, new)
    for check in (checker.check_host, lambda: checker.check_types(checker.path("encode"))):
        with pytest.raises(SystemExit) as why:
            check()
        message = str(why.value)
        assert "on the other side" in message or "no member named" in message, message
        assert record in message, message


MISTAKES = {
    "another memory": (
        "metal/decode.metal",
        "(device uint32_t *) arguments.errors",
        "(threadgroup uint32_t *) arguments.errors",
    ),
    "constant is not device": (
        "metal/decode.metal",
        "in.values      = (const device uint32_t *) arguments.values;",
        "in.values = &arguments.n_groups;",
    ),
    "constant is not written": (
        "metal/decode.metal",
        "launch_buffers in;",
        "launch_buffers in; arguments.n_groups = 1;",
    ),
    "a lane's memory for the workgroup's": (
        "block_store.h",
        "const KC_PRIVATE kc_thread & me, KC_SHARED float * tile, uint32_t first",
        "const KC_PRIVATE kc_thread & me, KC_PRIVATE float * tile, uint32_t first",
    ),
    "half is a type": ("rans_body.h", "const uint32_t    chosen ", "const uint32_t    half "),
    "no double": ("store_body.h", "5.9604644775390625e-8f", "5.9604644775390625e-8"),
    "a barrier that orders nothing": (
        "metal/port_metal.h",
        "simdgroup_barrier(mem_flags::mem_threadgroup)",
        "simdgroup_barrier(mem_flags::mem_none)",
    ),
    "lanes are 16-bit numbers": (
        "metal/port_metal.h",
        "simd_shuffle(value, (ushort) (lane & 31))",
        "simd_shuffle(value, lane)",
    ),
    "no exceptions": ("metal/legacy.metal", "legacy_buffers in;", "legacy_buffers in; throw 1;"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused(changed: Any, name: str) -> None:
    checker = changed(*MISTAKES[name])
    with pytest.raises(SystemExit, match="the check of its types failed"):
        for source in ("decode", "encode", "legacy"):
            checker.check_types(checker.path(source))


@pytest.mark.parametrize(
    ("file", "qualified", "source", "name"),
    [
        ("rans_body.h", "fill_ring(const KC_PRIVATE kc_thread & me", "decode", "me"),
        ("legacy_body.h", "next_stream_word(KC_PRIVATE channel_stream & stream", "legacy", "stream"),
        ("quantize_body.h", "make_scale(", "encode", ""),
    ],
)
def test_a_reference_to_no_memory_is_found(changed: Any, file: str, qualified: str, source: str, name: str) -> None:
    """C++ for OpenCL takes it for one to any memory; Metal has no such thing."""
    checker = changed(file, qualified, qualified.replace("KC_PRIVATE ", ""))
    path = checker.path(source)
    checker.check_types(path)
    found = checker.unqualified(path)
    assert [words.split(":")[0] for words in found] == ([name] if name else []), found


def test_a_kernel_of_one_store_is_missed(changed: Any) -> None:
    checker = changed(
        "metal/kernel_lists.h", "#define KC_STORE_4(F) F(q4_0, kernels::store_q4_0)", "#define KC_STORE_4(F)"
    )
    names = {kernel.name for kernel in checker.find_kernels(checker.path("legacy"))}
    assert len(names) == 14
    assert not any("q4_0" in name for name in names)
