"""The ways to come to a first token: what saves and restores each of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import llama_state
from .._timing import ms_since
from ..engine import Engine
from ..errors import CachegenError
from ..evaluate.machine import sync_file
from ..session import Session
from .native_archive import save_native_archive

__all__ = ["LLAMA", "NATIVE", "NATIVE_ARCHIVE", "RECOMPUTE", "file_name", "first_token", "restore", "save"]

RECOMPUTE = "recompute"
LLAMA = "llama-state"
NATIVE = "native"
NATIVE_ARCHIVE = "native-archive"
"""The native bytes as planes of an archive: the control where native pages are refused."""

Phases = dict[str, float]


def file_name(case: str) -> str:
    """Of a case's file in a row's folder."""
    return f"{case}.saved"


def save(session: Session, case: str, path: Path) -> Phases:
    """Save a session; export_ms (encoding, writes included), write_ms, fsync_ms and total_ms, fsync included.

    A native archive is made by way of an exact one: its total_ms is no save's.
    """
    if case == LLAMA:
        t_start = time.perf_counter()
        llama_state.save_file(session, path)
        write_ms = ms_since(t_start)
        t_sync = time.perf_counter()
        sync_file(path)
        return {"write_ms": write_ms, "fsync_ms": ms_since(t_sync), "total_ms": ms_since(t_start)}
    if case == NATIVE_ARCHIVE:
        t_start = time.perf_counter()
        save_native_archive(session, path)
        return {"total_ms": ms_since(t_start)}
    receipt = session.save(path, None if case == NATIVE else case)
    return {
        "export_ms": receipt.export_ms,
        "write_ms": receipt.write_ms,
        "fsync_ms": receipt.fsync_ms,
        "total_ms": receipt.total_ms,
    }


def restore(session: Session, case: str, path: Path, prompt: NDArray[np.int32]) -> Phases:
    """Restore into an empty session; phases of the receipt and restore_ms.

    Raises:
        CachegenError: it was not restored, or not all of it.
    """
    t_start = time.perf_counter()
    if case == LLAMA:
        llama_state.load_file(session, path)
        phases: Phases = {"restore_ms": ms_since(t_start)}
    else:
        receipt = session.restore(path, prompt)
        phases = {
            "restore_ms": ms_since(t_start),
            "open_ms": receipt.open_ms,
            "reserve_ms": receipt.reserve_ms,
            "decode_ms": receipt.copy_ms,
            "commit_ms": receipt.commit_ms,
        }
        if not receipt.restored:
            raise CachegenError(f"{path.name} was not restored: {receipt.detail}")
    if session.n_tokens != len(prompt) - 1 or session.pos_max != len(prompt) - 2:
        raise CachegenError(f"{path.name} restored {session.n_tokens} tokens, {len(prompt) - 1} were saved")
    return phases


def first_token(session: Session, prompt: NDArray[np.int32]) -> tuple[int, float]:
    """Evaluate the prompt's last token and choose the next one; the token, and ms."""
    t_start = time.perf_counter()
    session.prefill(prompt[-1:])
    token, _ = session.first_token()
    return token, ms_since(t_start)


def steps(session: Session, token: int, n_steps: int) -> list[float]:
    """ms of each of n_steps greedy steps that begin with `token`."""
    out = []
    for _ in range(n_steps):
        t_start = time.perf_counter()
        session.prefill([token])
        token, _ = session.first_token()
        out.append(ms_since(t_start))
    return out


def order_of(cases: Sequence[str], n_process: int, n_round: int) -> list[str]:
    """An order that changes with every round and is turned round in every other process."""
    at = (n_process + n_round) % len(cases)
    order = [*cases[at:], *cases[:at]]
    return order[::-1] if n_process % 2 else order


def new_engine(
    model: Path,
    type_k: str,
    type_v: str,
    n_ctx: int,
    n_batch: int,
    n_threads: int,
    n_gpu_layers: int,
    swa_full: bool,
) -> Engine:
    """The engine all steps of a row use. Its identity is read, as that digests the model once."""
    engine = Engine(
        model,
        n_ctx=n_ctx,
        type_k=type_k,
        type_v=type_v,
        flash_attn=True,
        swa_full=swa_full,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_threads=n_threads or None,
        n_gpu_layers=n_gpu_layers,
    )
    _ = engine.identity
    return engine
