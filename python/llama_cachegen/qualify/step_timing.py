"""One repeat of a row, in a fresh process: every case in turns, each on a fresh session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._timing import ms_since
from ..engine import Engine
from ..evaluate.machine import OthersWatch, drop_from_page_cache
from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE, RECOMPUTE, first_token, order_of, restore, save, steps
from .step_config import StepConfig
from .step_tokens import load_tokens

__all__ = ["measure_times"]

_N_EMPTY = 200

Samples = dict[str, dict[str, list[float]]]


def _note(samples: Samples, case: str, group: str, phases: dict[str, float]) -> None:
    for phase, value in phases.items():
        samples.setdefault(case, {}).setdefault(f"{group}.{phase}", []).append(round(value, 4))


def _restore_once(
    engine: Engine, config: StepConfig, case: str, prompt: NDArray[np.int32], n_steps: int
) -> tuple[dict[str, float], list[float]]:
    with engine.session() as session:
        phases = restore(session, case, config.path(case), prompt)
        token, first_ms = first_token(session, prompt)
        phases["first_token_ms"] = first_ms
        phases["ttft_ms"] = phases["restore_ms"] + first_ms
        return phases, steps(session, token, n_steps)


def _warm_rounds(engine: Engine, config: StepConfig, prompt: NDArray[np.int32], samples: Samples) -> None:
    for n_round in range(config.repeats.warm_rounds + 1):
        for case in order_of(config.cases, config.n_process, n_round):
            phases, step_ms = _restore_once(engine, config, case, prompt, config.repeats.decode_steps)
            if n_round == 0:  # the round that warms up
                continue
            _note(samples, case, "warm", phases)
            for value in step_ms:
                _note(samples, case, "decode", {"step_ms": value})


def _cold_rounds(engine: Engine, config: StepConfig, prompt: NDArray[np.int32], samples: Samples) -> float | None:
    """Restores of files out of the page cache, and what reading alone takes; the largest share that stayed in it."""
    resident: list[float] = []
    for n_round in range(config.repeats.cold_rounds):
        for case in order_of(config.cases, config.n_process, n_round):
            try:
                resident.append(drop_from_page_cache(config.path(case)))
            except (OSError, AttributeError):  # no such call here, or it failed: nothing was dropped
                return None
            phases, _ = _restore_once(engine, config, case, prompt, 0)
            resident.append(drop_from_page_cache(config.path(case)))
            phases["read_ms"] = _read(config.path(case))
            _note(samples, case, "cold", phases)
    return max(resident)


def _read(path: Path) -> float:
    buffer = bytearray(1 << 20)
    t_start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return ms_since(t_start)


def _save_rounds(engine: Engine, config: StepConfig, prompt: NDArray[np.int32], samples: Samples) -> None:
    path = Path(config.folder) / f"again-{config.n_process}"
    with engine.session() as session:
        restore(session, config.control, config.path(config.control), prompt)
        cases = [case for case in config.cases if case != NATIVE_ARCHIVE]  # not made by a save
        for n_round in range(config.repeats.save_rounds + 1):
            for case in order_of(cases, config.n_process, n_round):
                phases = save(session, case, path)
                path.unlink()
                if n_round > 0:
                    _note(samples, case, "save", phases)


def _recompute(engine: Engine, prompt: NDArray[np.int32], samples: Samples) -> None:
    with engine.session() as session:
        t_start = time.perf_counter()
        session.prefill(prompt[:-1])
        prefill_ms = ms_since(t_start)
        _, first_ms = first_token(session, prompt)
    phases = {"prefill_ms": prefill_ms, "first_token_ms": first_ms, "ttft_ms": prefill_ms + first_ms}
    _note(samples, RECOMPUTE, "warm", phases)


def _empty_phases() -> list[float]:
    out = []
    for _ in range(_N_EMPTY):
        samples: Samples = {}
        t_start = time.perf_counter()
        phases = {"restore_ms": ms_since(t_start), "first_token_ms": ms_since(t_start)}
        _note(samples, "empty", "warm", phases)
        out.append(round(ms_since(t_start), 6))
    return out


def measure_times(config: StepConfig) -> dict[str, Any]:
    """All groups of rounds; the evaluation of the prompt comes first in every other process, else last."""
    prompt, _ = load_tokens(config)
    samples: Samples = {}
    with config.new_engine() as engine:
        with engine.session() as session:  # graphs and threads, warmed by one batch
            session.prefill(prompt[: min(config.n_batch, len(prompt))])
            session.first_token()
        watch = OthersWatch()
        if config.n_process % 2 == 0:
            _recompute(engine, prompt, samples)
        _warm_rounds(engine, config, prompt, samples)
        resident = _cold_rounds(engine, config, prompt, samples)
        _save_rounds(engine, config, prompt, samples)
        if config.n_process % 2:
            _recompute(engine, prompt, samples)
        others = watch.cores()
    assert LLAMA in config.cases or NATIVE in config.cases
    return {
        "samples": samples,
        "cold_resident_percent": resident,
        "others_cores": others,
        "empty_ms": _empty_phases(),
    }
