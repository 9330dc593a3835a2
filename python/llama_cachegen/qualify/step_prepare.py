"""A row's first step: evaluate the prompt, save it in every way, and keep what the evaluated cache answers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ContextError, UnsupportedMemoryError
from ..evaluate.quality import evaluate_all_logits
from ..file_reports import describe
from ..session import Session, component_types
from .cases import LLAMA, NATIVE, first_token, save
from .step_config import StepConfig
from .step_tokens import load_tokens

__all__ = ["prepare"]


def prepare(config: StepConfig) -> dict[str, Any]:
    """See the module. A row whose context cannot be made is unsupported, and says why."""
    prompt, forced = load_tokens(config)
    try:
        engine = config.new_engine()
    except ContextError as error:
        return {"status": "unsupported", "reason": str(error)}
    with engine:
        abilities = engine.capabilities()
        session = engine.session()
        session.prefill(prompt[:-1])
        files: dict[str, dict[str, Any]] = {}
        for case in config.cases:
            try:
                save(session, case, config.path(case))
                files[case] = _facts(case, config.path(case))
            except UnsupportedMemoryError as error:
                files[case] = {"refusal": str(error)}
        first, _ = first_token(session, prompt)
        greedy = list(session.generate(config.steps.free, stop=False))
        session = _after_prompt(session, prompt)
        logits = evaluate_all_logits(session, forced[:-1])
        np.save(Path(config.folder) / "logits.npy", logits)
        components = abilities.archives
        types = component_types(components)
        if not components:
            page = session.export_page(0, 1)
            types = component_types(page.components)
        return {
            "status": "measured",
            "reason": "",
            "component_types": types,
            "component_backends": sorted({one.backend for one in components}),
            "memory": abilities.memory,
            "control": LLAMA if files[NATIVE]["refusal"] else NATIVE,
            "native_bytes": _native_bytes(config, files),
            "n_values": _n_values(files),
            "files": files,
            "first": first,
            "greedy": greedy,
        }


def _after_prompt(session: Session, prompt: np.ndarray[Any, Any]) -> Session:
    """The session as it was after the prompt; evaluated again where the memory cannot be cut back."""
    with contextlib.suppress(ContextError):
        session.truncate(len(prompt))
        return session
    engine = session.engine
    session.close()
    session = engine.session()
    session.prefill(prompt[:-1])
    session.prefill(prompt[-1:])
    return session


def _facts(case: str, path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"refusal": "", "file_bytes": path.stat().st_size}
    if case in (LLAMA, NATIVE):
        return {**facts, "is_exact": True, "layers": []}
    described = describe(path)
    layers = [
        {"layer": row["layer"], **{kind.lower(): row[kind] for kind in ("K", "V", "AUX")}}
        for row in described["layers"]
    ]
    return {
        **facts,
        "is_exact": described["is_exact"],
        "layers": layers,
        "n_values": described["n_values"],
    }


def _n_values(files: dict[str, dict[str, Any]]) -> int:
    """K and V values of the page; 0, not known, where native pages are refused: a window keeps some positions only."""
    if files[NATIVE]["refusal"]:
        return 0
    return next((int(facts["n_values"]) for facts in files.values() if "n_values" in facts), 0)


def _native_bytes(config: StepConfig, files: dict[str, dict[str, Any]]) -> int:
    """Of the native page; where that is refused, of llama.cpp's state file, which has the same positions."""
    if files[NATIVE]["refusal"]:
        return int(files[LLAMA]["file_bytes"])
    return int(describe(config.path(NATIVE))["payload_bytes"])
