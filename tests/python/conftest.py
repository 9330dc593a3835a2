"""Shared fixtures: a tiny model, what was compared, and a summary of that and of what the native tests printed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from parity import Parity
from qualify_cases import qualify, write_workload

ROOT = Path(__file__).resolve().parents[2]

# (title, text) printed after the run, so that the counts and the matrix are in every log
NATIVE_REPORTS: list[tuple[str, str]] = []
PARITY = pytest.StashKey[Parity]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PARITY] = Parity()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = list(NATIVE_REPORTS)
    if table := config.stash[PARITY].table():
        reports.append(("bit-equal comparisons in this run: format x implementation x type x layout", table))
    for title, text in reports:
        terminalreporter.section(title)
        terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def parity(pytestconfig: pytest.Config) -> Parity:
    """Where tests that compare implementations do so, to be counted in the table after the run."""
    return pytestconfig.stash[PARITY]


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


def native_build() -> Path:
    """The newest build with native tests."""
    builds = [path.parent for path in (ROOT / "build").glob("cp*/CTestTestfile.cmake")]
    assert builds, "no build with native tests; run scripts/setup --tests"
    return max(builds, key=lambda path: path.stat().st_mtime)


def write_tiny_model(path: Path, *, seed: int = 1, head_size: int = 64, n_ctx: int = 2048, n_layer: int = 2) -> Path:
    """A llama model of two layers with random weights and 64 tokens, without a tokenizer."""
    gguf = pytest.importorskip("gguf", reason="the gguf package writes the tiny models")
    n_vocab, n_head, n_ff = 64, 2, 96
    n_embd = n_head * head_size
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0.0, 1.0 / np.sqrt(shape[-1]), shape).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head_size)
    writer.add_vocab_size(n_vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.add_tensor("token_embd.weight", weights(n_vocab, n_embd) * 4)
    writer.add_tensor("output_norm.weight", np.ones(n_embd, dtype=np.float32))
    writer.add_tensor("output.weight", weights(n_vocab, n_embd))
    for i in range(n_layer):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n_embd, dtype=np.float32))
        writer.add_tensor(f"blk.{i}.attn_q.weight", weights(n_embd, n_embd))
        writer.add_tensor(f"blk.{i}.attn_k.weight", weights(head_size, n_embd))
        writer.add_tensor(f"blk.{i}.attn_v.weight", weights(head_size, n_embd))
        writer.add_tensor(f"blk.{i}.attn_output.weight", weights(n_embd, n_embd))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(n_embd, dtype=np.float32))
        writer.add_tensor(f"blk.{i}.ffn_gate.weight", weights(n_ff, n_embd))
        writer.add_tensor(f"blk.{i}.ffn_up.weight", weights(n_ff, n_embd))
        writer.add_tensor(f"blk.{i}.ffn_down.weight", weights(n_embd, n_ff))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a tiny random model with heads of 64 values."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with other weights."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "other.gguf", seed=2)


@pytest.fixture(scope="session")
def dummy_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """make(architecture) -> path of a GGUF file: small and random; llama.cpp's own test makes it."""
    folder = tmp_path_factory.mktemp("architectures")
    program = native_build() / "tests" / "native" / "test-memory-classes"

    def make(architecture: str) -> Path:
        path = folder / f"{architecture}.gguf"
        if not path.exists():
            subprocess.run([program, "--save", architecture, path], check=True)
        return path

    return make


@pytest.fixture(scope="session")
def certificate_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that `llama-cachegen qualify` made on a tiny model of random weights."""
    folder = tmp_path_factory.mktemp("qualify")
    result = qualify(folder, "--workload", str(write_workload(folder)), "--out", "certificates")
    assert result.returncode == 0, result.stderr
    (path,) = (folder / "certificates").glob("*.json")
    return path
