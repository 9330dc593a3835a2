"""The prompt's tokens: of real text, or random where the model has no words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkloadError
from ..evaluate.texts import Text, get_text
from .step_config import StepConfig

__all__ = ["join_texts", "load_tokens", "make_tokens", "tokens_sha256"]

_SEED = 19_000


def tokens_sha256(tokens: NDArray[np.int32]) -> str:
    """Of tokens as int32, little-endian."""
    return hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()


def join_texts(names: Sequence[str]) -> Text:
    """Several texts as one."""
    texts = [get_text(name) for name in names]
    joined = "\n\n".join(text.text for text in texts)
    return Text.of("+".join(text.name for text in texts), joined, "; ".join(text.description for text in texts))


def make_tokens(config: StepConfig) -> dict[str, Any]:
    """Write prompt.npy and forced.npy, which has one token more, the last one's target; what was made."""
    n_prompt, n_forced = config.n_prompt_tokens, config.steps.forced + 1
    n_all = n_prompt + n_forced
    with config.new_engine(n_ctx=64) as engine:
        if config.is_synthetic:
            tokens = np.random.default_rng(_SEED).integers(0, engine.n_vocab, n_all, dtype=np.int32)
            names, description, text_sha256 = [], f"random tokens, numpy default_rng({_SEED})", ""
        else:
            text = join_texts(config.texts)
            names, description, text_sha256 = config.texts, text.description, text.sha256
            tokens = engine.tokenize(text.text)
    if len(tokens) < n_all:
        raise WorkloadError(f"texts {'+'.join(names)} have {len(tokens):,} tokens, {n_all:,} are wanted")
    prompt, forced = tokens[:n_prompt], tokens[n_prompt:n_all]
    folder = Path(config.tokens_folder)
    np.save(folder / "prompt.npy", prompt)
    np.save(folder / "forced.npy", forced)
    return {
        "names": [Path(name).name for name in names],
        "description": description,
        "sha256": text_sha256,
        "prompt_sha256": tokens_sha256(prompt),
        "forced_sha256": tokens_sha256(forced),
    }


def load_tokens(config: StepConfig) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The prompt, and the tokens after it."""
    folder = Path(config.tokens_folder)
    return np.load(folder / "prompt.npy"), np.load(folder / "forced.npy")
