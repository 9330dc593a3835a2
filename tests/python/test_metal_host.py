"""Metal's host code without a Mac: compiled with metal-cpp's headers, run on a fake device; and the flattened text."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import NATIVE_REPORTS, ROOT

METAL = ROOT / "native" / "kernels" / "metal"
BUILD = ROOT / "build" / "metal-host"
SOURCES = ("decode", "encode", "legacy")


def clang(tmp_path: Path) -> tuple[str, str]:
    """clang for C and C++, with its address sanitizer."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        pytest.skip("the fake Objective-C runtime is written for Linux on x86-64")
    cxx = shutil.which(os.environ.get("METAL_CLANG", "clang++-19"))
    if cxx is None:
        pytest.skip("no clang++-19, and METAL_CLANG names no other; Debian's packages: clang-19 libclang-rt-19-dev")
    source = tmp_path / "empty.cpp"
    source.write_text("int main() {}\n")
    command = [cxx, "-fsanitize=address", "-fblocks", str(source), "-o", str(tmp_path / "empty")]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip(f"{cxx} links no address sanitizer; Debian's package: libclang-rt-19-dev")
    return cxx.replace("clang++", "clang"), cxx


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests, built."""
    c, cxx = clang(tmp_path_factory.mktemp("clang"))
    missing = [name for name in ("cmake", "ninja") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")
    if not (ROOT / "vendor" / "llama.cpp" / "ggml").is_dir():
        pytest.skip("no vendor/llama.cpp; run scripts/vendor && scripts/patches import")
    headers = subprocess.run([sys.executable, ROOT / "scripts" / "metal-cpp"], capture_output=True, text=True)
    if headers.returncode != 0:
        pytest.skip(f"metal-cpp's headers: {headers.stderr.strip()[-500:]}")
    configure = ["cmake", "-G", "Ninja", "-S", ROOT / "tests" / "metal" / "host", "-B", BUILD]
    configure += [f"-DCMAKE_C_COMPILER={c}", f"-DCMAKE_CXX_COMPILER={cxx}", "-DLLAMA_CACHEGEN_SANITIZE=address"]
    for command in (configure, ["ninja", "-C", BUILD, "test-metal-host", "test-metal-procs", "test-kernels-metal"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return BUILD


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["test-metal-host", "test-metal-procs"])
def test_host_code_on_the_fake_device(build: Path, name: str) -> None:
    """Bytes as libcachegen's, order, lifetimes, and every call made to fail."""
    done = subprocess.run([build / name], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    NATIVE_REPORTS.append((f"Metal's host code on a fake device: {name}", done.stdout.strip()))


@pytest.fixture(scope="module")
def flatten() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metal_flatten", METAL / "flatten.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["metal_flatten"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SOURCES)
def test_flattened_text_is_what_the_compiler_would_have_read(flatten: ModuleType, name: str, tmp_path: Path) -> None:
    """Preprocessed, the text and the files are the same words; no file is needed any more."""
    _, cxx = clang(tmp_path)
    text = flatten.flatten(METAL / f"{name}.metal", [])
    assert not re.search(r'^\s*#\s*include\s*"', text, re.MULTILINE)
    flat = tmp_path / "flat.metal"
    flat.write_text(text)
    (tmp_path / "metal_stdlib").write_text("standard_library\n")
    for store in ([], ["-DKC_ONLY_STORE=3"]):
        command = [cxx, "-x", "c++", "-E", "-P", "-nostdinc", "-D__METAL_VERSION__=240", *store, f"-I{tmp_path}"]
        words = [
            subprocess.run([*command, path], capture_output=True, text=True, check=True).stdout.split()
            for path in (flat, METAL / f"{name}.metal")
        ]
        assert words[0] == words[1]
        assert "standard_library" in words[0]


def test_flattened_text_has_every_kernel(flatten: ModuleType) -> None:
    """What launches ask for by name is made in one of the sources."""
    texts = [flatten.flatten(METAL / f"{name}.metal", []) for name in SOURCES]
    for kernel in ("cachegen_expand", "cachegen_place_", "cachegen_lcg", "cachegen_lay_out", "cachegen_gather"):
        assert sum(kernel in text for text in texts) == 1
    assert all("pragma METAL fp math_mode(safe)" in text for text in texts)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.metal": '#include "b.h"\n'}, "no b.h"),
        ({"a.metal": '#if X\n#include "b.h"\n#endif\n', "b.h": "#pragma once\n"}, "under a condition"),
        ({"a.metal": '#include "b.h"\n#include "b.h"\n', "b.h": "int x;\n"}, "included twice"),
        ({"a.metal": "#ifdef __HIP__\nint x;\n"}, "without its #endif"),
        ({"a.metal": "#endif\n"}, "without an #if"),
        ({"a.metal": "#ifdef __HIP__\n#elif X\n#endif\n"}, "after one that is"),
    ],
)
def test_what_flattening_does_not_understand_is_refused(
    flatten: ModuleType, tmp_path: Path, files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(flatten.FlattenError, match=words):
        flatten.flatten(tmp_path / "a.metal", [])


def test_branches_of_other_compilers_are_left_out(flatten: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "hip.h").write_text("#pragma once\nint hip;\n")
    (tmp_path / "metal.h").write_text("#pragma once\nint metal;\n")
    (tmp_path / "a.metal").write_text(
        '#if defined(__HIP__)\n#include "hip.h"\n#elif defined(__METAL_VERSION__)\n#include "metal.h"\n#else\nint no;\n'
        '#endif\n#include "metal.h"\n#if X\nint kept;\n#endif\n#ifndef __CUDACC__\nint last;\n#endif\n'
    )
    lines = [line for line in flatten.flatten(tmp_path / "a.metal", []).splitlines() if not line.startswith("#line")]
    assert lines == ["int metal;", "#if X", "int kept;", "#endif", "int last;"]
