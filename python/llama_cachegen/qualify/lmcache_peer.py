"""LMCache's codec as a peer: sizes by the numpy reference, times by LMCache itself where a Python has it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..codec import Plane
from ..errors import CachegenError
from ..evaluate.rivals import LMCACHE_CALL_TOKENS, lmcache_call_values
from . import lmcache_side

__all__ = ["PYTHON_VARIABLE", "LmcacheTimes", "time_lmcache"]

PYTHON_VARIABLE = "LLAMA_CACHEGEN_LMCACHE_PYTHON"
"""Environment variable: a Python that has LMCache, as the one that scripts/check-lmcache makes."""

_MOST_VALUES = 1 << 27
_TIMEOUT_S = 900
_MOST_DIFFERENCE_BYTES = 512  # of a container: LMCache's pickle frames the same tensors in some 400 bytes fewer


class LmcacheTimes(NamedTuple):
    """Times of all calls, empty if none were taken, and what must be known of them."""

    encode_ms: list[float]
    decode_ms: list[float]
    note: str


def time_lmcache(planes: Sequence[Plane], n_layers: int, n_reference_bytes: int) -> LmcacheTimes:
    """LMCache's serializer and deserializer over the planes, in its calls of 256 tokens, one after another.

    Args:
        planes: K and V of every layer, all tokens.
        n_layers: of the model.
        n_reference_bytes: what the numpy reference made of them; LMCache's own containers must agree.
    """
    python = os.environ.get(PYTHON_VARIABLE, "")
    if not python:
        return LmcacheTimes([], [], f"not timed: {PYTHON_VARIABLE} names no Python that has LMCache")
    calls = list(lmcache_call_values(planes, n_layers))
    n_values = sum(values.size for values in calls)
    if n_values > _MOST_VALUES:
        return LmcacheTimes([], [], f"not timed: {n_values:,} values take LMCache's path for processors minutes")
    try:
        version, n_bytes, encode_ms, decode_ms = _run(python, calls)
    except (OSError, subprocess.TimeoutExpired, CachegenError) as error:
        return LmcacheTimes([], [], f"not timed: {error}")
    if abs(n_bytes - n_reference_bytes) > _MOST_DIFFERENCE_BYTES * len(calls):
        words = f"its containers have {n_bytes:,} bytes, the reference's {n_reference_bytes:,}"
        return LmcacheTimes([], [], f"times of LMCache {version} left out: {words}")
    words = f"times by LMCache {version} itself on the processor (torch, numba), calls of {LMCACHE_CALL_TOKENS} tokens,"
    return LmcacheTimes([encode_ms], [decode_ms], f"{words} once, after a discarded call")


def _run(python: str, calls: Sequence[np.ndarray]) -> tuple[str, int, float, float]:
    with tempfile.TemporaryDirectory() as name:
        for i, values in enumerate(calls):
            np.save(Path(name) / f"call-{i:05}.npy", values)
        command = [python, str(Path(lmcache_side.__file__).resolve()), name]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    try:
        result = json.loads(process.stdout.splitlines()[-1])
        return result["version"], int(result["n_bytes"]), float(result["encode_ms"]), float(result["decode_ms"])
    except (LookupError, ValueError, TypeError):
        lines = process.stderr.splitlines() or ["no word"]
        raise CachegenError(f"LMCache ended with status {process.returncode}: {lines[-1]}") from None
