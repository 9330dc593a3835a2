"""Elapsed time."""

from __future__ import annotations

import time


def ms_since(t_start: float) -> float:
    """Milliseconds since a `time.perf_counter()`."""
    return (time.perf_counter() - t_start) * 1000.0
