"""llama.cpp's own sequence state, through llama-cpp-python: what a page is measured against."""

from __future__ import annotations

import ctypes
import os

import numpy as np
from numpy.typing import NDArray

from ._binding import llama
from .errors import CachegenError
from .session import Session


def save_file(session: Session, path: str | os.PathLike[str]) -> int:
    """`llama_state_seq_save_file`; the bytes written."""
    tokens = (ctypes.c_int32 * session.n_tokens)(*session._tokens)
    n_bytes = int(
        llama.llama_state_seq_save_file(
            session.engine._ctx, os.fsencode(path), session.seq_id, tokens, session.n_tokens
        )
    )
    if n_bytes == 0:
        raise CachegenError(f"llama_state_seq_save_file could not write {path}")
    return n_bytes


def load_file(session: Session, path: str | os.PathLike[str]) -> int:
    """`llama_state_seq_load_file` into an empty session; the bytes read."""
    capacity = session.engine.n_ctx_seq
    tokens = (ctypes.c_int32 * capacity)()
    n_tokens = ctypes.c_size_t(0)
    n_bytes = int(
        llama.llama_state_seq_load_file(
            session.engine._ctx, os.fsencode(path), session.seq_id, tokens, capacity, ctypes.byref(n_tokens)
        )
    )
    if n_bytes == 0:
        raise CachegenError(f"llama_state_seq_load_file could not read {path}")
    session._tokens = list(tokens[: n_tokens.value])
    session._logits = None
    return n_bytes


def get_data(session: Session, buffer: NDArray[np.uint8]) -> int:
    """`llama_state_seq_get_data` into a buffer of at least `size(session)` bytes."""
    pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return int(llama.llama_state_seq_get_data(session.engine._ctx, pointer, buffer.nbytes, session.seq_id))


def set_data(session: Session, buffer: NDArray[np.uint8], n_bytes: int) -> int:
    """`llama_state_seq_set_data` from a buffer."""
    pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return int(llama.llama_state_seq_set_data(session.engine._ctx, pointer, n_bytes, session.seq_id))


def size(session: Session) -> int:
    """`llama_state_seq_get_size`."""
    return int(llama.llama_state_seq_get_size(session.engine._ctx, session.seq_id))
