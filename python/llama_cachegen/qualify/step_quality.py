"""What the model answers on every restored cache, beside what it answered on the evaluated one."""

from __future__ import annotations

import dataclasses
import filecmp
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluate.quality import compare_logits, evaluate_all_logits
from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE, first_token, restore, save
from .step_config import StepConfig
from .step_tokens import load_tokens, tokens_sha256

__all__ = ["compare_answers", "measure_quality"]


def measure_quality(config: StepConfig, greedy: list[int]) -> dict[str, Any]:
    """Teacher-forced and free-running answers of every case; `greedy` are those of the evaluated cache."""
    prompt, forced = load_tokens(config)
    evaluated = np.load(Path(config.folder) / "logits.npy")
    out: dict[str, Any] = {}
    with config.new_engine() as engine:
        for case in config.cases:
            is_same: bool | None = None
            with engine.session() as session:
                restore(session, case, config.path(case), prompt)
                if case == "exact":
                    again = Path(config.folder) / "exact.again"
                    save(session, case, again)
                    is_same = filecmp.cmp(config.path(case), again, shallow=False)
                    again.unlink()
                first_token(session, prompt)
                logits = evaluate_all_logits(session, forced[:-1])
            with engine.session() as session:
                restore(session, case, config.path(case), prompt)
                first_token(session, prompt)
                own = list(session.generate(config.steps.free, stop=False))
            out[case] = {
                **compare_answers(evaluated, logits, forced[1:], config.steps.forced_first),
                **_compare_free(greedy, own),
                "is_same_again": is_same if case not in (LLAMA, NATIVE, NATIVE_ARCHIVE) else None,
            }
    return out


def compare_answers(
    evaluated: NDArray[np.float32], restored: NDArray[np.float32], targets: NDArray[np.int32], n_first: int
) -> dict[str, Any]:
    """The teacher-forced fields of `Quality`."""
    same = evaluated.argmax(axis=1) == restored.argmax(axis=1)
    differs = np.flatnonzero(~same)
    divergence = dataclasses.asdict(compare_logits(evaluated, restored, targets))
    return {
        "n_forced": len(targets),
        "n_first": n_first,
        "agreement": float(same.mean()),
        "agreement_first": float(same[:n_first].mean()),
        "first_mismatch": int(differs[0]) if differs.size else None,
        "kl_mean_nats": divergence["kl_mean_nats"],
        "kl_p99_nats": divergence["kl_p99_nats"],
        "kl_max_nats": divergence["kl_max_nats"],
        "perplexity_evaluated": divergence["perplexity_original"],
        "perplexity_restored": divergence["perplexity_restored"],
    }


def _compare_free(greedy: list[int], own: list[int]) -> dict[str, Any]:
    same = np.array(greedy) == np.array(own)
    differs = np.flatnonzero(~same)
    return {
        "n_free": len(greedy),
        "free_agreement": float(same.mean()),
        "free_first_difference": int(differs[0]) if differs.size else None,
        "free_text_sha256": tokens_sha256(np.array(own, dtype=np.int32)),
    }
