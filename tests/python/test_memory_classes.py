"""Archives of models that are not plain attention, through Python: windows, recurrent states, 2-D positions.

The models are small and random, one of each kind; llama.cpp's own test makes them. What users reported of other tools:
a restore that succeeds, and then every token is evaluated again, or the text is wrong.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import write_tiny_model
from llama_cachegen import Engine
from llama_cachegen.errors import ContextError, MissReason, UnsupportedMemoryError
from llama_cachegen.receipts import Outcome

N_TOKENS = 150
CLASSES = {
    "gemma3": "iswa",
    "mamba": "recurrent",
    "qwen35": "hybrid",
    "falcon-h1": "hybrid",
    "lfm2": "hybrid-iswa",
    "qwen4exp (MoE)": "hybrid-idx",
    "deepseek32 (MoE)": "dsa",
    "dots3note (MoE)": "dsa-iswa",
    "minimax-m3 (MoE)": "msa",
    "qwen2vl": "dense",
    "deepseek2 (MoE)": "dense",
}
STATEFUL = {"recurrent", "hybrid", "hybrid-iswa", "hybrid-idx"}


def _tokens(n: int = N_TOKENS, seed: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(0, 100, n).tolist()


def _engine(path: Path, **arguments: object) -> Engine:
    return Engine(path, n_seq_max=2, n_batch=64, n_ubatch=64, n_threads=1, **{"n_ctx": 256, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("flash_attn", [True, False])
def test_restored_sequence_goes_on(dummy_model, tmp_path: Path, architecture: str, flash_attn: bool) -> None:
    tokens, path = _tokens(), tmp_path / "x.archive"
    with _engine(dummy_model(architecture), flash_attn=flash_attn) as engine:
        caps = engine.capabilities()
        assert caps.memory == CLASSES[architecture]
        assert caps.archives and not caps.archives_reason
        assert engine.has_state == (caps.memory in STATEFUL)
        saved = engine.session()
        saved.prefill(tokens)
        receipt = saved.save(path, "exact")
        assert receipt.component_types == {one.kind.name: one.type_name for one in caps.archives}
    with _engine(dummy_model(architecture), flash_attn=flash_attn) as engine:
        reference = engine.session()
        reference.prefill(tokens)
        restored = engine.session()
        receipt = restored.restore(path, [*tokens, 7])
        assert receipt.outcome is Outcome.RESTORED
        # not our own word for it: what llama.cpp holds, and what it evaluates
        assert restored.pos_max == N_TOKENS - 1
        for step in range(4):
            token = 7 + step
            n_before = restored.n_evaluated
            restored.prefill([token])
            reference.prefill([token])
            assert restored.n_evaluated == n_before + 1
            assert np.array_equal(restored.logits(), reference.logits())


@pytest.mark.parametrize("architecture", [name for name, memory in CLASSES.items() if memory in STATEFUL])
def test_part_of_a_state_is_a_miss(dummy_model, tmp_path: Path, architecture: str) -> None:
    tokens, path = _tokens(), tmp_path / "x.archive"
    with _engine(dummy_model(architecture)) as engine:
        saved = engine.session()
        saved.prefill(tokens)
        saved.save(path, "exact")
        other = engine.session()
        receipt = other.restore(path, [*tokens[:100], *_tokens(20, 6)])
        assert receipt.outcome is Outcome.MISS
        assert receipt.reason is MissReason.WINDOW
        assert "state" in receipt.detail and "149" in receipt.detail
        assert other.n_tokens == 0 and other.pos_max == -1
        assert other.restore(path, tokens).outcome is Outcome.RESTORED
        # no token is left to evaluate, and the state cannot go back by one: said, not garbled
        with pytest.raises(ContextError, match="recurrent state"):
            other.logits()
        with pytest.raises(ContextError, match="recurrent state"):
            other.truncate(100)
        assert other.n_tokens == N_TOKENS
        other.prefill([3])
        saved.prefill([3])
        assert np.array_equal(other.logits(), saved.logits())


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("n_tokens", [1, 2, 127, 128, 129, 255, 256, 257, 700])
def test_windows(dummy_model, tmp_path: Path, n_tokens: int, swa_full: bool) -> None:
    """Lengths around the window and around the cells of the cache."""
    tokens, path = _tokens(n_tokens), tmp_path / "x.archive"
    with _engine(dummy_model("gemma3"), n_ctx=1024, swa_full=swa_full, type_k="f32", type_v="f32") as engine:
        saved = engine.session()
        saved.prefill(tokens)
        saved.save(path, "exact")
        other = engine.session()
        assert other.restore(path, tokens).outcome is Outcome.RESTORED
        logits = []
        for token in (3, 4, 5):
            other.prefill([token])
            saved.prefill([token])
            logits.append(saved.logits())
            # where the window wraps around the cache, the same sums are taken in another order, in F16 on this path
            assert np.abs(other.logits() - logits[-1]).max() < 5e-3
        if n_tokens > 1:
            # another token in the window, by comparison
            other.clear()
            other.prefill([*tokens[:-1], (tokens[-1] + 1) % 100, 3])
            assert np.abs(other.logits() - logits[0]).max() > 0.05


def test_prefix_below_the_window(dummy_model, tmp_path: Path) -> None:
    tokens, path = _tokens(700), tmp_path / "x.archive"
    with _engine(dummy_model("gemma3"), n_ctx=1024) as engine:
        saved = engine.session()
        saved.prefill(tokens)
        saved.save(path, "exact")
        other = engine.session()
        receipt = other.restore(path, tokens[:200])
        assert (receipt.outcome, receipt.reason) == (Outcome.MISS, MissReason.WINDOW)
        assert other.pos_max == -1
        with pytest.raises(ContextError, match="swa_full"):
            saved.truncate(200)
        assert saved.n_tokens == 700
    with _engine(dummy_model("gemma3"), n_ctx=1024, swa_full=True) as engine:
        saved = engine.session()
        saved.prefill(tokens)
        saved.save(path, "exact")
        other = engine.session()
        receipt = other.restore(path, tokens[:192])
        assert receipt.n_tokens == 192
        saved.truncate(192)
        assert np.array_equal(other.logits(), saved.logits())


def test_what_cannot_be_saved(dummy_model, tmp_path: Path) -> None:
    with _engine(dummy_model("deepseek4 (MoE)"), n_ctx=512) as engine:
        caps = engine.capabilities()
        assert caps.memory == "dsv4"
        assert not caps.archives and "DeepSeek V4" in caps.archives_reason
        session = engine.session()
        session.prefill(_tokens(20))
        with pytest.raises(UnsupportedMemoryError, match="DeepSeek V4"):
            session.save(tmp_path / "x", "exact")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("architecture", ["qwen35", "gemma3", "qwen2vl"])
@pytest.mark.parametrize("profile", ["lmcache", "balanced", "fine"])
def test_lossy_profiles_keep_states_exact(dummy_model, tmp_path: Path, architecture: str, profile: str) -> None:
    tokens = _tokens()
    with _engine(dummy_model(architecture)) as engine:
        saved = engine.session()
        saved.prefill(tokens)
        saved.save(tmp_path / "lossy", profile)
        other = engine.session()
        assert other.restore(tmp_path / "lossy", tokens).outcome is Outcome.RESTORED
        other.prefill([3])
        saved.prefill([3])
        assert np.isfinite(other.logits()).all()
        if engine.has_state:
            # what is not attention is the same after the same token only if it came exact
            assert np.corrcoef(other.logits(), saved.logits())[0, 1] > 0.9


@pytest.mark.parametrize("n_layer", [1, 2, 3, 28, 30, 61])
def test_any_number_of_layers(tmp_path: Path, n_layer: int) -> None:
    """Schedules are made for the model's layers: other tools have tables of 32."""
    path = write_tiny_model(tmp_path / "model.gguf", n_layer=n_layer)
    tokens = [token % 64 for token in _tokens()]
    with _engine(path) as engine:
        saved = engine.session()
        saved.prefill(tokens)
        for profile in ("lmcache", "balanced", "fine", "exact"):
            saved.save(tmp_path / profile, profile)
            other = engine.session()
            receipt = other.restore(tmp_path / profile, tokens)
            assert (receipt.outcome, receipt.n_tokens) == (Outcome.RESTORED, N_TOKENS)
            assert np.isfinite(other.logits()).all()
            other.close()
