"""The seam: the library that is loaded is the one the package was built with, and every status has its exception."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llama_cachegen import ABI_VERSION, LLAMA_COMMIT, PATCH_DIGEST, Engine, _binding, errors
from llama_cachegen._binding import ffi, lib


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


def test_stamp_is_that_of_the_stack(root: Path) -> None:
    digest = subprocess.run(
        [sys.executable, str(root / "scripts" / "patches"), "digest"], capture_output=True, text=True, check=True
    )
    assert digest.stdout.strip() == PATCH_DIGEST
    assert json.loads((root / "vendor" / "llama.lock").read_text())["llama_cpp"]["commit"] == LLAMA_COMMIT
    assert ABI_VERSION == 1
    info = _binding.llama.llama_print_system_info().decode()
    assert f"abi 1, patches {PATCH_DIGEST[:12]}, llama.cpp {LLAMA_COMMIT[:12]}" in info


def test_unpatched_library_loaded_first() -> None:
    # any library without our functions stands for an unpatched libllama
    library = next(_binding.LIB_DIR.glob("libggml-base.*"))
    result = run_python(
        f"""
import ctypes, sys, types
package, bindings = types.ModuleType("llama_cpp"), types.ModuleType("llama_cpp.llama_cpp")
package.__path__, package.llama_cpp = [], bindings
bindings._lib = ctypes.CDLL({str(library)!r})
sys.modules["llama_cpp"], sys.modules["llama_cpp.llama_cpp"] = package, bindings
import llama_cachegen
"""
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "LibraryMismatchError" in last and "is an unpatched libllama" in last
    assert str(library) in last and "import llama_cachegen before llama_cpp" in last


def test_library_path_without_a_library(tmp_path: Path) -> None:
    result = run_python("import llama_cachegen", LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "LibraryMismatchError" in last and str(tmp_path) in last and "LLAMA_CPP_LIB_PATH" in last


def test_our_library_loaded_first_is_fine() -> None:
    result = run_python(
        "import llama_cpp, llama_cachegen; print(llama_cachegen.ABI_VERSION)", LLAMA_CPP_LIB_PATH=str(_binding.LIB_DIR)
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1"


class FakeFunction:
    """A function of a CDLL: a value, and a restype that can be set."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.restype: Any = None

    def __call__(self) -> Any:
        return self.value


def test_library_of_another_stack() -> None:
    for digest, commit, abi, words in (
        ("a" * 64, "b" * 40, 2, "ABI version is 2, expected 1"),
        ("a" * 64, "c" * 40, 1, f"llama.cpp commit is {'c' * 40}, expected {'b' * 40}"),
        ("d" * 64, "b" * 40, 1, f"patch stack digest is {'d' * 64}, expected {'a' * 64}"),
    ):
        library: Any = SimpleNamespace(
            _name="/somewhere/libllama.so",
            llama_kv_page_patch_digest=FakeFunction(digest.encode()),
            llama_kv_page_llama_commit=FakeFunction(commit.encode()),
            llama_kv_page_abi_version=FakeFunction(abi),
        )
        with pytest.raises(errors.LibraryMismatchError, match=re.escape(words)):
            _binding.check_stamp(library, "a" * 64, "b" * 40, 1)


def test_every_status_has_an_exception(root: Path) -> None:
    header = (root / "native" / "llama" / "llama-kv-page.h").read_text()
    names = re.findall(r"LLAMA_KV_PAGE_((?:ERR|REFUSED)_\w+)\s*=\s*(\d+)", header)
    assert len(names) >= 35 and len({number for _, number in names}) == len(names)
    for name, number in names:
        assert ffi.string(lib.llama_kv_page_status_name(int(number))).decode() == name
        error = _binding.error_for(int(number), "what happened")
        assert isinstance(error, errors.CachegenError) and "what happened" in str(error)
        if name.startswith("REFUSED_"):
            assert isinstance(error, errors.UnsupportedMemoryError) and error.status_name == name
    assert ffi.string(lib.llama_kv_page_status_name(12345)) == b"UNKNOWN_STATUS"
    mismatches = {n for n, number in names if isinstance(_binding.error_for(int(number), ""), errors.PageMismatchError)}
    assert mismatches == {"ERR_COMPONENTS", "ERR_TYPE", "ERR_ROTATION", "ERR_LAYOUT", "ERR_WIDTH", "ERR_WINDOW"}


def test_struct_size_of_another_abi(tiny_model: Path) -> None:
    with Engine(tiny_model, n_ctx=256) as engine:
        caps = ffi.new("struct llama_kv_page_caps *")
        caps.struct_size = 4
        with pytest.raises(errors.NativeError, match="ERR_STRUCT_SIZE"):
            _binding.check(lib.llama_kv_page_get_caps(engine._native_ctx, caps))


def test_log_goes_to_logging(tiny_model: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    with caplog.at_level(logging.DEBUG, logger="llama_cachegen.llama_cpp"), Engine(tiny_model, n_ctx=256):
        pass
    assert any("KV buffer size" in record.getMessage() for record in caplog.records)
    out, err = capfd.readouterr()
    assert out == "" and err == ""
