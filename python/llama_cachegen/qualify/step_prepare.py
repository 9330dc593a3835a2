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
from .cases import LLAMA, NATIVE, NATIVE_ARCHIVE, first_token, save
from .native_archive import native_size
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
            if case == NATIVE_ARCHIVE and not files[NATIVE]["refusal"]:
                continue  # the page itself is the control
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
        control = _control(files)
        n_native_bytes, n_values = _size(config, files, control)
        return {
            "status": "measured",
            "reason": "",
            "component_types": types,
            "component_backends": sorted({one.backend for one in components}),
            "memory": abilities.memory,
            "control": control,
            "native_bytes": n_native_bytes,
            "n_values": n_values,
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
    if case in (LLAMA, NATIVE, NATIVE_ARCHIVE):
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


def _control(files: dict[str, dict[str, Any]]) -> str:
    """The native bytes in the way that comes nearest to an archive's."""
    for case in (NATIVE, NATIVE_ARCHIVE):
        if case in files and not files[case]["refusal"]:
            return case
    return LLAMA


def _size(config: StepConfig, files: dict[str, dict[str, Any]], control: str) -> tuple[int, int]:
    """Native bytes, and K and V values; of llama.cpp's state file its own bytes, and 0: its positions are not known."""
    if control == LLAMA:
        return int(files[LLAMA]["file_bytes"]), 0
    if control == NATIVE_ARCHIVE:
        return native_size(config.path(NATIVE_ARCHIVE))
    n_values = next((int(facts["n_values"]) for facts in files.values() if "n_values" in facts), 0)
    return int(describe(config.path(NATIVE))["payload_bytes"]), n_values
